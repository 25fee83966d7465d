//! UDP flows through the tunnel, by whatever names them on this side.
//!
//! UDP has no connections, so somebody must say when a flow begins and ends: it begins with the
//! first datagram of a key and ends when nothing has passed for a while, when the relay ends it, or
//! when too many are open (the longest silent goes). Owns that table, and going without the session
//! where that will never answer and the route allows it; where datagrams come from and where
//! answers go is the user's affair.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use anyhow::Result;
use tabane_base::Duration;
use tabane_tunnel::{Client, FlowError, Label, OpenError, Silence, Status, Target, UdpFlow};
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::carrier::report;
use crate::far_ends::FarEnds;
use crate::plain;
use crate::plain_meter::Meter;
use crate::plain_way::Passage;

/// Flows at once. Each is a stream of the session, which has 4,096 in all, most of them for TCP.
const MAX_FLOWS: usize = 1_024;
/// Datagrams kept until a flow is open, or has answered: more than a program sends before it
/// expects an answer.
const MAX_FIRST: usize = 16;
/// Bytes of them.
const MAX_FIRST_BYTES: usize = 64 * 1024;
/// The longest datagram there is.
const MAX_DATAGRAM: usize = 65_535;
/// Silence that ends a flow (RFC 4787 REQ-5 asks NATs for 2 min; the relay ends flows at 60 s).
const IDLE: Duration = Duration::from_secs(60);
/// The same for DNS, where a flow is one question.
const IDLE_RESOLVER: Duration = Duration::from_secs(10);

/// Takes the answers of one flow to the program.
pub(crate) type Deliver = Box<dyn Fn(&[u8])>;

/// Where a connection or a flow goes.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Through the session.
    pub(crate) target: Target,
    /// Without it, where the session cannot serve; `None` where that is not to be.
    pub(crate) plain: Option<SocketAddr>,
    /// The session is not even asked.
    pub(crate) stays_here: bool,
    /// Whether a relay that is silent is waited for.
    pub(crate) silence: Silence,
    /// How the session treats it.
    pub(crate) label: Option<Label>,
}

impl From<Target> for Route {
    fn from(target: Target) -> Self {
        Self {
            target,
            plain: None,
            stays_here: false,
            silence: Silence::Waits,
            label: None,
        }
    }
}

/// The flows of one entrance; they end with it.
pub(crate) struct Associations<K> {
    far_ends: FarEnds,
    table: Rc<RefCell<Table<K>>>,
}

type Table<K> = BTreeMap<K, Rc<Association>>;

struct Association {
    way: RefCell<Way>,
    /// What the program has sent, while it may have to be sent again.
    first: RefCell<Option<Vec<Vec<u8>>>>,
    last_used_at: Cell<Instant>,
    /// Carries the flow; aborting it ends the flow. Set right after it is started.
    task: OnceCell<AbortHandle>,
}

enum Way {
    /// Waits for the relay.
    Opening,
    Session(Rc<UdpFlow>),
    Plain(Rc<UdpSocket>, Meter),
}

/// What became of a flow through the session.
enum Outcome {
    Over,
    /// It never answered, and will not.
    Unserved,
}

impl<K: Ord + Clone + 'static> Associations<K> {
    /// No flows yet, through `far_ends`.
    pub(crate) fn new(far_ends: FarEnds) -> Self {
        Self {
            far_ends,
            table: Rc::default(),
        }
    }

    /// Sends `payload` on the flow called `key`. If that is new, `begin` says where it goes and
    /// what gets the answers. Must be called within the `LocalSet` of the client.
    pub(crate) fn send(&self, key: &K, payload: &[u8], begin: impl FnOnce() -> (Route, Deliver)) {
        if let Some(association) = self.table.borrow().get(key) {
            association.send(payload);
            return;
        }
        let (route, deliver) = begin();
        let association = Rc::new(Association::new(payload));
        self.make_room();
        self.table
            .borrow_mut()
            .insert(key.clone(), association.clone());
        let table = Rc::downgrade(&self.table);
        let (far_ends, key, own) = (self.far_ends.clone(), key.clone(), association.clone());
        let task = tokio::task::spawn_local(async move {
            carry(&far_ends, &own, route, deliver).await;
            forget(&table, &key, &own);
        });
        // Not set before: the association is new.
        let _ = association.task.set(task.abort_handle());
    }

    /// Ends the longest silent flow where there are too many.
    fn make_room(&self) {
        let mut table = self.table.borrow_mut();
        if table.len() < MAX_FLOWS {
            return;
        }
        let oldest = table
            .iter()
            .min_by_key(|(_, association)| association.last_used_at.get());
        if let Some(key) = oldest.map(|(key, _)| key.clone())
            && let Some(association) = table.remove(&key)
        {
            association.end();
        }
    }
}

impl<K> Drop for Associations<K> {
    fn drop(&mut self) {
        self.table
            .borrow()
            .values()
            .for_each(|association| association.end());
    }
}

impl Association {
    fn new(first: &[u8]) -> Self {
        Self {
            way: RefCell::new(Way::Opening),
            first: RefCell::new(Some(vec![first.to_vec()])),
            last_used_at: Cell::new(Instant::now()),
            task: OnceCell::new(),
        }
    }

