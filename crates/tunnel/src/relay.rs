//! The relay's end: lets sessions in and connects out on behalf of their streams.
//!
//! Owns the relay's sockets, who is let in, and the limits of each session. How a destination is
//! reached and how a flow is served have files of their own. Nothing a client sends ends more than
//! its own session.
//!
//! A [`Relay`] is one worker: one thread with its sockets and its sessions. What workers share is
//! in [`Shared`], and how they work together in `crew`.

mod admitting;
mod applicant;
mod asked_name;
mod attending;
mod begun;
mod config;
mod crew;
mod departure;
mod destination;
mod draining;
mod exit;
mod exit_address;
mod exposing;
mod exposures;
mod front_doors;
mod gate;
mod grants;
mod guest;
mod host;
mod listening;
mod mapping;
mod measuring;
mod members;
mod monitor;
mod open_ports;
mod own_addresses;
mod packets;
mod pool;
mod quota;
mod rules;
mod seldom;
mod shaper;
mod site_routes;
mod sites;
mod steering;
#[cfg(test)]
mod tests;
mod turnstile;
mod udp;
mod udp_door;
pub(crate) mod user;
mod visitor;
mod web_door;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_base::Duration;
use tabane_core::{CloseReason, ConfigError, Event, PublicKey};
use tabane_linux::UdpError;
use tabane_linux::lookups::Lookups;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access::Access;
use crate::engine::{Engine, Notice, Sieve};
use crate::headcount::Headcount;
use crate::journal::{Happening, Journal};
use crate::monitor::HostMonitor;
use applicant::Answer;
use crew::{Crew, EndpointParts, Job, Seat, Stage, Threads, reached};
use exit::Exit;
use front_doors::FrontDoors;
use guest::Guest;
use host::Leavings;
use listening::Group;
use measuring::Measuring;
use members::Members;
use own_addresses::OwnAddresses;
use sites::Sites;
use user::RatesHere;

pub use applicant::{Admission, Applicant, Authorise};
pub use asked_name::fuzz_asked_name;
pub use config::{FleetList, FleetLoads, RelayConfig, RelayLimits};
pub use crew::Parting;
pub use departure::ExitSnapshot;
pub use exit::{ExitConfig, InheritedPool, PacketsSnapshot};
pub use exit_address::{ExitAddress, ExitAddressError};
pub use front_doors::ExposureSnapshot;
pub use grants::{DomainGrant, GrantError, Grants, GroupName, HostGrant, PortGrant, RouteGrant};
pub use listening::{Inheritance, InheritedGroup};
pub use monitor::{GuestSnapshot, RelayMonitor, RelaySnapshot};
pub use pool::PoolPlace;
pub use rules::{DestinationRule, Destinations, RuleError};
pub use seldom::Seldom;
pub use sites::RouteSnapshot;
pub use user::{User, UserLimits, UserUsage};
pub use web_door::WebDoor;

/// How long good-byes are given to arrive when the relay goes down; clients that miss theirs find
/// out by a stateless reset from the next relay, or by silence.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);

