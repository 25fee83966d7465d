//! The relay's end: lets sessions in and connects out on behalf of their streams.
//!
//! Owns the relay's sockets, who is let in, and the limits of each session. How a destination is
//! reached and how a flow is served have files of their own. Nothing a client sends ends more than
//! its own session.

mod destination;
mod guest;
mod packets;
mod udp;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{
    CloseReason, ConfigError, Endpoint, EndpointCounters, Event, Identity, PublicKey, ServerConfig,
    SessionConfig, SessionSnapshot,
};
use tabane_linux::{UdpBind, UdpError};
use tokio::time::timeout;

use crate::access::Access;
use crate::engine::{Engine, Notice, SessionId};
use crate::monitor::HostMonitor;
use guest::Guest;

/// How long good-byes are given to arrive when the relay goes down; clients that miss theirs find
/// out by a stateless reset from the next relay, or by silence.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);

/// What a relay needs to know.
pub struct RelayConfig {
    /// The relay's own key pair; join strings pin its public key.
    pub identity: Identity,
    /// UDP addresses to serve; `[::]` serves IPv4 as well.
    pub listen: Vec<SocketAddr>,
    /// Which destinations clients may reach.
    pub access: Access,
    /// How many of what one session may have.
    pub limits: RelayLimits,
    /// Limits of the endpoint as a whole.
    pub server: ServerConfig,
    /// How sessions behave.
    pub session: SessionConfig,
    /// Decides who is let in, by proven key and the token shown.
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
}

/// Decides on a client by its proven key and the token that it shows.
pub type Authorise = Box<dyn FnMut(PublicKey, Option<&[u8]>) -> Verdict>;

/// Whether a client is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may have a session.
    Admit,
    /// It may not.
    Refuse,
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
    guests: BTreeMap<u64, Guest>,
}

/// What the tasks of all sessions need.
struct Shared {
    access: Access,
    limits: RelayLimits,
    resolvers: Vec<SocketAddr>,
    mark: Option<u32>,
    served: Cell<u64>,
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
                limits: config.limits,
                resolvers: config.resolvers,
                mark: config.mark,
                served: Cell::new(0),
            }),
            addresses,
            authorise: config.authorise,
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
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                notice = self.engine.notice() => self.handle_notice(notice),
                () = &mut shutdown => break,
            }
        }
        self.say_goodbye().await;
    }

    fn handle_notice(&mut self, notice: Notice) {
        let Notice::Session(session, event) = notice else {
            return;
        };
        match event {
            Event::Authorise { key, token } => self.authorise(session, key, token.as_deref()),
            Event::StreamOpened(stream) => {
                if let Some(guest) = self.guests.get(&session.serial()) {
                    guest.serve(stream);
                }
            }
            Event::Closed(reason) => {
                if let Some(guest) = self.guests.remove(&session.serial()) {
                    guest.log_closed(&reason);
                }
            }
            // Which path carries what is core's affair; streams and datagrams have their tasks.
            _ => {}
        }
    }

    fn authorise(&mut self, session: SessionId, key: PublicKey, token: Option<&[u8]>) {
        let verdict = (self.authorise)(key, token);
        self.engine.visit(session, |visit| {
            match verdict {
                Verdict::Admit => visit.session.admit(visit.now),
                Verdict::Refuse => visit.session.close(visit.now, CloseReason::Unauthorised),
            }
            visit.touch();
        });
        match verdict {
            Verdict::Admit => {
                self.shared.served.set(self.shared.served.get() + 1);
                let guest = Guest::new(self.engine.clone(), self.shared.clone(), session, key);
                self.guests.insert(session.serial(), guest);
            }
            Verdict::Refuse => tracing::info!(client = %key, "refused"),
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
