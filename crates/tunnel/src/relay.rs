//! The relay's end: lets sessions in and connects out on behalf of their streams.
//!
//! Owns the relay's sockets, who is let in, and the limits of each session. How a destination is
//! reached and how a flow is served have files of their own. Nothing a client sends ends more than
//! its own session.

mod destination;
mod draining;
mod exit;
mod gate;
mod guest;
mod own_addresses;
mod packets;
mod pingers;
mod pool;
mod rules;
mod shaper;
mod udp;
mod user;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{
    CloseReason, ConfigError, Endpoint, EndpointCounters, Event, Identity, PublicKey, ServerConfig,
    SessionConfig, SessionSnapshot,
};
use tabane_linux::{UdpBind, UdpError};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::access::Access;
use crate::engine::{Engine, Notice, SessionId, Volume};
use crate::journal::{Happening, Journal};
use crate::monitor::HostMonitor;
use crate::trace::SessionTrace;
use exit::Exit;
use guest::Guest;
use own_addresses::OwnAddresses;
use user::What;

pub use exit::{ExitConfig, PacketsSnapshot};
pub use rules::{DestinationRule, Destinations, RuleError};
pub(crate) use user::{Meter, Way};
pub use user::{User, UserLimits, UserUsage};

/// How long good-byes are given to arrive when the relay goes down; clients that miss theirs find
/// out by a stateless reset from the next relay, or by silence.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);

/// A session that was silent for so long has lost its client: live ones probe every 15 s [P-9.3].
const DESERTED_AFTER: Duration = Duration::from_secs(40);

/// What a relay needs to know.
pub struct RelayConfig {
    /// The relay's own key pair; join strings pin its public key.
    pub identity: Identity,
    /// UDP addresses to serve; `[::]` serves IPv4 as well.
    pub listen: Vec<SocketAddr>,
    /// Which destinations clients may reach. This host's own addresses count as private ones.
    pub access: Access,
    /// Further addresses that lead to this host, because a NAT forwards them.
    pub own_addresses: Vec<IpAddr>,
    /// How many of what one session may have.
    pub limits: RelayLimits,
    /// Limits of the endpoint as a whole.
    pub server: ServerConfig,
    /// How sessions behave.
    pub session: SessionConfig,
    /// Is told of everybody who wants to be let in.
    pub authorise: Authorise,
    /// What clients that ask for the relay's resolver get, best first; see
    /// [`system_resolvers`](crate::system_resolvers).
    pub resolvers: Vec<SocketAddr>,
    /// The host's monitor; the relay's one link is called by the address it listens on.
    pub monitor: HostMonitor,
    /// Secret randomness, used once.
    pub seed: [u8; 32],
    /// Marks every packet (`SO_MARK`), where this machine's own hooks must leave them alone.
    pub mark: Option<u32>,
    /// By which packets that are neither TCP nor UDP leave, with addresses of a pool; without,
    /// pings alone are served.
    pub exit: Option<ExitConfig>,
}

/// Is given everybody who wants to be let in, and answers now or later.
pub type Authorise = Box<dyn FnMut(Applicant)>;

/// A client that wants to be let in. Without an answer its session ends with the time for
/// handshakes.
pub struct Applicant {
    /// Its proven key.
    pub key: PublicKey,
    /// The token that it shows.
    pub token: Option<Vec<u8>>,
    session: SessionId,
    answers: mpsc::UnboundedSender<Answer>,
}

/// What was decided about the client of a session.
type Answer = (SessionId, PublicKey, Verdict);

impl Applicant {
    /// Decides about it.
    pub fn answer(self, verdict: Verdict) {
        // A relay that is gone needs no answer.
        let _ = self.answers.send((self.session, self.key, verdict));
    }
}

/// Whether a client is let in.
#[derive(Clone)]
pub enum Verdict {
    /// It may have a session, with the limits of this user if it is one's.
    Admit(Option<User>),
    /// It may not, and is told why.
    Refuse(CloseReason),
}

/// How many of what one session may have at once. Each costs the relay a file descriptor.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// TCP connections.
    pub connections: usize,
    /// UDP flows.
    pub flows: usize,
}

impl Default for RelayLimits {
    /// A household's worth: routers' tables for a home hold about as many.
    fn default() -> Self {
        Self {
            connections: 4_096,
            flows: 1_024,
        }
    }
}

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

