//! The client's end: one session to the relay over all links, and what is carried through it.
//!
//! Owns the public face: a [`Client`] is cheap to clone and lives on the thread of its `LocalSet`.
//! Keeping the session alive is the supervisor's affair, sockets and paths of a link are the
//! link's. Invariant: when a call here fails, nothing of it is left in the session.

mod failure;
mod handshakes;
mod labelled;
mod left;
mod link;
mod opened;
mod roster;
mod supervisor;
mod wishes;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tabane_base::Duration;
use tabane_core::{
    ClassId, ClassRule, CloseReason, DatagramOrder, Endpoint, EndpointCounters, Identity, PathId,
    PathPolicy, PathSnapshot, PublicKey, SessionConfig, SessionSnapshot, StreamError,
};
use tabane_monitor::LinkEstimate;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::connection::{Carried, Connection, Ending};
use crate::engine::{Engine, SessionId};
use crate::flow::{Flow, order_for};
use crate::journal::{Happening, Journal};
use crate::label::{Label, LinkClass};
use crate::monitor::HostMonitor;
use crate::request::{Request, Status, Transport};
use crate::stream::Stream;
use crate::target::Target;
use crate::trace::SessionTrace;

pub use failure::{ConnectError, OpenError};
pub use link::{LinkBind, LinkError, LinkWish};
pub use opened::{Offer, TcpFlow, UdpFlow, Unserved};

use labelled::Labelled;
use left::Left;
use link::Link;
use supervisor::Supervisor;
use wishes::Wishes;

/// How long a new connection waits for a session before it fails: programs give a connection
/// 10 s or more, and a session over a new link is up within two.
const SESSION_WAIT: Duration = Duration::from_secs(10);

/// How long a good-bye is given to arrive. A relay that misses it forgets the session when it
/// has been idle for long; a person waits for the prompt meanwhile.
const GOODBYE_WAIT: Duration = Duration::from_millis(200);

/// What becomes of a connection that nothing was heard of yet while no link leads to the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// It waits until a link does, or the session is given up.
    #[default]
    Waits,
    /// It is given back at once.
    GivesBack,
}

/// A relay that a client may use.
#[derive(Clone)]
pub struct RelayPeer {
    /// What the user calls it.
    pub name: String,
    /// The key that it must prove.
    pub key: PublicKey,
    /// Where it listens, the preferred address first; none while its name is not known. See
    /// [`Client::set_relay_addrs`].
    pub addrs: Vec<SocketAddr>,
    /// What lets us in the first time.
    pub token: Option<Vec<u8>>,
}

/// What a client needs to know.
#[derive(Clone)]
pub struct ClientConfig {
    /// Our own key pair.
    pub identity: Identity,
    /// The relays that may be used, the preferred first.
    pub relays: Vec<RelayPeer>,
    /// The links to use; with none, one that the routing table chooses.
    pub links: Vec<LinkBind>,
    /// How the session behaves.
    pub session: SessionConfig,
    /// The host's monitor, which learns of every link what the session measures there.
    pub monitor: HostMonitor,
    /// How UDP flows are handed out, both ways, except those that only ask and answer: these are
    /// always handed out at once.
    pub udp_order: DatagramOrder,
    /// Secret randomness, used once.
    pub seed: [u8; 32],
    /// Numbers its sessions; clients that are shown together share one.
    pub numbers: SessionNumbers,
    /// Marks every packet (`SO_MARK`), so that our own hooks leave them alone.
    pub mark: Option<u32>,
}

/// Numbers sessions from 1 on. Clones go on counting together.
#[derive(Clone, Debug, Default)]
pub struct SessionNumbers(Arc<AtomicU64>);