/// Why a relay cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Nothing to listen on.
    #[error("a relay needs at least one UDP address to listen on")]
    NoAddress,
    /// A socket could not be had.
    #[error(transparent)]
    Listen(#[from] UdpError),
    /// A setting that cannot work.
    #[error("a setting cannot work: {0}")]
    Config(#[from] ConfigError),
    /// The kernel gave no descriptors.
    #[error("cannot set up the event loop: {0}")]
    Runtime(#[source] io::Error),
}

/// A relay that listens, or one worker of it.
pub struct Relay {
    /// Which worker this is, from 0.
    number: usize,
    engine: Engine,
    monitor: HostMonitor,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    authorise: Authorise,
    /// The way of answers to those who wait; as many as core has strangers at the most.
    answers: (
        mpsc::UnboundedSender<Answer>,
        mpsc::UnboundedReceiver<Answer>,
    ),
    guests: BTreeMap<u64, Guest>,
    rates: RatesHere,
    leavings: Leavings,
    /// What other workers want done here.
    jobs: mpsc::UnboundedReceiver<Job>,
    doors: Vec<WebDoor>,
    /// What another process has left, and is not used yet.
    inherited: Vec<InheritedGroup>,
    /// Who takes in visitors; they go with the relay.
    doormen: JoinSet<()>,
    /// The other workers, where this is the first.
    threads: Threads,
}

/// What the tasks of all sessions need, at every worker. What is locked here is so for a look or
/// an addition, and between packets only where packets share it (`exit`).
struct Shared {
    crew: Crew,
    access: Access,
    own: OwnAddresses,
    limits: RelayLimits,
    lookups: Lookups<PublicKey>,
    resolvers: Vec<SocketAddr>,
    mark: Option<u32>,
    served: AtomicU64,
    /// Nobody is let in any more.
    is_draining: AtomicBool,
    /// Where the numbers of sessions come from.
    serials: Arc<AtomicU64>,
    /// Whether the ids of its sessions are the odd ones.
    is_odd: bool,
    groups: Mutex<Vec<Group>>,
    /// Another process has sessions at the same addresses.
    has_neighbour: Arc<AtomicBool>,
    headcount: Headcount<PublicKey>,
    pinging: Headcount<PublicKey>,
    members: Members,
    journal: Journal,
    exit: Option<Exit>,
    measuring: Measuring,
    fleet_list: Option<FleetList>,
    fleet_loads: Option<FleetLoads>,
    front_doors: Arc<FrontDoors>,
    sites: Arc<Sites>,
    /// How often the log tells of sessions of nobody's, and of who was refused.
    lines: Seldom,
    refusals: Seldom,
}

/// Lines about who was refused, in a minute.
const REFUSALS: u32 = 60;
/// Lines about sessions that are no user's.
const LINES: u32 = 600;

impl Shared {
    fn groups(&self) -> MutexGuard<'_, Vec<Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the log has room for one more line about sessions of this user's.
    fn is_worth_a_line(&self, user: Option<&User>) -> bool {
        user.map_or(&self.lines, User::lines).is_due()
    }
}

impl Relay {
    /// Opens the relay's sockets. Nobody is served before [`run`](Self::run).
    ///
    /// # Errors
    /// See [`RelayError`]; each says what is wrong.
    ///
    /// # Panics
    /// Outside a `LocalSet`; see [`block_on`](crate::block_on).
    pub fn bind(config: RelayConfig) -> Result<Self, RelayError> {
        if config.listen.is_empty() {
            return Err(RelayError::NoAddress);
        }
        for door in &config.web_doors {
            config.monitor.on_link(&door.link(), false);
        }
        let own_ports = config.web_doors.iter().filter_map(WebDoor::port).collect();
        let inheritance = config.inheritance;
        let is_odd = inheritance.as_ref().is_some_and(|before| !before.is_odd);
        let exit = config.exit.map(Exit::new).transpose();
        let (crew, mut ways) = Crew::new(config.workers);
        let shared = Arc::new(Shared {
            crew,
            access: config.access,
            own: OwnAddresses::new(config.own_addresses),
            limits: config.limits,
            lookups: Lookups::default(),
            resolvers: config.resolvers,
            mark: config.mark,
            served: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
            serials: Arc::default(),
            is_odd,
            groups: Mutex::default(),
            has_neighbour: Arc::default(),
            headcount: Headcount::default(),
            pinging: Headcount::default(),
            members: Members::default(),
            journal: Journal::default(),
            exit: exit.map_err(RelayError::Runtime)?,
            measuring: Measuring::default(),
            fleet_list: config.fleet_list,
            fleet_loads: config.fleet_loads,
            front_doors: FrontDoors::new(config.listen[0].ip(), own_ports),
            sites: Arc::default(),
            lines: Seldom::of(LINES, "sessions of no user's come and go"),
            refusals: Seldom::of(REFUSALS, "clients are refused"),
        });
        let endpoint = EndpointParts {
            identity: config.identity,
            session: config.session,
            server: config.server,
            seed: config.seed,
        };
        let seat = |number, jobs| Seat {
            number,
            shared: shared.clone(),
            jobs,
            endpoint: endpoint.clone(),
            monitor: config.monitor.clone(),
        };
        let others = ways.split_off(1).into_iter().enumerate();
        let others = others.map(|(index, jobs)| seat(index + 1, jobs)).collect();
        let own = ways.pop().expect("there is one worker at least");
        let mut relay = Self {
            authorise: config.authorise,
            doors: config.web_doors,
            inherited: inheritance.map_or_else(Vec::new, |before| before.groups),
            ..Self::of_seat(seat(0, own))?
        };
        relay.threads = Threads::start(&shared, others)?;
        for local in config.listen {
            relay.listen_also(local)?;
        }
        Ok(relay)
    }

    /// One worker, on this thread; what it asks of others goes to the first.
    fn of_seat(seat: Seat) -> Result<Self, RelayError> {
        let (number, shared) = (seat.number, seat.shared);
        let workers = shared.crew.len();
        let (endpoint, steering) = seat.endpoint.endpoint(workers, number, shared.is_odd)?;
        let engine = Engine::start(endpoint, seat.monitor.clone()).map_err(RelayError::Runtime)?;
        let sieve = Sieve::new(steering, shared.has_neighbour.clone());
        engine.work_beside(shared.serials.clone(), sieve);
        let first = shared.clone();
        let authorise = move |applicant| {
            let decide = move |relay: &mut Self| (relay.authorise)(applicant);
            first.crew.tell(0, decide);
        };
        Ok(Self {
            number,
            engine,
            monitor: seat.monitor,
            shared,
            addresses: Vec::new(),
            authorise: Box::new(authorise),
            answers: mpsc::unbounded_channel(),
            guests: BTreeMap::new(),
            rates: RatesHere::default(),
            leavings: Leavings::default(),
            jobs: seat.jobs,
            doors: Vec::new(),
            inherited: Vec::new(),
            doormen: JoinSet::new(),
            threads: Threads::default(),
        })
    }

    /// The addresses it listens on, with the ports the kernel chose where 0 was asked for.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A view on the relay that stays valid while it runs.
    #[must_use]
    pub fn monitor(&self) -> RelayMonitor {
        RelayMonitor {
            number: self.number,
            engine: self.engine.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Serves sessions until `shutdown` is ready, then says good-bye to all of them.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let down = async {
            shutdown.await;
            Parting::Down
        };
        self.run_and_drain(down, |_| Duration::ZERO, std::future::pending())
            .await;
    }

    /// Serves sessions until `shutdown` is ready, and says why. From then on nobody is let in;
    /// sessions that carry connections have `grace` to finish them, or less where `hurry` is ready.
    pub async fn run_and_drain(
        mut self,
        shutdown: impl Future<Output = Parting>,
        grace: impl FnOnce(Parting) -> Duration,
        hurry: impl Future<Output = ()>,
    ) {
        // Before the first stream can ask.
        self.shared.own.look().await;
        let shared = self.shared.clone();
        for door in self.doors.drain(..) {
            let (engine, shared) = (self.engine.clone(), self.shared.clone());
            self.doormen.spawn_local(door.serve(engine, shared));
        }
        shared.crew.advance(Stage::Serving);
        let own = async {
            shared.own.follow().await;
            std::future::pending().await
        };
        let serve = async {
            let parting = tokio::select! {
                () = self.serve() => return,
                parting = shutdown => parting,
            };
            let grace = grace(parting);
            shared.crew.advance(Stage::Draining(parting, grace));
            let hurried = async {
                hurry.await;
                shared.crew.advance(Stage::Hurried);
                std::future::pending().await
            };
            tokio::select! {
                () = self.finish(grace, shared.crew.watch()) => {}
                () = hurried => {}
            }
        };
        let answers = async {
            match &shared.exit {
                Some(exit) => exit.hand_out().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = serve => {}
            () = own => {}
            () = answers => {}
        }
    }

    /// What a worker does on a thread of its own.
    async fn work(mut self, stage: watch::Receiver<Stage>) {
        let (mut gone, mut next) = (stage.clone(), stage);
        let serve = async {
            loop {
                tokio::select! {
                    _ = reached(&mut next, Stage::Serving) => break,
                    Some(job) = self.jobs.recv() => job(&mut self),
                }
            }
            let told = tokio::select! {
                () = self.serve() => Stage::Gone,
                told = reached(&mut next, Stage::Draining(Parting::Down, Duration::ZERO)) => told,
            };
            let grace = match told {
                Stage::Draining(_, grace) => grace,
                Stage::Opening | Stage::Serving | Stage::Hurried | Stage::Gone => Duration::ZERO,
            };
            self.finish(grace, next).await;
        };
        tokio::select! {
            () = serve => {}
            _ = reached(&mut gone, Stage::Gone) => {}
        }
    }

    /// The end, of the first worker's after all others'.
    async fn finish(&mut self, grace: Duration, mut stage: watch::Receiver<Stage>) {
        let hurry = async {
            reached(&mut stage, Stage::Hurried).await;
        };
        self.drain(grace, hurry).await;
        self.say_goodbye().await;
        drop(stage);
        if self.number == 0 {
            let shared = self.shared.clone();
            // Theirs may ask something yet.
            tokio::select! {
                () = shared.crew.ended() => {}
                never = self.serve() => never,
            }
        }
    }

    /// Handles what comes, for ever.
    async fn serve(&mut self) {
        loop {
            tokio::select! {
                notice = self.engine.notice() => self.handle_notice(notice),
                Some((session, key, verdict)) = self.answers.1.recv() => {
                    self.decide(session, key, verdict);
                }
                Some(job) = self.jobs.recv() => self.carry_out(job),
            }
        }
    }

    fn handle_notice(&mut self, notice: Notice) {
        let Notice::Session(session, event) = notice else {
            return;
        };
        match event {
            Event::Authorise { key, token } => {
                let answers = self.answers.0.clone();
                (self.authorise)(Applicant {
                    key,
                    token,
                    session,
                    answers,
                });
            }
            Event::StreamOpened(stream) => {
                if let Some(guest) = self.guests.get(&session.serial()) {
                    guest.serve(stream);
                }
            }
            Event::Closed(reason) => {
                if let Some(guest) = self.guests.remove(&session.serial()) {
                    guest.log_closed(&reason);
                    self.shared.journal.record(Happening::SessionEnded {
                        session: session.serial(),
                        client: Some(guest.key()),
                        reason,
                    });
                }
            }
            // Which path carries what is core's affair; streams and datagrams have their tasks.
            _ => {}
        }
    }

    async fn say_goodbye(&mut self) {
        let sessions = self.engine.sessions();
        tracing::info!(sessions = sessions.len(), "shutting down");
        for session in &sessions {
            self.engine.visit(*session, |visit| {
                visit.session.close(visit.now, CloseReason::ShuttingDown);
                visit.touch();
            });
        }
        let forgotten = async {
            while sessions.iter().any(|session| self.engine.is_kept(*session)) {
                self.engine.notice().await;
            }
        };
        if timeout(GOODBYE_WAIT, forgotten).await.is_err() {
            tracing::debug!("not every client confirmed the good-bye");
        }
    }
}