/// A relay that listens.
pub struct Relay {
    engine: Engine,
    shared: Rc<Shared>,
    addresses: Vec<SocketAddr>,
    authorise: Authorise,
    /// The way of answers to those who wait; as many as core has strangers at the most.
    answers: (
        mpsc::UnboundedSender<Answer>,
        mpsc::UnboundedReceiver<Answer>,
    ),
    guests: BTreeMap<u64, Guest>,
}

/// What the tasks of all sessions need.
struct Shared {
    access: Access,
    own: OwnAddresses,
    limits: RelayLimits,
    resolvers: Vec<SocketAddr>,
    mark: Option<u32>,
    served: Cell<u64>,
    /// Nobody is let in any more.
    is_draining: Cell<bool>,
    stream_ended: Notify,
    journal: Journal,
    exit: Option<Exit>,
}

impl Shared {
    /// Whether a client, of this user if it is one's, may reach `address`.
    fn allows(&self, user: Option<&User>, address: SocketAddr) -> bool {
        let ip = address.ip();
        let access = match (self.access, user) {
            (Access::Public, Some(user)) if user.may_reach_private() => Access::Private,
            (access, _) => access,
        };
        let by_relay = access.allows(ip)
            && match access {
                Access::Public => !self.own.contains(ip),
                Access::Private => true,
                Access::Own => self.own.contains(ip) && !ip.to_canonical().is_loopback(),
            };
        by_relay && user.is_none_or(|user| user.may_reach(address))
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
        let endpoint =
            Endpoint::server(config.identity, config.session, config.server, config.seed)?;
        let engine =
            Engine::start(endpoint, config.monitor.clone()).map_err(RelayError::Runtime)?;
        let mut addresses = Vec::new();
        for local in config.listen {
            let interface = None;
            let bind = UdpBind { interface, local };
            let link = local.to_string();
            config.monitor.on_link(&link, false);
            let socket = engine.bind(&link, bind, config.mark, true)?;
            addresses.extend(engine.local_addr(socket));
        }
        Ok(Self {
            engine,
            shared: Rc::new(Shared {
                access: config.access,
                own: OwnAddresses::new(config.own_addresses),
                limits: config.limits,
                resolvers: config.resolvers,
                mark: config.mark,
                served: Cell::new(0),
                is_draining: Cell::new(false),
                stream_ended: Notify::new(),
                journal: Journal::default(),
                exit: config.exit.map(Exit::new),
            }),
            addresses,
            authorise: config.authorise,
            answers: mpsc::unbounded_channel(),
            guests: BTreeMap::new(),
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
            engine: self.engine.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Serves sessions until `shutdown` is ready, then says good-bye to all of them.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        self.run_and_drain(shutdown, Duration::ZERO, std::future::pending())
            .await;
    }

    /// Serves sessions until `shutdown` is ready. From then on nobody is let in; sessions that
    /// carry connections have `grace` to finish them, or less where `hurry` is ready.
    pub async fn run_and_drain(
        mut self,
        shutdown: impl Future<Output = ()>,
        grace: Duration,
        hurry: impl Future<Output = ()>,
    ) {
        // Before the first stream can ask.
        self.shared.own.look().await;
        let shared = self.shared.clone();
        let own = async {
            shared.own.follow().await;
            std::future::pending().await
        };
        let serve = async {
            tokio::select! {
                never = self.serve() => never,
                () = shutdown => {}
            }
            self.drain(grace, hurry).await;
            self.say_goodbye().await;
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

    /// Handles what comes, for ever.
    async fn serve(&mut self) {
        loop {
            tokio::select! {
                notice = self.engine.notice() => self.handle_notice(notice),
                Some((session, key, verdict)) = self.answers.1.recv() => {
                    self.decide(session, key, verdict);
                }
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

    fn decide(&mut self, session: SessionId, key: PublicKey, verdict: Verdict) {
        let verdict = match verdict {
            Verdict::Admit(_) if self.shared.is_draining.get() => Err(CloseReason::ShuttingDown),
            Verdict::Admit(None) => Ok((None, None)),
            Verdict::Admit(Some(user)) => {
                self.end_deserted(&user);
                match user.count(What::Session) {
                    Some(counted) => Ok((Some(user), Some(counted))),
                    None => Err(CloseReason::TooManySessions),
                }
            }
            Verdict::Refuse(reason) => Err(reason),
        };
        // It may have gone while it waited.
        self.engine.visit(session, |visit| {
            visit.touch();
            match verdict {
                Ok(of) => {
                    visit.session.admit(visit.now);
                    self.shared.served.set(self.shared.served.get() + 1);
                    let (engine, shared) = (self.engine.clone(), self.shared.clone());
                    let snapshot = visit.session.snapshot(visit.now);
                    let from = snapshot.paths.first().map(|path| path.tuple.remote);
                    let guest = Guest::new(engine, shared, session, key, from, of);
                    self.guests.insert(session.serial(), guest);
                    self.shared.journal.record(Happening::SessionUp {
                        session: session.serial(),
                        client: Some(key),
                    });
                }
                Err(reason) => {
                    tracing::info!(client = %key, %reason, "refused");
                    self.shared
                        .journal
                        .record(Happening::Refused { client: key });
                    visit.session.close(visit.now, reason);
                }
            }
        });
    }

    /// Ends sessions of a user whose client has gone without a good-bye, where they stand in the
    /// way of a new one.
    fn end_deserted(&self, user: &User) {
        if user.may_have_another_session() {
            return;
        }
        for guest in self.guests.values().filter(|guest| guest.is_of(user)) {
            let session = guest.session();
            let silent_for = self.engine.snapshot(session).map(|found| found.silent_for);
            if silent_for.is_some_and(|span| span > DESERTED_AFTER) {
                self.engine.visit(session, |visit| {
                    visit.session.close(visit.now, CloseReason::IdleTimeout);
                    visit.touch();
                });
            }
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

/// One session at a relay at one moment.
#[derive(Clone, Debug)]
pub struct GuestSnapshot {
    /// Counts the relay's sessions.
    pub number: u64,
    /// The client's key, once proved.
    pub client: Option<PublicKey>,
    /// Since its first packet.
    pub age: Duration,
    /// What it is doing.
    pub session: SessionSnapshot,
    /// What its packets have come to, where it has addresses for them.
    pub packets: Option<PacketsSnapshot>,
}

/// What a running relay is doing.
#[derive(Clone)]
pub struct RelayMonitor {
    engine: Engine,
    shared: Rc<Shared>,
}

impl RelayMonitor {
    /// The sessions there are.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionSnapshot> {
        let sessions = self.engine.sessions();
        let snapshot = |session: SessionId| self.engine.snapshot(session);
        sessions.into_iter().filter_map(snapshot).collect()
    }

    /// What has been carried, sessions that have ended included.
    #[must_use]
    pub fn volume(&self) -> Volume {
        self.engine.whole_volume()
    }

    /// Ends the sessions of keys that `leave` gives a reason for, and tells their clients.
    pub fn turn_out(&self, mut leave: impl FnMut(PublicKey) -> Option<CloseReason>) {
        for session in self.engine.sessions() {
            self.engine.visit(session, |visit| {
                let session = &visit.session;
                if let Some(key) = session.peer_key()
                    && session.is_connected()
                    && let Some(reason) = leave(key)
                {
                    visit.session.close(visit.now, reason);
                    visit.touch();
                }
            });
        }
    }

    /// The sessions there are, with whose they are.
    #[must_use]
    pub fn guests(&self) -> Vec<GuestSnapshot> {
        let guest = |id: SessionId| {
            let (client, age) = self.engine.guest(id)?;
            Some(GuestSnapshot {
                number: id.serial(),
                client,
                age,
                session: self.engine.snapshot(id)?,
                packets: self
                    .shared
                    .exit
                    .as_ref()
                    .and_then(|exit| exit.tally(id.serial())),
            })
        };
        self.engine
            .sessions()
            .into_iter()
            .filter_map(guest)
            .collect()
    }

    /// Has a session recorded, by its number, until the result is dropped. `None` when there is no
    /// such session, or somebody has it recorded already.
    #[must_use]
    pub fn trace(&self, number: u64) -> Option<SessionTrace> {
        let sessions = self.engine.sessions();
        let session = sessions.into_iter().find(|id| id.serial() == number)?;
        SessionTrace::start(&self.engine, session)
    }

    /// What happened lately.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.clone()
    }

    /// Sessions let in so far.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.shared.served.get()
    }

    /// Counters over all sessions, drops by reason among them.
    #[must_use]
    pub fn counters(&self) -> EndpointCounters {
        self.engine.counters()
    }
}
