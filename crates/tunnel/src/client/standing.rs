//! Where a client stands: what its clones and its supervisor have in common.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use tabane_base::Duration;
use tabane_core::{ClassId, ClassRule, CloseReason, Endpoint, PathId, PublicKey};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::arrivals::Arrivals;
use super::config::{ClientConfig, RelayPeer};
use super::dials::Dials;
use super::failure::{ConnectError, OpenError};
use super::labelled::Labelled;
use super::link::{Link, LinkError};
use super::packets::PacketsCarried;
use super::roster::RelayMerit;
use super::wishes::Wishes;
use crate::engine::{Engine, SessionId};
use crate::journal::Journal;
use crate::label::LinkClass;

/// How long a new connection waits for a session before it fails: programs give a connection
/// 10 s or more, and a session over a new link is up within two.
const SESSION_WAIT: Duration = Duration::from_secs(10);

/// Where the client stands, with what only this crate may know.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    Connecting(CloseReason),
    Connected(SessionId),
    Closed(CloseReason),
}

/// A session whose relay goes down.
pub(super) struct Left {
    pub(super) session: SessionId,
    pub(super) number: u64,
    pub(super) relay: Option<usize>,
    /// By link.
    pub(super) paths: Vec<(String, PathId)>,
}

/// What the clones of a client and its supervisor share.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) config: ClientConfig,
    /// The relays that are known; the place of each is its own for good.
    pub(super) relays: RefCell<Vec<RelayPeer>>,
    /// What is known of each, for choosing.
    pub(super) merits: RefCell<Vec<RelayMerit>>,
    /// By relay: where it listens.
    pub(super) addrs: RefCell<Vec<Vec<SocketAddr>>>,
    pub(super) links: RefCell<Vec<Link>>,
    pub(super) standing: watch::Sender<Standing>,
    /// There is a session with an active path.
    pub(super) reach: watch::Sender<bool>,
    /// When there last ceased to be one, where it may come back of itself.
    pub(super) reach_lost_at: Cell<Option<Instant>>,
    /// A link was added, or a relay found: whoever waits for better times should look again.
    pub(super) links_changed: Notify,
    /// A link may be carried otherwise.
    pub(super) carriers_changed: Notify,
    /// What carries a link may be tried earlier.
    pub(super) recalled: Notify,
    pub(super) sessions: Cell<u64>,
    /// Of the present session, or the last.
    pub(super) number: Cell<u64>,
    /// The relay of the present session, or the last one.
    pub(super) relay: Cell<Option<usize>>,
    /// Where the flow of packets was begun last: it is no sign of anything under way.
    pub(super) packets_on: Cell<Option<SessionId>>,
    /// The session whose relay tells of others' routes, for which it has one stream.
    pub(super) told_on: Cell<Option<SessionId>>,
    /// What the flow of packets has carried, where there is one.
    pub(super) packets: RefCell<Weak<RefCell<PacketsCarried>>>,
    /// The session whose relay has said whether it takes what says whom it is from.
    pub(super) takes_sources: watch::Sender<Option<(SessionId, bool)>>,
    pub(super) wishes: RefCell<Wishes>,
    pub(super) journal: Journal,
    /// By class, from 1 on.
    pub(super) classes: RefCell<BTreeMap<ClassId, LinkClass>>,
    /// Streams that bear labels; some of them are over.
    pub(super) labelled: RefCell<Labelled>,
    /// The present session's relay goes down, and there is no other: new connections had better not
    /// go by any.
    pub(super) forsaken: Cell<bool>,
    /// Sessions whose relays go down, and which carry what they had. The oldest first.
    pub(super) left: RefCell<Vec<Left>>,
    pub(super) dials: Rc<Dials>,
    /// Who waits for visitors.
    pub(super) arrivals: RefCell<Arrivals>,
}

impl Shared {
    pub(super) fn new(config: ClientConfig) -> Result<Rc<Self>, ConnectError> {
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
            merits: RefCell::new(config.known_merits()),
            relays: RefCell::new(config.relays.clone()),
            addrs: RefCell::new(config.relays.iter().map(|it| it.addrs.clone()).collect()),
            links: RefCell::new(links),
            standing: watch::Sender::new(Standing::Connecting(CloseReason::Finished)),
            reach: watch::Sender::new(false),
            reach_lost_at: Cell::new(None),
            links_changed: Notify::new(),
            carriers_changed: Notify::new(),
            recalled: Notify::new(),
            sessions: Cell::new(0),
            number: Cell::new(0),
            relay: Cell::new(None),
            packets_on: Cell::new(None),
            told_on: Cell::new(None),
            packets: RefCell::default(),
            takes_sources: watch::Sender::new(None),
            wishes: RefCell::default(),
            journal: Journal::default(),
            classes: RefCell::default(),
            labelled: RefCell::default(),
            forsaken: Cell::new(false),
            left: RefCell::default(),
            dials: Rc::default(),
            arrivals: RefCell::default(),
            config,
        }))
    }

    /// A relay by its place.
    pub(super) fn peer(&self, relay: usize) -> RelayPeer {
        self.relays.borrow()[relay].clone()
    }

    /// A relay's name and key.
    pub(super) fn called(&self, relay: usize) -> (String, PublicKey) {
        let peer = self.peer(relay);
        (peer.name, peer.key)
    }

    /// Whether more than one may be used.
    pub(super) fn has_several(&self) -> bool {
        let merits = self.merits.borrow();
        merits
            .iter()
            .filter(|merit| !merit.is_gone)
            .nth(1)
            .is_some()
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        match *self.standing.borrow() {
            Standing::Connected(session) => Some(session),
            Standing::Connecting(_) | Standing::Closed(_) => None,
        }
    }

    pub(super) async fn wait_for_session(&self) -> Result<SessionId, OpenError> {
        let deadline = Instant::now() + SESSION_WAIT;
        if self.has_several() && !self.forsaken.get() {
            // A silent session may be about to be replaced by another relay's.
            let mut reach = self.reach.subscribe();
            let _ = timeout_at(deadline, reach.wait_for(|reachable| *reachable)).await;
        }
        // One that has ended is replaced as soon as the supervisor hears of it.
        let is_settled = |standing: &Standing| match standing {
            Standing::Connected(session) => self.engine.is_live(*session),
            Standing::Connecting(_) => false,
            Standing::Closed(_) => true,
        };
        let mut standing = self.standing.subscribe();
        // Whatever came of waiting, the standing says it.
        let _ = timeout_at(deadline, standing.wait_for(is_settled)).await;
        match &*self.standing.borrow() {
            Standing::Connected(session) => Ok(*session),
            Standing::Connecting(reason) | Standing::Closed(reason) => {
                Err(OpenError::NoSession(reason.clone()))
            }
        }
    }

    /// Tells a session by which of its paths each class may go. To be called whenever classes or
    /// paths have changed.
    pub(super) fn tell_classes(&self, session: SessionId, links: &[(String, PathId)]) {
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

    /// Has a link's sockets and address pairs be those of the relays as they are now.
    pub(super) fn prepare(&self, link: &mut Link) -> Result<(), LinkError> {
        let relays = self.relays.borrow();
        let ports: Vec<_> = relays.iter().map(|it| it.udp_ports.as_slice()).collect();
        link.prepare(&self.engine, &self.addrs.borrow(), &ports, self.config.mark)
    }

    pub(super) fn say_goodbye(&self, session: SessionId) {
        self.engine.visit(session, |visit| {
            visit.session.close(visit.now, CloseReason::Finished);
            visit.touch();
        });
    }
}