impl SessionNumbers {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A session to a relay, kept up until [`close`](Self::close) is called or the last clone is
/// dropped.
#[derive(Clone)]
pub struct Client {
    shared: Rc<Shared>,
    guard: Rc<Guard>,
    /// What is opened by this clone bears it.
    label: Option<Label>,
}

/// Where a client stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// There is no session; a new one is being set up. Holds why the last one ended.
    Connecting(CloseReason),
    /// There is a session.
    Connected,
    /// It is over; no session will follow.
    Closed(CloseReason),
}

/// A client at one moment.
#[derive(Clone, Debug)]
pub struct ClientSnapshot {
    /// Where it stands.
    pub state: ClientState,
    /// The place, in the list of relays, of the one in use, or used last.
    pub relay: Option<usize>,
    /// Its links, in the order they were added.
    pub links: Vec<LinkSnapshot>,
    /// The session, where there is one.
    pub session: Option<SessionSnapshot>,
    /// Sessions so far, the present one included; more than one says that it was lost.
    pub sessions: u64,
    /// The number of the present session, or the last.
    pub number: u64,
    /// Counters over all sessions.
    pub counters: EndpointCounters,
}

/// One link at one moment.
#[derive(Clone, Debug)]
pub struct LinkSnapshot {
    /// Its name.
    pub name: String,
    /// How it may be used.
    pub policy: PathPolicy,
    /// The path over it, where there is one.
    pub path: Option<PathSnapshot>,
    /// What the host's monitor believes of it, by way of whatever session.
    pub estimate: Option<LinkEstimate>,
    /// Why it cannot be used, in one line.
    pub problem: Option<String>,
    /// The user wishes it not to be used at all.
    pub paused: bool,
}

/// Where the client stands, with what only this crate may know.
#[derive(Clone, Debug)]
enum Standing {
    Connecting(CloseReason),
    Connected(SessionId),
    Closed(CloseReason),
}

/// What the clones of a client and its supervisor share.
struct Shared {
    engine: Engine,
    config: ClientConfig,
    /// By relay: where it listens.
    addrs: RefCell<Vec<Vec<SocketAddr>>>,
    links: RefCell<Vec<Link>>,
    standing: watch::Sender<Standing>,
    /// There is a session with an active path.
    reach: watch::Sender<bool>,
    /// A link was added, or a relay found: whoever waits for better times should look again.
    links_changed: Notify,
    sessions: Cell<u64>,
    /// Of the present session, or the last.
    number: Cell<u64>,
    /// The relay of the present session, or the last one.
    relay: Cell<Option<usize>>,
    /// Where the flow of packets was begun last: it is no sign of anything under way.
    packets_on: Cell<Option<SessionId>>,
    wishes: RefCell<Wishes>,
    journal: Journal,
    /// By class, from 1 on.
    classes: RefCell<BTreeMap<ClassId, LinkClass>>,
    /// Streams that bear labels; some of them are over.
    labelled: RefCell<Labelled>,
    /// The present session's relay goes down, and there is no other: new connections had better not
    /// go by any.
    forsaken: Cell<bool>,
    /// Sessions whose relays go down, and which carry what they had. The oldest first.
    left: RefCell<Vec<Left>>,
}

/// Ends the session with the last clone.
struct Guard {
    shared: Rc<Shared>,
    supervisor: AbortHandle,
}

impl Client {
    /// Sets up a session over all links and waits until the relay has let us in.
    ///
    /// # Errors
    /// See [`ConnectError`]; each says what to do.
    ///
    /// # Panics
    /// Outside a `LocalSet`; see [`block_on`](crate::block_on).
    pub async fn connect(mut config: ClientConfig) -> Result<Self, ConnectError> {
        if config.links.is_empty() {
            config.links.push(LinkBind::unbound());
        }
        let shared = Shared::new(config)?;
        let mut supervisor = Supervisor::new(shared.clone());
        let won = supervisor.establish().await?;
        let session = supervisor.adopt(won);
        let task = tokio::task::spawn_local(supervisor.run(session));
        Ok(Self::guarded(shared, task.abort_handle()))
    }

