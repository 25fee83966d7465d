//! A process that carries something, as others see and steer it: one call that opens its control
//! socket and has it told of the process's view.
//!
//! Owns the flags, and what is said where there can be no socket: an instance without one works all
//! the same, and only what was asked for by name (`--http`) may fail it. What is told, and when, is
//! `tabane-control`'s and the views'.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use tabane_control::{
    Command, Directory, DirectoryError, HttpConfig, InstanceView, Kind, Pace, PolicyFile,
    Publisher, ServeError, Server, ServerConfig, State, report,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use tabane_client::{ClientView, EarlyView, Events, FarEnds, SessionPlan};
use tabane_policy::Reaction;
use tabane_relay::{RelayView, gateway::Audience};
use tabane_store::{Store, secret};
use tabane_uplinks::{LinksView, PolicyTextFile};

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
#[derive(Debug)]
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
    task: AbortHandle,
    /// Ends after the task that feeds it.
    _server: Option<Server>,
}

/// A server with the channels to it.
type Served = (Server, Publisher, mpsc::Receiver<Command>);

impl Instance {
    /// Makes a client visible. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// HTTP was asked for and cannot be served.
    pub(crate) fn of_client(
        args: &ControlArgs,
        description: &Description,
        far_ends: &FarEnds,
    ) -> Result<Self> {
        let view = ClientView::new(far_ends.clone(), description.relays.clone());
        Self::start(args, description, view, |view| Some(view.reactions()))
    }

    /// Sets up a client's sessions as `plan` says; it is visible while it waits for them. Must be
    /// called within a `LocalSet`.
    ///
    /// # Errors
    /// There is no session, or HTTP was asked for and cannot be served.
    pub(crate) async fn connect(
        args: &ControlArgs,
        description: &Description,
        plan: &SessionPlan,
        store: &Store,
    ) -> Result<(Self, FarEnds)> {
        let (view, ends) = EarlyView::new(plan);
        let instance = Self::start(args, description, view, |view| Some(view.reactions()))?;
        let far_ends = FarEnds::connect(plan, store).await?;
        Ok((instance, ends.give(far_ends).await))
    }

    /// Makes a relay visible. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// HTTP was asked for and cannot be served.
    pub(crate) fn of_relay(
        args: &ControlArgs,
        description: &Description,
        view: RelayView,
    ) -> Result<Self> {
        Self::start(args, description, view, |_| None)
    }

    /// Makes what has links and no session visible, by the Unix socket alone. Must be called within
    /// a `LocalSet`.
    pub(crate) fn of_links(description: &Description, view: LinksView) -> Result<Self> {
        let args = ControlArgs::default();
        Self::start(&args, description, view, |view| Some(view.reactions()))
    }

    /// Whoever is to be told of events is told without a socket, too.
    fn start<V: InstanceView + 'static>(
        args: &ControlArgs,
        description: &Description,
        view: V,
        reactions: impl Fn(&V) -> Option<Rc<[Reaction]>> + 'static,
    ) -> Result<Self> {
        let (instance, served) = serve(args, description, V::PACE)?;
        let served = served.map(|(server, publisher, commands)| (server, (publisher, commands)));
        let (server, channels) = served.unzip();
        let mut events = Events::default();
        let told = move |view: &V, state: &State| {
            if let Some(reactions) = reactions(view) {
                events.look(Instant::now(), state, &reactions);
            }
        };
        let task = tokio::task::spawn_local(report(instance, view, channels, told));
        Ok(Self {
            task: task.abort_handle(),
            _server: server,
        })
    }
}

/// Makes a gateway visible.
///
/// # Errors
/// The interface has one already, or HTTP was asked for and cannot be served.
pub(crate) fn audience(args: &ControlArgs, description: &Description) -> Result<Audience> {
    let (instance, served) = serve(args, description, Pace::WhenAsked)?;
    Ok(Audience::new(instance, served))
}

/// Opens the control socket of an instance. No server where there can be none, which is logged.
fn serve(
    args: &ControlArgs,
    description: &Description,
    pace: Pace,
) -> Result<(tabane_control::Instance, Option<Served>)> {
    let mut instance = tabane_control::Instance::new(
        description.kind,
        description.name.clone(),
        description.about.clone(),
        description.relays.first().map(|(name, _)| name.clone()),
    );
    let started = Server::start(ServerConfig {
        directory: Directory::of_user(),
        name: description.name.clone(),
        naming: description.kind.naming(),
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
            return Ok((instance, None));
        }
    };
    let server = &started.0;
    server.name().clone_into(&mut instance.name);
    if let Some(address) = server.http() {
        let name = server.name();
        let token = Directory::of_user().path().join(format!("{name}.token"));
        tracing::warn!("HTTP on http://{address}, token in {}", token.display());
        instance.http = Some(format!("http://{address}"));
    }
    Ok((instance, Some(started)))
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.task.abort();
    }
}
