//! The relay's end: lets sessions in and connects out on behalf of their streams.
//!
//! Owns the relay's sockets, who is let in, and the limits of each session. How a destination is
//! reached and how a flow is served have files of their own. Nothing a client sends ends more than
//! its own session.

mod applicant;
mod asked_name;
mod config;
mod destination;
mod draining;
mod exit;
mod exposing;
mod exposures;
mod front_doors;
mod gate;
mod grants;
mod guest;
mod host;
mod mapping;
mod measuring;
mod monitor;
mod own_addresses;
mod packets;
mod pingers;
mod pool;
mod rules;
mod shaper;
mod turnstile;
mod udp;
mod udp_door;
mod user;
mod web_door;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{CloseReason, ConfigError, Endpoint, Event, PublicKey};
use tabane_linux::{UdpBind, UdpError};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access::Access;
use crate::engine::{Engine, Notice, SessionId};
use crate::journal::{Happening, Journal};
use crate::lookups::Lookups;
use crate::monitor::HostMonitor;
use applicant::Answer;
use exit::Exit;
use front_doors::FrontDoors;
use guest::Guest;
use measuring::Measuring;
use own_addresses::OwnAddresses;
use user::What;

pub use applicant::{Admission, Applicant, Authorise};
pub use asked_name::fuzz_asked_name;
pub use config::{RelayConfig, RelayLimits};
pub use exit::{ExitConfig, PacketsSnapshot};
pub use front_doors::ExposureSnapshot;
pub use grants::{GrantError, Grants, HostGrant, PortGrant};
pub use monitor::{GuestSnapshot, RelayMonitor};
pub use rules::{DestinationRule, Destinations, RuleError};
pub(crate) use user::{Direction, Meter};
pub use user::{User, UserLimits, UserUsage};
pub use web_door::WebDoor;

/// How long good-byes are given to arrive when the relay goes down; clients that miss theirs find
/// out by a stateless reset from the next relay, or by silence.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);

/// A session that was silent for so long has lost its client: live ones probe every 15 s [P-9.3].
const DESERTED_AFTER: Duration = Duration::from_secs(40);

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
    monitor: HostMonitor,
    shared: Rc<Shared>,
    addresses: Vec<SocketAddr>,
    authorise: Authorise,
    /// The way of answers to those who wait; as many as core has strangers at the most.
    answers: (
        mpsc::UnboundedSender<Answer>,
        mpsc::UnboundedReceiver<Answer>,
    ),
    guests: BTreeMap<u64, Guest>,
    doors: Vec<WebDoor>,
    /// Who takes in visitors; they go with the relay.
    doormen: JoinSet<()>,
}

/// Where mail servers take mail of one another (RFC 5321 §4.5.4.2).
const MAIL: u16 = 25;

/// What the tasks of all sessions need.
struct Shared {
    access: Access,
    own: OwnAddresses,
    limits: RelayLimits,
    lookups: Lookups,
    resolvers: Vec<SocketAddr>,
    mark: Option<u32>,
    served: Cell<u64>,
    /// Nobody is let in any more.
    is_draining: Cell<bool>,
    stream_ended: Notify,
    journal: Journal,
    exit: Option<Exit>,
    measuring: Measuring,
    front_doors: Rc<FrontDoors>,
}

impl Shared {
    /// Whether a client, of this user if it is one's, may reach `address`. What a translator of
    /// the network makes of it must be allowed as well.
    fn allows(&self, user: Option<&User>, address: SocketAddr) -> bool {
        let beyond = self.own.beyond(address.ip()).into_iter();
        let beyond = beyond.map(|ip| SocketAddr::new(ip, address.port()));
        let mut all = beyond.chain([address]);
        all.all(|address| self.allows_itself(user, address))
    }

