//! A process that carries something, as others see and steer it: one call that opens its control
//! socket and keeps it told.
//!
//! Owns how often the data path is looked at, and the carrying out of commands on its thread. The
//! data path is on this thread, the server on one of its own: what clients ask for costs nothing
//! here. A relay has too many sessions, and a gateway too little time, for looks that nobody wants:
//! they are told when to look, the gateway each time ([`Asked`]), a relay once in a while. An
//! instance without a socket works all the same; only what was asked for by name (`--http`) may
//! fail it.

mod asked;
mod event;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use clap::Args;
use tabane_base::Duration;
use tabane_control::{
    API_VERSION, Command, Condition, Directory, DirectoryError, HttpConfig, Kind, LinkChange,
    Multipath, Naming, Pace, PolicyFile, Process, Publisher, RuleAnswer, RuleQuestion, ServeError,
    Server, ServerConfig, State, Totals, TraceBatch,
};
use tabane_tunnel::{Journal, shown::follow_record};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

pub(crate) use asked::Asked;
use event::event;
use tabane_client::{ClientView, Events, FarEnds};
use tabane_policy::Reaction;
use tabane_relay::RelayView;
use tabane_store::{secret, wall_clock::unix_millis};
use tabane_uplinks::{PolicyTextFile, WebView};

/// How often the data path is looked at: twice in the second that rates are taken over.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// A relay that was asked goes on by itself for so long: whoever asks, asks again.
const WATCHED: Duration = Duration::from_secs(3);
/// Things that happen together are told together.
const NEWS_PAUSE: Duration = Duration::from_millis(20);

/// Flags of every command that others may look at.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Control")]
pub(crate) struct ControlArgs {
    /// Serve dashboard, state and metrics over HTTP as well, on a loopback address; clients show
    /// the token in the file that the log names [default: only the Unix socket of `tabane status`]
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<SocketAddr>,
}

/// What an instance is.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    pub(crate) kind: Kind,
    /// What it is called; [`Kind::Up`] has one name for the whole machine and [`Kind::Gateway`] one
    /// for each interface, others get their process id where the name is taken.
    pub(crate) name: String,
    /// The command it runs, or where it listens.
    pub(crate) about: String,
    /// The relays it may be a client of, by name and key, the preferred first.
    pub(crate) relays: Vec<(String, String)>,
    /// Of a client: the file that rules its links.
    pub(crate) policy: Option<PolicyTextFile>,
}

/// Visible until dropped.
pub(crate) struct Instance {
    task: Option<AbortHandle>,
    /// Ends after the task that feeds it.
    _server: Option<Server>,
}

/// Where states come from.
enum View {
    Client(ClientView),
    Relay(RelayView),
    Web(WebView),
}

impl Instance {
    /// Makes a client visible. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// HTTP was asked for and cannot be served.
    pub(crate) fn of_client(
        args: &ControlArgs,
        description: Description,
        far_ends: &FarEnds,
    ) -> Result<Self> {
        let journal = far_ends.journal();
        let view = View::Client(ClientView::new(far_ends.clone()));
        Self::start(args, description, view, journal)
    }

    /// Makes a relay visible. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// HTTP was asked for and cannot be served.
    pub(crate) fn of_relay(
        args: &ControlArgs,
        description: Description,
        view: RelayView,
    ) -> Result<Self> {
        let journal = view.journal();
        Self::start(args, description, View::Relay(view), journal)
    }

    /// Makes web mode visible, by the Unix socket alone. Must be called within a `LocalSet`.
    pub(crate) fn of_web(description: Description, view: WebView) -> Result<Self> {
        let args = ControlArgs::default();
        Self::start(&args, description, View::Web(view), Journal::default())
    }