    fn end(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    fn send(&self, payload: &[u8]) {
        self.last_used_at.set(Instant::now());
        if let Some(first) = &mut *self.first.borrow_mut() {
            let bytes: usize = first.iter().map(Vec::len).sum();
            if first.len() < MAX_FIRST && bytes + payload.len() <= MAX_FIRST_BYTES {
                first.push(payload.to_vec());
            }
        }
        self.way.borrow().send(payload);
    }

    /// Sends by `way` from here on, beginning with what was sent first; `keep` it for once more.
    fn go(&self, way: Way, keep: bool) {
        let first = match keep {
            true => self.first.borrow().clone(),
            false => self.first.take(),
        };
        for payload in first.into_iter().flatten() {
            way.send(&payload);
        }
        self.way.replace(way);
    }

    fn on_answer(&self) {
        self.last_used_at.set(Instant::now());
        self.first.take();
    }

    /// Waits until nothing has passed for `idle`.
    async fn expired(&self, idle: Duration) {
        loop {
            let expires_at = self.last_used_at.get() + idle;
            if expires_at <= Instant::now() {
                return;
            }
            sleep_until(expires_at).await;
        }
    }
}

impl Way {
    fn send(&self, payload: &[u8]) {
        match self {
            Self::Opening => {}
            // Lost like any datagram; what ended the flow shows when receiving.
            Self::Session(flow) => drop(flow.send(payload)),
            Self::Plain(socket, meter) => {
                if socket.try_send(payload).is_ok() {
                    meter.on_datagram(payload);
                }
            }
        }
    }
}

/// Carries the flow until it is over.
async fn carry(far_ends: &FarEnds, association: &Association, route: Route, deliver: Deliver) {
    let idle = match route.target {
        Target::Resolver => IDLE_RESOLVER,
        Target::Address(_) | Target::Name { .. } | Target::Anywhere => IDLE,
    };
    let through = async {
        if route.stays_here {
            return Outcome::Unserved;
        }
        if let Some((peer, own)) = far_ends.straight(&route.target, route.label.as_ref()).await {
            let peer = peer.labelled(route.label.clone());
            let outcome = through_session(&peer, association, own, Silence::GivesBack, &deliver);
            if matches!(outcome.await, Outcome::Over) {
                return Outcome::Over;
            }
        }
        let Some(relay) = far_ends.relay() else {
            return Outcome::Unserved;
        };
        let relay = relay.labelled(route.label.clone());
        let target = route.target.clone();
        through_session(&relay, association, target, route.silence, &deliver).await
    };
    tokio::select! {
        outcome = through => match (outcome, route.plain) {
            (Outcome::Unserved, Some(dest)) => {
                let plainly = plainly(far_ends, association, dest, route.label.as_ref(), &deliver);
                tokio::select! {
                    Err(error) = plainly => tracing::debug!(%dest, "a UDP flow failed: {error:#}"),
                    () = association.expired(idle) => {}
                }
            }
            (Outcome::Unserved | Outcome::Over, _) => {}
        },
        () = association.expired(idle) => {}
    }
}

/// Opens the flow, sends what waits, and delivers answers until the flow is over.
async fn through_session(
    client: &Client,
    association: &Association,
    target: Target,
    silence: Silence,
    deliver: &Deliver,
) -> Outcome {
    let gives_back = silence == Silence::GivesBack;
    if gives_back && !client.is_reachable() {
        return Outcome::Unserved;
    }
    let told = target.clone();
    let flow = match client.open_udp(target).await {
        Ok(flow) => Rc::new(flow),
        Err(error) => {
            report(&told, &error);
            return Outcome::Unserved;
        }
    };
    association.go(Way::Session(flow.clone()), true);
    let is_unanswered = || association.first.borrow().is_some();
    loop {
        tokio::select! {
            received = flow.recv() => match received {
                Ok(payload) => {
                    association.on_answer();
                    deliver(&payload);
                }
                Err(error) => {
                    tracing::debug!(%error, "a UDP flow ended");
                    let is_unserved = match error {
                        FlowError::Refused(status) => {
                            report(&told, &OpenError::Refused(status));
                            status != Status::Refused
                        }
                        FlowError::SessionLost => true,
                        // Served, and nobody answered.
                        FlowError::Ended | FlowError::TooLarge => false,
                    };
                    return match is_unanswered() && is_unserved {
                        true => Outcome::Unserved,
                        false => Outcome::Over,
                    };
                }
            },
            () = client.until_reachable(false), if gives_back && is_unanswered() => {
                return Outcome::Unserved;
            }
        }
    }
}

/// The same without the session.
async fn plainly(
    far_ends: &FarEnds,
    association: &Association,
    dest: SocketAddr,
    label: Option<&Label>,
    deliver: &Deliver,
) -> Result<()> {
    let Passage { way, meter } = far_ends.plain_way(dest, label).await?;
    let socket = Rc::new(plain::connect_udp(dest, &way).await?);
    // A new socket takes nothing before the reactor has seen it.
    socket.writable().await?;
    association.go(Way::Plain(socket.clone(), meter.clone()), false);
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        // ICMP errors surface here, as they would at the program.
        let length = socket.recv(&mut buffer).await?;
        meter.on_datagram(&buffer[..length]);
        association.on_answer();
        deliver(&buffer[..length]);
    }
}

/// The key may stand for a newer flow by now.
fn forget<K: Ord>(table: &Weak<RefCell<Table<K>>>, key: &K, association: &Rc<Association>) {
    if let Some(table) = table.upgrade() {
        let mut table = table.borrow_mut();
        if table
            .get(key)
            .is_some_and(|current| Rc::ptr_eq(current, association))
        {
            table.remove(key);
        }
    }
}