    fn allows_itself(&self, user: Option<&User>, address: SocketAddr) -> bool {
        let ip = address.ip();
        let access = match (self.access, user) {
            (Access::Public, Some(user)) if user.may_reach_private() => Access::Private,
            (access, _) => access,
        };
        let by_relay = access.allows(ip)
            && match access {
                Access::Public => !self.own.is_near(ip),
                Access::Private => true,
                Access::Own => self.own.contains(ip) && !ip.to_canonical().is_loopback(),
            };
        // Whoever is let in could send mail in the relay's name, until nobody takes any from it.
        let is_mail = address.port() == MAIL && access != Access::Own;
        let may_mail = || user.is_some_and(|user| user.is_allowed_by_rule(address));
        by_relay && (!is_mail || may_mail()) && user.is_none_or(|user| user.may_reach(address))
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
        for door in &config.web_doors {
            config.monitor.on_link(&door.link(), false);
        }
        let mut relay = Self {
            engine,
            monitor: config.monitor,
            shared: Rc::new(Shared {
                access: config.access,
                own: OwnAddresses::new(config.own_addresses),
                limits: config.limits,
                lookups: Lookups::default(),
                resolvers: config.resolvers,
                mark: config.mark,
                served: Cell::new(0),
                is_draining: Cell::new(false),
                stream_ended: Notify::new(),
                journal: Journal::default(),
                exit: config.exit.map(Exit::new),
                measuring: Measuring::default(),
                front_doors: FrontDoors::new(
                    config.listen[0].ip(),
                    config.web_doors.iter().filter_map(WebDoor::port).collect(),
                ),
            }),
            addresses: Vec::new(),
            authorise: config.authorise,
            answers: mpsc::unbounded_channel(),
            guests: BTreeMap::new(),
            doors: config.web_doors,
            doormen: JoinSet::new(),
        };
        for local in config.listen {
            relay.listen_also(local)?;
        }
        Ok(relay)
    }

    /// Listens at one more UDP address.
    ///
    /// # Errors
    /// It is not to be had; the others are kept.
    pub fn listen_also(&mut self, local: SocketAddr) -> Result<(), UdpError> {
        let bind = UdpBind {
            interface: None,
            local,
        };
        let link = local.to_string();
        let socket = self.engine.bind(&link, bind, self.shared.mark, true)?;
        self.monitor.on_link(&link, false);
        self.addresses.extend(self.engine.local_addr(socket));
        Ok(())
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
        for door in self.doors.drain(..) {
            let doors = shared.front_doors.clone();
            self.doormen
                .spawn_local(door.serve(self.engine.clone(), doors));
        }
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

    /// Whether a client may have one more session: as many as its user says, or the relay.
    fn has_room_for(&self, key: PublicKey) -> bool {
        let own = self.guests.values().filter(|guest| guest.key() == key);
        own.count() < self.shared.limits.sessions
    }

    fn decide(&mut self, session: SessionId, key: PublicKey, verdict: Admission) {
        let verdict = match verdict {
            Admission::Admit(_) if self.shared.is_draining.get() => Err(CloseReason::ShuttingDown),
            Admission::Admit(None) => {
                if !self.has_room_for(key) {
                    self.end_deserted(|guest| guest.key() == key);
                }
                match self.has_room_for(key) {
                    true => Ok((None, None)),
                    false => Err(CloseReason::TooManySessions),
                }
            }
            Admission::Admit(Some(user)) => {
                if !user.may_have_another_session() {
                    self.end_deserted(|guest| guest.is_of(&user));
                }
                match user.count(What::Session) {
                    Some(counted) => Ok((Some(user), Some(counted))),
                    None => Err(CloseReason::TooManySessions),
                }
            }
            Admission::Refuse(reason) => Err(reason),
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

    /// Ends those sessions whose client has gone without a good-bye: they stand in the way of a
    /// new one.
    fn end_deserted(&self, stands_in_the_way: impl Fn(&Guest) -> bool) {
        for guest in self
            .guests
            .values()
            .filter(|guest| stands_in_the_way(guest))
        {
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
