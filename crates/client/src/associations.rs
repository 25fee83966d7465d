//! UDP flows through the tunnel, by whatever names them on this side.
//!
//! UDP has no connections, so somebody must say when a flow begins and ends: it begins with the
//! first datagram of a key and ends when nothing has passed for a while, when the relay ends it, or
//! when too many are open (`table`). Owns going without the session where that will never answer
//! and the route allows it; where datagrams come from and where answers go is the user's affair.
//! Flows of one socket have one port at the relay (`shared_port`), but for those to a name, to a
//! resolver, to a peer or of a connected socket.

mod shared_port;
mod table;

use std::cell::{Cell, OnceCell, RefCell};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use anyhow::Result;
use tabane_base::Duration;
use tabane_tunnel::{Client, FlowError, Label, OpenError, Silence, Status, Target, UdpFlow};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::bypass::Bypass;
use crate::far_ends::FarEnds;
use crate::lan_hosts::Holder;
use crate::near_names::DNS_PORT;
use crate::plain;
use crate::plain::MeteredWay;
use crate::plain_meter::Meter;
use crate::route::Route;
use crate::via::Via;
use shared_port::{SharedPort, SharedPorts, Sharing};
use table::Table;

/// Datagrams kept until a flow is open, or has answered: more than a program sends before it
/// expects an answer.
const MAX_FIRST: usize = 16;
/// Bytes of them.
const MAX_FIRST_BYTES: usize = 64 * 1024;
/// The longest datagram there is.
const MAX_DATAGRAM: usize = 65_535;
/// Silence that ends a flow (RFC 4787 REQ-5: not less), at the relay as well.
const IDLE: Duration = Duration::from_secs(120);
/// The same for a port of its own at the relay that asks some name server, as a resolver does with
/// each question.
const IDLE_DNS: Duration = Duration::from_secs(60);
/// The same where a flow is one question, to what answers within seconds or never.
const IDLE_RESOLVER: Duration = Duration::from_secs(10);

/// Takes what comes for one flow to the program.
pub(crate) type Deliver = Box<dyn Fn(Answer<'_>)>;

/// Takes to the program what comes from an address that its socket has not asked.
pub(crate) type Stranger = Box<dyn Fn(SocketAddr, &[u8])>;

/// What comes for a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer<'a> {
    Datagram(&'a [u8]),
    /// Nobody takes what was sent.
    Refused,
}

/// How a flow begins.
pub(crate) struct Beginning<S> {
    /// Where it goes.
    pub route: Route,
    /// What gets the answers.
    pub deliver: Deliver,
    /// The program's socket, where it speaks with others as well, and what gets what these say.
    pub socket: Option<(S, Stranger)>,
    /// Whose part of all flows it counts in, where they are of more than one.
    pub holder: Option<Holder>,
}

/// The flows of one entrance; they end with it.
pub(crate) struct Associations<K, S> {
    far_ends: FarEnds,
    ports: Rc<SharedPorts<S>>,
    table: Rc<RefCell<Table<K>>>,
}

struct Association {
    holder: Option<Holder>,
    way: RefCell<CarriedBy>,
    deliver: Deliver,
    label: Option<Label>,
    /// What the relay has said of it, where it shares a port, or that it has to look for another.
    said: Cell<Option<Said>>,
    news: Notify,
    /// What the program has sent, while it may have to be sent again.
    first: RefCell<Option<Vec<Vec<u8>>>>,
    last_used_at: Cell<Instant>,
    /// Carries the flow; aborting it ends the flow. Set right after it is started.
    task: OnceCell<AbortHandle>,
}

enum CarriedBy {
    /// Waits for the relay.
    Opening,
    Session(Rc<UdpFlow>),
    Shared(Rc<SharedPort>, SocketAddr),
    Plain(Rc<UdpSocket>, Meter),
}

/// What is said of a flow that shares a port.
#[derive(Debug, Clone, Copy)]
enum Said {
    Undelivered(Status),
    /// The rules treat it otherwise now than what shares its port.
    Relabelled,
}

/// What became of a flow through the session.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Over,
    /// It never answered, and will not.
    Unserved,
}

impl<K: Ord + Clone + 'static, S: Ord + Clone + 'static> Associations<K, S> {
    /// No flows yet, through `far_ends`.
    pub(crate) fn new(far_ends: FarEnds) -> Self {
        Self {
            far_ends,
            ports: Rc::default(),
            table: Rc::default(),
        }
    }