    /// Begins to set up a session and goes on trying, over whatever links there are or will be
    /// (none at all to begin with, if there are none), until the relay refuses for good.
    ///
    /// # Errors
    /// A setting that cannot work, or the kernel gave no descriptors.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn start(config: ClientConfig) -> Result<Self, ConnectError> {
        let shared = Shared::new(config)?;
        let supervisor = Supervisor::new(shared.clone());
        let task = tokio::task::spawn_local(supervisor.run_from_nothing());
        Ok(Self::guarded(shared, task.abort_handle()))
    }

    fn guarded(shared: Rc<Shared>, supervisor: AbortHandle) -> Self {
        Self {
            guard: Rc::new(Guard {
                shared: shared.clone(),
                supervisor,
            }),
            shared,
            label: None,
        }
    }

    /// Whether the relay answers: there is a session, and at least one of its paths is active.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        *self.shared.reach.borrow()
    }

    /// Waits until [`is_reachable`](Self::is_reachable) says `wanted`.
    pub fn until_reachable(&self, wanted: bool) -> impl Future<Output = ()> + use<> {
        let mut reach = self.shared.reach.subscribe();
        async move {
            // Fails with the last clone, whose work is over.
            let _ = reach.wait_for(|reachable| *reachable == wanted).await;
        }
    }

    /// Carries a connection to `target` as [`carry_tcp`](Self::carry_tcp) does, but gives it back
    /// where there is no session, or the relay cannot reach the destination or may not; a
    /// destination that refuses is not the relay's fault and resets the connection. A relay that
    /// is silent is waited for as `silence` says.
    ///
    /// # Errors
    /// [`Unserved`] has the connection as it was and what was read from it.
    pub async fn carry_tcp_or_return(
        &self,
        offer: impl Into<Offer>,
        target: Target,
        silence: Silence,
    ) -> Result<Carried, Unserved> {
        let offer = offer.into();
        if silence == Silence::GivesBack && !self.is_reachable() {
            let why = OpenError::SessionLost;
            return Err(Unserved { offer, why });
        }
        let stream = match self.open_with(Transport::Tcp, target, &offer.early).await {
            Ok(stream) => stream,
            Err(why) => return Err(Unserved { offer, why }),
        };
        let Offer { tcp, mut early } = offer;
        let mut connection = Connection::new_returnable(stream, tcp);
        let ending = tokio::select! {
            opened = connection.opened() => opened.err(),
            () = self.until_reachable(false), if silence == Silence::GivesBack => {
                Some(Ending::SessionLost)
            }
        };
        let why = match ending {
            None | Some(Ending::Finished | Ending::ResetHere) => {
                return Ok(connection.carry().await);
            }
            Some(Ending::Refused(Status::Refused)) => return Ok(connection.refuse()),
            Some(Ending::Refused(status)) => OpenError::Refused(status),
            Some(Ending::ResetThere | Ending::SessionLost) => OpenError::SessionLost,
        };
        let (tcp, read) = connection.take_back();
        early.extend(read);
        let offer = Offer { tcp, early };
        Err(Unserved { offer, why })
    }

    /// Carries a connection to `target` until both directions have ended. Data flows at once,
    /// before the relay has connected; a refusal resets the connection.
    ///
    /// # Errors
    /// There is no session, or it takes no more connections; the connection has been reset.
    pub fn carry_tcp<O: Into<Offer>>(
        &self,
        offer: O,
        target: Target,
    ) -> impl Future<Output = Result<Carried, OpenError>> + use<O> {
        let client = self.clone();
        let Offer { tcp, early } = offer.into();
        async move {
            match client.open_with(Transport::Tcp, target, &early).await {
                Ok(stream) => Ok(Connection::new(stream, tcp, true).carry().await),
                Err(error) => {
                    // A reset tells the program that nothing went through.
                    let _ = tcp.set_zero_linger();
                    Err(error)
                }
            }
        }
    }

    /// Has the relay connect to `target`, for callers that must tell what came of it.
    ///
    /// # Errors
    /// The relay refused, or there is no session.
    pub async fn open_tcp(&self, target: Target) -> Result<TcpFlow, OpenError> {
        let again = target.clone();
        match self.try_open_tcp(target).await {
            // Nothing was sent yet, so the next session may try.
            Err(OpenError::SessionLost) => self.try_open_tcp(again).await,
            result => result,
        }
    }

    async fn try_open_tcp(&self, target: Target) -> Result<TcpFlow, OpenError> {
        let stream = self.open(Transport::Tcp, target).await?;
        TcpFlow::confirm(self.clone(), stream).await
    }

    /// Begins a UDP flow to `target`. A refusal by the relay shows when receiving.
    ///
    /// # Errors
    /// There is no session, or it takes no more flows.
    pub async fn open_udp(&self, target: Target) -> Result<UdpFlow, OpenError> {
        let order = order_for(&target, self.shared.config.udp_order);
        let stream = self.open(Transport::Udp, target).await?;
        Ok(UdpFlow::new(self.clone(), Flow::new(stream, Some(order))))
    }

    /// Measures every link that has a path, both ways, by `trains` trains of packets, whatever
    /// the budget for probes; what comes of it shows in [`snapshot`](Self::snapshot). Links called
    /// metered are left out.
    pub fn measure(&self, trains: u32) {
        let shared = &self.shared;
        let Some(session) = shared.session() else {
            return;
        };
        shared.engine.visit(session, |visit| {
            for link in shared.links.borrow().iter() {
                if let Some(path) = link.path() {
                    // A path that core has given up needs no measuring.
                    let _ = visit.session.measure_path(visit.now, path, trains);
                }
            }
            visit.touch();
        });
    }

    /// Begins the flow of all IP packets that are neither TCP nor UDP, each datagram one of them.
    /// The relay serves echo requests ("ping") and drops the rest.
    ///
    /// # Errors
    /// As [`open_udp`](Self::open_udp).
    pub async fn open_packets(&self) -> Result<UdpFlow, OpenError> {
        let stream = self.open(Transport::Packets, Target::Anywhere).await?;
        let order = Some(DatagramOrder::AtOnce);
        Ok(UdpFlow::new(self.clone(), Flow::new(stream, order)))
    }

    /// Uses one more link from here on.
    ///
    /// # Errors
    /// A link of this name is in use already. One that cannot be used yet is no error: it is
    /// tried again and again, and [`snapshot`](Self::snapshot) says what is wrong.
    pub fn add_link(&self, mut bind: LinkBind) -> Result<(), LinkError> {
        let shared = &self.shared;
        let mut links = shared.links.borrow_mut();
        if links.iter().any(|link| link.name() == bind.name) {
            return Err(LinkError::InUse { name: bind.name });
        }
        bind.policy.weight = shared
            .wishes
            .borrow_mut()
            .weigh(&bind.name, bind.policy.weight);
        shared
            .config
            .monitor
            .on_link(&bind.name, bind.policy.metered);
        shared.journal.record(Happening::LinkAdded {
            link: bind.name.clone(),
        });
        let paused = shared.wishes.borrow().is_paused(&bind.name);
        links.push(Link::new(bind).with_pause(paused));
        shared.links_changed.notify_one();
        Ok(())
    }

    /// Where a relay is found from here on, by its place in the list; paths that there are stay.
    pub fn set_relay_addrs(&self, relay: usize, addrs: Vec<SocketAddr>) {
        if let Some(known) = self.shared.addrs.borrow_mut().get_mut(relay) {
            *known = addrs;
            self.shared.links_changed.notify_one();
        }
    }

    /// Where each relay is found, by its place in the list.
    #[must_use]
    pub fn relay_addrs(&self) -> Vec<Vec<SocketAddr>> {
        self.shared.addrs.borrow().clone()
    }

    /// Stops using a link; what was under way on it moves to the others. `false` where there is
    /// no link of this name.
    pub fn remove_link(&self, name: &str) -> bool {
        let mut links = self.shared.links.borrow_mut();
        let Some(index) = links.iter().position(|link| link.name() == name) else {
            return false;
        };
        let link = links.remove(index);
        self.shared.config.monitor.on_link_gone(name);
        link.release(&self.shared.engine, self.shared.session());
        self.shared.withdraw_from_left(name);
        self.shared.journal.record(Happening::LinkRemoved {
            link: name.to_owned(),
        });
        true
    }

    /// Changes how a link may be used, in both directions, at once and for sessions to come. A
    /// weight that was [wished](Self::wish_link) stays unless this is another than it was put over.
    ///
    /// # Errors
    /// There is no link of this name, or the policy is out of range.
    pub fn set_link_policy(&self, name: &str, policy: PathPolicy) -> Result<(), LinkError> {
        let weight = self.shared.wishes.borrow_mut().weigh(name, policy.weight);
        self.apply_policy(name, PathPolicy { weight, ..policy })
    }

    fn apply_policy(&self, name: &str, policy: PathPolicy) -> Result<(), LinkError> {
        let shared = &self.shared;
        let mut links = shared.links.borrow_mut();
        let Some(link) = links.iter_mut().find(|link| link.name() == name) else {
            return Err(LinkError::Unknown {
                name: name.to_owned(),
            });
        };
        let set = link.set_policy(&shared.engine, shared.session(), policy);
        set.map_err(|source| LinkError::Policy {
            name: name.to_owned(),
            source,
        })?;
        shared.set_policy_in_left(name, policy);
        shared.config.monitor.on_link(name, policy.metered);
        Ok(())
    }

    /// Follows a wish of the user's for a link, at once, and also when it goes and comes back. A
    /// paused one gives up its path; what was under way on it moves to the others.
    ///
    /// # Errors
    /// There is no link of this name, or the weight is no share.
    pub fn wish_link(&self, name: &str, wish: LinkWish) -> Result<(), LinkError> {
        let shared = &self.shared;
        let policy = |links: &[Link]| {
            let link = links.iter().find(|link| link.name() == name);
            link.map(Link::policy).unwrap_or_default()
        };
        let mut policy = policy(&shared.links.borrow());
        let before = policy.weight;
        policy.weight = wish.weight.unwrap_or(before);
        self.apply_policy(name, policy)?;
        let mut wishes = shared.wishes.borrow_mut();
        wishes.add(name, wish, before);
        let paused = wishes.is_paused(name);
        let mut links = shared.links.borrow_mut();
        if let Some(link) = links.iter_mut().find(|link| link.name() == name) {
            link.pause(paused, &shared.engine, shared.session());
        }
        if paused {
            shared.withdraw_from_left(name);
        }
        shared.journal.record(Happening::LinkPolicy {
            link: name.to_owned(),
            weight: policy.weight,
            paused,
        });
        shared.links_changed.notify_one();
        Ok(())
    }

    /// The same client; what is opened through this copy bears `label`.
    #[must_use]
    pub fn labelled(&self, label: Option<Label>) -> Self {
        Self {
            label,
            ..self.clone()
        }
    }

    /// Says which links carry what belongs to a class, in both directions, at once and for sessions
    /// to come. What a class may not use is not used from the first byte on.
    pub fn set_class(&self, class: ClassId, links: LinkClass) {
        let shared = &self.shared;
        shared.classes.borrow_mut().insert(class, links);
        if let Some(session) = shared.session() {
            shared.tell_classes(session, &left::paths(&shared.links.borrow()));
        }
        shared.tell_classes_to_left();
    }

    /// Has everything under way follow what its label says now.
    pub fn follow_labels(&self) {
        let shared = &self.shared;
        let mut labelled = shared.labelled.borrow_mut();
        labelled.streams.retain(|(session, stream, label)| {
            let Some(label) = label.upgrade() else {
                return false;
            };
            let class = label.treatment().class;
            let followed = shared.engine.visit(*session, |visit| {
                visit.session.set_stream_class(visit.now, *stream, class);
                visit.touch();
            });
            followed.is_some()
        });
    }

    /// What happened lately.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.clone()
    }

    /// Has the session recorded, packet by packet, until the result is dropped. `None` when there
    /// is none, or somebody has it recorded already.
    #[must_use]
    pub fn trace(&self) -> Option<SessionTrace> {
        SessionTrace::start(&self.shared.engine, self.shared.session()?)
    }

    /// What there is to know at this moment.
    #[must_use]
    pub fn snapshot(&self) -> ClientSnapshot {
        let shared = &self.shared;
        let session = shared
            .session()
            .and_then(|session| shared.engine.snapshot(session));
        let links = shared.links.borrow();
        ClientSnapshot {
            state: match &*shared.standing.borrow() {
                Standing::Connecting(reason) => ClientState::Connecting(reason.clone()),
                Standing::Connected(_) => ClientState::Connected,
                Standing::Closed(reason) => ClientState::Closed(reason.clone()),
            },
            relay: shared.relay.get(),
            links: links
                .iter()
                .map(|link| link.snapshot(session.as_ref(), &shared.config.monitor))
                .collect(),
            session,
            sessions: shared.sessions.get(),
            number: shared.number.get(),
            counters: shared.engine.counters(),
        }
    }

    /// Waits until the client is over for good, and says why: it was closed, or the relay does
    /// not want it any more. Lost sessions are replaced and do not count.
    pub fn closed(&self) -> impl Future<Output = CloseReason> + use<> {
        let mut standing = self.shared.standing.subscribe();
        async move {
            let closed = standing
                .wait_for(|standing| matches!(standing, Standing::Closed(_)))
                .await;
            match closed.as_deref() {
                Ok(Standing::Closed(reason)) => reason.clone(),
                // The last clone was dropped.
                Ok(_) | Err(_) => CloseReason::Finished,
            }
        }
    }

    /// Says good-bye to the relay and ends everything.
    pub async fn close(self) {
        self.guard.supervisor.abort();
        let shared = &self.shared;
        let session = shared.session();
        shared
            .standing
            .send_replace(Standing::Closed(CloseReason::Finished));
        shared.end_left(0);
        let Some(session) = session else {
            return;
        };
        shared.say_goodbye(session);
        let forgotten = async {
            while shared.engine.is_kept(session) {
                shared.engine.notice().await;
            }
        };
        if timeout(GOODBYE_WAIT, forgotten).await.is_err() {
            tracing::debug!("the relay did not confirm the good-bye");
        }
    }

    /// Opens a stream on the present session, or the next one, and writes its request.
    async fn open(&self, transport: Transport, target: Target) -> Result<Stream, OpenError> {
        self.open_with(transport, target, &[]).await
    }

    /// The same; sends `early` right behind the request.
    async fn open_with(
        &self,
        transport: Transport,
        target: Target,
        early: &[u8],
    ) -> Result<Stream, OpenError> {
        let shared = &self.shared;
        let session = shared.wait_for_session().await?;
        let id = shared
            .engine
            .visit(session, |visit| {
                let id = visit.session.open_stream(visit.now)?;
                if let Some(label) = &self.label {
                    let class = label.treatment().class;
                    visit.session.set_stream_class(visit.now, id, class);
                }
                Ok::<_, StreamError>(id)
            })
            .ok_or(OpenError::SessionLost)??;
        if transport == Transport::Packets {
            shared.packets_on.set(Some(session));
        }
        let mut stream = Stream::new(shared.engine.clone(), session, id);
        if let Some(label) = &self.label {
            shared.labelled.borrow_mut().add(session, id, label);
            stream.label = Some(label.clone());
        }
        let mut preface = Vec::new();
        Request { transport, target }.emit(&mut preface);
        preface.extend_from_slice(early);
        stream
            .write_all(&preface)
            .await
            .map_err(|_| OpenError::SessionLost)?;
        Ok(stream)
    }
}