    fn start(
        args: &ControlArgs,
        description: Description,
        view: View,
        journal: Journal,
    ) -> Result<Self> {
        let pace = match view {
            View::Client(_) | View::Web(_) => Pace::ByItself,
            View::Relay(_) => Pace::WhenAsked,
        };
        let served = serve(args, &description, pace)?;
        let (server, publisher, commands) = match served {
            Some((server, publisher, commands)) => (Some(server), Some(publisher), Some(commands)),
            // Whoever is to be told of events is told all the same.
            None => (None, None, None),
        };
        let reporter = Reporter {
            instance: instance(&description, server.as_ref()),
            relays: description.relays,
            view,
            journal,
            publisher,
            events: Events::default(),
            pace,
            asked_at: None,
        };
        let task = tokio::task::spawn_local(reporter.run(commands));
        Ok(Self {
            task: Some(task.abort_handle()),
            _server: server,
        })
    }
}

/// Opens the control socket. `None` where there can be none, which is logged.
fn serve(
    args: &ControlArgs,
    description: &Description,
    pace: Pace,
) -> Result<Option<(Server, Publisher, mpsc::Receiver<Command>)>> {
    let started = Server::start(ServerConfig {
        directory: Directory::of_user(),
        name: description.name.clone(),
        naming: match description.kind {
            // There is one, or none.
            Kind::Up | Kind::Gateway => Naming::Exclusive,
            Kind::Run | Kind::Proxy | Kind::Relay | Kind::Web | Kind::Get | Kind::Expose => {
                Naming::WithPid
            }
        },
        http: args.http.map(|address| HttpConfig {
            address,
            token: secret::token(),
        }),
        policy: description
            .policy
            .clone()
            .map(|file| Box::new(file) as Box<dyn PolicyFile>),
        pace,
    });
    let started = match started {
        Ok(started) => started,
        Err(error) if args.http.is_some() => return Err(error.into()),
        // Two would take each other's packets away. `up` has a lock against that.
        Err(ServeError::Directory(error @ DirectoryError::Running { .. }))
            if description.kind == Kind::Gateway =>
        {
            let advice = "another gateway has this interface (for one in another network \
                          namespace, name another directory in TABANE_RUNTIME)";
            return Err(error).context(advice);
        }
        Err(error) => {
            tracing::warn!("`tabane status` will not see this: {error}");
            return Ok(None);
        }
    };
    let server = &started.0;
    if let Some(address) = server.http() {
        let name = server.name();
        let token = Directory::of_user().path().join(format!("{name}.token"));
        tracing::warn!("HTTP on http://{address}, token in {}", token.display());
    }
    Ok(Some(started))
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Tells the server what there is to know.
struct Reporter {
    instance: tabane_control::Instance,
    /// At a client: those it may use, by name and key.
    relays: Vec<(String, String)>,
    view: View,
    journal: Journal,
    /// None where nobody can look.
    publisher: Option<Publisher>,
    events: Events,
    pace: Pace,
    /// When somebody last wanted to know.
    asked_at: Option<Instant>,
}

impl Reporter {
    async fn run(mut self, mut commands: Option<mpsc::Receiver<Command>>) {
        let mut samples = interval(SAMPLE_INTERVAL);
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_watched = self.is_watched();
            tokio::select! {
                _ = samples.tick(), if is_watched => {}
                () = self.journal.changed(), if is_watched => sleep(NEWS_PAUSE).await,
                command = next(&mut commands) => {
                    match command {
                        Some(command) => self.carry_out(command).await,
                        // The server is gone.
                        None => commands = None,
                    }
                    continue;
                }
            }
            self.publish().await;
        }
    }

    /// Whether somebody may want to know what is new.
    fn is_watched(&self) -> bool {
        match self.pace {
            Pace::ByItself => true,
            Pace::WhenAsked => self.asked_at.is_some_and(|at| at.elapsed() < WATCHED),
        }
    }

    async fn carry_out(&mut self, command: Command) {
        // Who asked may have gone meanwhile; then nobody hears the answer.
        match command {
            Command::Look { reply } => {
                self.asked_at = Some(Instant::now());
                self.publish().await;
                let _ = reply.send(Ok(()));
            }
            Command::ChangeLink {
                name,
                change,
                reply,
            } => {
                let done = self.view.change_link(&name, change);
                // Before the answer, so that whoever asked sees what came of it.
                self.publish().await;
                let _ = reply.send(done);
            }
            Command::Explain { question, reply } => {
                let _ = reply.send(self.view.explain(question));
            }
            Command::Trace { session, reply } => {
                let _ = reply.send(self.view.record(session).await);
            }
        }
    }

    async fn publish(&mut self) {
        let mut state = state(&self.instance);
        state.events = self.journal.since(0).iter().map(event).collect();
        match &mut self.view {
            View::Client(view) => view.look(&mut state, &self.relays),
            View::Relay(view) => view.look(&mut state).await,
            View::Web(view) => view.look(&mut state),
        }
        if let Some(reactions) = self.view.reactions() {
            self.events.look(Instant::now(), &state, &reactions);
        }
        if let Some(publisher) = &self.publisher {
            publisher.publish(state);
        }
    }
}