    /// Sends `payload` on the flow called `key`. If that is new, `begin` says what it is. Must be
    /// called within the `LocalSet` of the client.
    pub(crate) fn send(&self, key: &K, payload: &[u8], begin: impl FnOnce() -> Beginning<S>) {
        if let Some(association) = self.table.borrow().get(key) {
            association.send(payload);
            return;
        }
        let Beginning {
            route,
            deliver,
            socket,
            holder,
        } = begin();
        let label = route.label.clone();
        let association = Rc::new(Association::new(payload, deliver, label, holder));
        let displaced = self
            .table
            .borrow_mut()
            .insert(key.clone(), association.clone());
        if let Some(displaced) = displaced {
            displaced.end();
        }
        let table: Weak<RefCell<Table<K>>> = Rc::downgrade(&self.table);
        let (far_ends, key, own) = (self.far_ends.clone(), key.clone(), association.clone());
        let sharing = socket.map(|(socket, stranger)| Sharing {
            ports: self.ports.clone(),
            bypass: self.far_ends.bypass().clone(),
            socket,
            stranger: Rc::new(stranger),
        });
        let task = tokio::task::spawn_local(async move {
            carry(&far_ends, &own, route, sharing).await;
            if let Some(table) = table.upgrade() {
                table.borrow_mut().forget(&key, &own);
            }
        });
        // Not set before: the association is new.
        let _ = association.task.set(task.abort_handle());
    }
}

impl<K, S> Drop for Associations<K, S> {
    fn drop(&mut self) {
        let table = self.table.borrow();
        table.flows().for_each(|association| association.end());
    }
}