impl Shared {
    fn new(config: ClientConfig) -> Result<Rc<Self>, ConnectError> {
        let endpoint =
            Endpoint::client(config.identity.clone(), config.session.clone(), config.seed)?;
        let engine =
            Engine::start(endpoint, config.monitor.clone()).map_err(ConnectError::Runtime)?;
        for link in &config.links {
            config.monitor.on_link(&link.name, link.policy.metered);
        }
        let links = config.links.iter().cloned().map(Link::new).collect();
        Ok(Rc::new(Self {
            engine,
            addrs: RefCell::new(config.relays.iter().map(|it| it.addrs.clone()).collect()),
            links: RefCell::new(links),
            standing: watch::Sender::new(Standing::Connecting(CloseReason::Finished)),
            reach: watch::Sender::new(false),
            links_changed: Notify::new(),
            sessions: Cell::new(0),
            number: Cell::new(0),
            relay: Cell::new(None),
            packets_on: Cell::new(None),
            wishes: RefCell::default(),
            journal: Journal::default(),
            classes: RefCell::default(),
            labelled: RefCell::default(),
            forsaken: Cell::new(false),
            left: RefCell::default(),
            config,
        }))
    }

    fn session(&self) -> Option<SessionId> {
        match *self.standing.borrow() {
            Standing::Connected(session) => Some(session),
            Standing::Connecting(_) | Standing::Closed(_) => None,
        }
    }