/// Waits for a client's command; for ever where there can be none.
async fn next(commands: &mut Option<mpsc::Receiver<Command>>) -> Option<Command> {
    match commands {
        Some(commands) => commands.recv().await,
        None => std::future::pending().await,
    }
}

impl View {
    /// What is done when something happens to links; a relay has none.
    fn reactions(&self) -> Option<Rc<[Reaction]>> {
        match self {
            Self::Client(view) => Some(view.reactions()),
            Self::Relay(_) => None,
            Self::Web(view) => Some(view.reactions()),
        }
    }

    fn change_link(&mut self, name: &str, change: LinkChange) -> Result<(), String> {
        match self {
            Self::Client(view) => view.change_link(name, change),
            Self::Relay(_) => Err("a relay has no links to change".to_owned()),
            Self::Web(_) => Err("web mode's links go by the policy: tabane policy set".to_owned()),
        }
    }

    fn explain(&self, question: RuleQuestion) -> Result<RuleAnswer, String> {
        match self {
            Self::Client(view) => view.explain(question),
            Self::Relay(_) => Err("a relay has no rules".to_owned()),
            Self::Web(_) => Err("web mode knows no rules".to_owned()),
        }
    }

    async fn record(&self, session: Option<u64>) -> Result<mpsc::Receiver<TraceBatch>, String> {
        match self {
            Self::Client(view) => view.trace(session).map(follow_record),
            Self::Relay(view) => view.record(session).await,
            Self::Web(_) => Err("web mode has no session to trace".to_owned()),
        }
    }
}

/// A state that says who speaks, and nothing else.
fn state(instance: &tabane_control::Instance) -> State {
    State {
        api: API_VERSION,
        at_unix_ms: unix_millis(SystemTime::now()),
        instance: instance.clone(),
        condition: Condition::Up,
        problems: Vec::new(),
        totals: Totals::default(),
        silent_ms: None,
        policy_fault: None,
        limit: None,
        multipath: Multipath::default(),
        exposures: Vec::new(),
        fleet: None,
        lan_hosts: Vec::new(),
        routes: Vec::new(),
        links: Vec::new(),
        sessions: Vec::new(),
        sessions_omitted: 0,
        rules: Vec::new(),
        gateway: None,
        events: Vec::new(),
        process: Process::default(),
    }
}

fn instance(description: &Description, server: Option<&Server>) -> tabane_control::Instance {
    let name = server.map_or(&*description.name, Server::name);
    let http = server.and_then(Server::http);
    tabane_control::Instance {
        name: name.to_owned(),
        kind: description.kind,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_unix_ms: unix_millis(SystemTime::now()),
        about: description.about.clone(),
        relay: description.relays.first().map(|(name, _)| name.clone()),
        http: http.map(|address| format!("http://{address}")),
    }
}