impl Association {
    fn new(first: &[u8], deliver: Deliver, label: Option<Label>, holder: Option<Holder>) -> Self {
        Self {
            holder,
            way: RefCell::new(CarriedBy::Opening),
            deliver,
            label,
            said: Cell::new(None),
            news: Notify::new(),
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
        self.leave_if_relabelled();
        if let Some(first) = &mut *self.first.borrow_mut() {
            let bytes: usize = first.iter().map(Vec::len).sum();
            if first.len() < MAX_FIRST && bytes + payload.len() <= MAX_FIRST_BYTES {
                first.push(payload.to_vec());
            }
        }
        self.way.borrow().send(payload);
    }

    /// Sends by `way` from here on, beginning with what was sent first; `keep` it for once more.
    fn go(&self, way: CarriedBy, keep: bool) {
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

    fn is_unanswered(&self) -> bool {
        self.first.borrow().is_some()
    }

    /// Nobody takes what was sent: an answer, too.
    fn on_refused(&self) {
        self.on_answer();
        (self.deliver)(Answer::Refused);
    }

    fn tell(&self, said: Said) {
        self.said.set(Some(said));
        self.news.notify_one();
    }

    /// What the rules treat otherwise now may not go by a port that it shared.
    fn leave_if_relabelled(&self) {
        let stays = match &*self.way.borrow() {
            CarriedBy::Shared(port, _) => port.suits(self.label.as_ref()),
            CarriedBy::Opening | CarriedBy::Session(_) | CarriedBy::Plain(..) => true,
        };
        if !stays {
            self.way.replace(CarriedBy::Opening);
            self.first.borrow_mut().get_or_insert_default();
            self.tell(Said::Relabelled);
        }
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

impl CarriedBy {
    fn send(&self, payload: &[u8]) {
        match self {
            Self::Opening => {}
            // Lost like any datagram; what ended the flow shows when receiving.
            Self::Session(flow) => drop(flow.send(payload)),
            Self::Shared(port, remote) => port.send(*remote, payload),
            Self::Plain(socket, meter) => {
                if socket.try_send(payload).is_ok() {
                    meter.on_datagram(payload);
                }
            }
        }
    }
}

/// How long a flow may be silent.
fn idle_of(target: &Target, is_shared: bool, is_to_site: bool) -> Duration {
    match target {
        Target::Resolver => IDLE_RESOLVER,
        // A question is a flow of its own there, too.
        Target::Address(at) if is_to_site && at.port() == DNS_PORT => IDLE_RESOLVER,
        Target::Address(at) if !is_shared && at.port() == DNS_PORT => IDLE_DNS,
        Target::Address(_) | Target::Name { .. } | Target::Anywhere => IDLE,
    }
}

/// Carries the flow until it is over.
async fn carry<S: Ord + Clone>(
    far_ends: &FarEnds,
    association: &Rc<Association>,
    route: Route,
    sharing: Option<Sharing<S>>,
) {
    let is_to_site = route.is_to_site(far_ends);
    let idle = idle_of(&route.target, sharing.is_some(), is_to_site);
    // A shared port leads to no site.
    let sharing = sharing.filter(|_| !is_to_site);
    let through = async {
        let peer = route.peer(far_ends).await;
        let mut last = None;
        loop {
            let known = route.known(far_ends, peer.is_some(), route.plain.is_some());
            last = known.next(last);
            let outcome = match (last, &peer, far_ends.relay()) {
                (Some(Via::Peer), Some((peer, own)), _) => {
                    let peer = peer.labelled(route.label.clone());
                    let (bypass, own) = (far_ends.bypass(), own.clone());
                    through_session(&peer, bypass, association, own, Silence::GivesBack).await
                }
                (Some(Via::Relay), _, Some(relay)) => {
                    let relay = route.by_relay(relay, far_ends);
                    by_relay(
                        &relay,
                        far_ends.bypass(),
                        association,
                        &route,
                        sharing.as_ref(),
                    )
                    .await
                }
                (Some(Via::Peer | Via::Relay), ..) => Outcome::Unserved,
                (Some(Via::Plain) | None, ..) => return Err(last),
            };
            if matches!(outcome, Outcome::Over) {
                return Ok(());
            }
        }
    };
    tokio::select! {
        served = through => match (served, route.plain) {
            (Err(Some(Via::Plain)), Some(dest)) => {
                if !route.stays_here {
                    far_ends.bypass().on_flow();
                }
                let plainly = plainly(far_ends, association, dest, route.label.as_ref());
                tokio::select! {
                    Err(error) = plainly => tracing::debug!(%dest, "a UDP flow failed: {error:#}"),
                    () = association.expired(idle) => {}
                }
            }
            (Err(_), _) if is_to_site => association.on_refused(),
            (Err(_) | Ok(()), _) => {}
        },
        () = association.expired(idle) => {}
    }
}

/// By a port that the program's socket shares at the relay, where it has one; else by a stream of
/// the flow's own.
async fn by_relay<S: Ord + Clone>(
    relay: &Client,
    bypass: &Bypass,
    association: &Rc<Association>,
    route: &Route,
    sharing: Option<&Sharing<S>>,
) -> Outcome {
    if let (Some(sharing), Target::Address(remote)) = (sharing, &route.target) {
        let shared = sharing.carry(relay, association, *remote, route.silence);
        if let Some(outcome) = shared.await {
            return outcome;
        }
    }
    let target = route.target.clone();
    through_session(relay, bypass, association, target, route.silence).await
}

/// Opens the flow, sends what waits, and delivers answers until the flow is over.
async fn through_session(
    client: &Client,
    bypass: &Bypass,
    association: &Association,
    target: Target,
    silence: Silence,
) -> Outcome {
    let gives_back = silence == Silence::GivesBack;
    if gives_back && client.is_given_up() {
        return Outcome::Unserved;
    }
    let told = target.clone();
    let flow = match client.open_udp(target).await {
        Ok(flow) => Rc::new(flow),
        Err(error) => {
            bypass.report(&told, &error);
            return Outcome::Unserved;
        }
    };
    association.go(CarriedBy::Session(flow.clone()), true);
    loop {
        tokio::select! {
            received = flow.recv() => match received {
                Ok(payload) => {
                    association.on_answer();
                    (association.deliver)(Answer::Datagram(&payload));
                }
                Err(FlowError::Undelivered(Status::Refused)) => association.on_refused(),
                Err(FlowError::Undelivered(status)) => tracing::debug!(%told, %status, "UDP"),
                Err(error) => {
                    tracing::debug!(%error, "a UDP flow ended");
                    let is_unserved = match error {
                        FlowError::Refused(status) => {
                            bypass.report(&told, &OpenError::Refused(status));
                            status != Status::Refused
                        }
                        FlowError::SessionLost => true,
                        // Served, and nobody answered.
                        FlowError::Ended | FlowError::TooLarge | FlowError::Undelivered(_) => false,
                    };
                    return match association.is_unanswered() && is_unserved {
                        true => Outcome::Unserved,
                        false => Outcome::Over,
                    };
                }
            },
            () = client.until_given_up(), if gives_back && association.is_unanswered() => {
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
) -> Result<()> {
    let MeteredWay { way, meter, .. } = far_ends.plain_way(dest, label).await?;
    let socket = Rc::new(plain::connect_udp(dest, &way).await?);
    // A new socket takes nothing before the reactor has seen it.
    socket.writable().await?;
    association.go(CarriedBy::Plain(socket.clone(), meter.clone()), false);
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let received = tokio::select! {
            received = socket.recv(&mut buffer) => received,
            error = plain::failed(&socket) => Err(error),
        };
        match received {
            Ok(length) => {
                meter.on_datagram(&buffer[..length]);
                association.on_answer();
                (association.deliver)(Answer::Datagram(&buffer[..length]));
            }
            // ICMP errors surface here, as they would at the program.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => association.on_refused(),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