    async fn wait_for_session(&self) -> Result<SessionId, OpenError> {
        if self.config.relays.len() > 1 && !self.forsaken.get() {
            // A silent session may be about to be replaced by another relay's.
            let mut reach = self.reach.subscribe();
            let _ = timeout(SESSION_WAIT, reach.wait_for(|reachable| *reachable)).await;
        }
        if let Some(session) = self.session() {
            return Ok(session);
        }
        let mut standing = self.standing.subscribe();
        let settled = standing.wait_for(|it| !matches!(it, Standing::Connecting(_)));
        // Whatever came of waiting, the standing says it.
        let _ = timeout(SESSION_WAIT, settled).await;
        match &*self.standing.borrow() {
            Standing::Connected(session) => Ok(*session),
            Standing::Connecting(reason) | Standing::Closed(reason) => {
                Err(OpenError::NoSession(reason.clone()))
            }
        }
    }

    /// Tells a session by which of its paths each class may go. To be called whenever classes or
    /// paths have changed.
    fn tell_classes(&self, session: SessionId, links: &[(String, PathId)]) {
        let classes = self.classes.borrow();
        if classes.is_empty() {
            return;
        }
        self.engine.visit(session, |visit| {
            for (
                class,
                LinkClass {
                    links: names,
                    redundant,
                },
            ) in classes.iter()
            {
                let paths = names.as_ref().map(|names| {
                    let allowed = links.iter().filter(|(link, _)| names.contains(link));
                    allowed.map(|(_, path)| *path).collect()
                });
                let redundant = *redundant;
                visit
                    .session
                    .set_class(visit.now, *class, ClassRule { paths, redundant });
            }
            visit.touch();
        });
    }

    fn say_goodbye(&self, session: SessionId) {
        self.engine.visit(session, |visit| {
            visit.session.close(visit.now, CloseReason::Finished);
            visit.touch();
        });
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.supervisor.abort();
        self.shared.end_left(0);
        if let Some(session) = self.shared.session() {
            self.shared.say_goodbye(session);
        }
        self.shared
            .standing
            .send_replace(Standing::Closed(CloseReason::Finished));
    }
}
