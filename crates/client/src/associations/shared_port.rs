//! Flows of one socket of a program by one port of the relay's (a NAT mapping, RFC 4787).
//!
//! Owns which flows share one: those of a socket that the rules treat alike; and handing what comes
//! to the flow whose address it is from, or to the socket as from a stranger. A port lives as long
//! as one of its flows.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use tabane_tunnel::{Client, FlowError, Label, OpenError, Silence, Status, UdpArrival, UdpMapping};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::{Answer, Association, CarriedBy, Outcome, Said, Stranger};
use crate::bypass::Bypass;

/// Sockets, and flows of a port, after which those that are over are cleared away.
const SWEEP_AT: usize = 2_048;

/// The ports of one entrance's sockets.
pub(super) struct SharedPorts<S>(RefCell<BTreeMap<S, Vec<Weak<SharedPort>>>>);

impl<S> Default for SharedPorts<S> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

/// One flow's right to share.
pub(super) struct Sharing<S> {
    pub(super) ports: Rc<SharedPorts<S>>,
    pub(super) bypass: Bypass,
    pub(super) socket: S,
    pub(super) stranger: Rc<Stranger>,
}

/// A port of the relay's.
pub(super) struct SharedPort {
    label: Option<Label>,
    mapping: OnceCell<Rc<UdpMapping>>,
    flows: RefCell<BTreeMap<SocketAddr, Weak<Association>>>,
    /// By family: a socket may hear of one in another way than of the other.
    strangers: [OnceCell<Rc<Stranger>>; 2],
    state: watch::Sender<State>,
    /// Receives; set right after it is started.
    task: OnceCell<AbortHandle>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Opening,
    Open,
    /// The relay is too old for it, or a peer.
    Unknown,
    Over(Outcome),
}

impl<S: Ord + Clone> Sharing<S> {
    /// Carries a flow until it is over; `None` where the relay knows no shared ports.
    pub(super) async fn carry(
        &self,
        client: &Client,
        association: &Rc<Association>,
        remote: SocketAddr,
        silence: Silence,
    ) -> Option<Outcome> {
        let gives_back = silence == Silence::GivesBack;
        loop {
            if gives_back && client.is_given_up() {
                return Some(Outcome::Unserved);
            }
            let port = self.port(client, association.label.as_ref(), remote);
            let stranger = &port.strangers[usize::from(remote.is_ipv6())];
            stranger.get_or_init(|| self.stranger.clone());
            let _place = Place::take(&port, association, remote);
            let mut states = port.state.subscribe();
            let mut has_gone = false;
            let outcome = loop {
                match *states.borrow_and_update() {
                    State::Opening => {}
                    State::Open if has_gone => {}
                    State::Open => {
                        has_gone = true;
                        association.go(CarriedBy::Shared(port.clone(), remote), true);
                    }
                    State::Unknown => return None,
                    State::Over(Outcome::Unserved) if !association.is_unanswered() => {
                        return Some(Outcome::Over);
                    }
                    State::Over(outcome) => return Some(outcome),
                }
                let silent = gives_back && association.is_unanswered();
                tokio::select! {
                    // Fails with the port, which is ours.
                    _ = states.changed() => {}
                    () = association.news.notified() => match association.said.take() {
                        Some(Said::Undelivered(Status::Refused)) => association.on_refused(),
                        Some(Said::Undelivered(status)) => {
                            let why = OpenError::Refused(status);
                            self.bypass.report(&remote.into(), &why);
                            if association.is_unanswered() {
                                break Some(Outcome::Unserved);
                            }
                        }
                        Some(Said::Relabelled) => break None,
                        None => {}
                    },
                    () = client.until_reachable(false), if silent => {
                        break Some(Outcome::Unserved);
                    }
                }
            };
            if outcome.is_some() {
                return outcome;
            }
        }
    }

    /// The port of this socket for what bears `label`.
    fn port(&self, client: &Client, label: Option<&Label>, usual: SocketAddr) -> Rc<SharedPort> {
        let mut sockets = self.ports.0.borrow_mut();
        let is_live = |port: &Weak<SharedPort>| port.strong_count() > 0;
        if sockets.len() >= SWEEP_AT {
            sockets.retain(|_, ports| ports.iter().any(is_live));
        }
        let ports = sockets.entry(self.socket.clone()).or_default();
        let mut live = ports.iter().filter_map(Weak::upgrade);
        if let Some(port) = live.find(|port| port.suits(label) && !port.is_over()) {
            return port;
        }
        let bypass = self.bypass.clone();
        let port = SharedPort::open(client.clone(), bypass, label.cloned(), usual);
        ports.retain(is_live);
        ports.push(Rc::downgrade(&port));
        port
    }
}

impl SharedPort {
    fn open(client: Client, bypass: Bypass, label: Option<Label>, usual: SocketAddr) -> Rc<Self> {
        let port = Rc::new(Self {
            label,
            mapping: OnceCell::new(),
            flows: RefCell::default(),
            strangers: Default::default(),
            state: watch::Sender::new(State::Opening),
            task: OnceCell::new(),
        });
        let task = tokio::task::spawn_local(serve(Rc::downgrade(&port), client, bypass, usual));
        // Not set before: the port is new.
        let _ = port.task.set(task.abort_handle());
        port
    }

    /// Whether what bears `label` may go by it.
    pub(super) fn suits(&self, label: Option<&Label>) -> bool {
        match (&self.label, label) {
            (Some(own), Some(other)) => own.is_like(other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    fn is_over(&self) -> bool {
        matches!(*self.state.borrow(), State::Over(_))
    }

    /// Lost like any datagram where it cannot be sent; why, shows when receiving.
    pub(super) fn send(&self, remote: SocketAddr, payload: &[u8]) {
        if let Some(mapping) = self.mapping.get() {
            let _ = mapping.send(remote, payload);
        }
    }

    fn flow(&self, remote: SocketAddr) -> Option<Rc<Association>> {
        self.flows.borrow().get(&remote)?.upgrade()
    }

    fn take(&self, arrival: &UdpArrival) {
        match arrival {
            UdpArrival::Datagram(from, payload) => match self.flow(*from) {
                Some(flow) => {
                    flow.on_answer();
                    (flow.deliver)(Answer::Datagram(payload));
                }
                None => {
                    if let Some(stranger) = self.strangers[usize::from(from.is_ipv6())].get() {
                        stranger(*from, payload);
                    }
                }
            },
            UdpArrival::Undelivered(to, status) => {
                if let Some(flow) = self.flow(*to) {
                    flow.tell(Said::Undelivered(*status));
                }
            }
        }
    }
}

impl Drop for SharedPort {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// Receives for a port until it is over.
async fn serve(port: Weak<SharedPort>, client: Client, bypass: Bypass, usual: SocketAddr) {
    let opened = {
        let label = port.upgrade().and_then(|port| port.label.clone());
        client.labelled(label).open_mapping(usual).await
    };
    let mapping = opened.map(Rc::new);
    let outcome = match &mapping {
        Err(error) => {
            bypass.report(&usual.into(), error);
            State::Over(Outcome::Unserved)
        }
        Ok(mapping) => {
            if let Some(port) = port.upgrade() {
                let _ = port.mapping.set(mapping.clone());
                port.state.send_replace(State::Open);
            }
            receive(&port, mapping, &bypass, usual).await
        }
    };
    if let Some(port) = port.upgrade() {
        port.state.send_replace(outcome);
    }
}

async fn receive(
    port: &Weak<SharedPort>,
    mapping: &UdpMapping,
    bypass: &Bypass,
    usual: SocketAddr,
) -> State {
    loop {
        let arrival = mapping.recv().await;
        let Some(port) = port.upgrade() else {
            return State::Over(Outcome::Over);
        };
        match arrival {
            Ok(arrival) => port.take(&arrival),
            Err(FlowError::Refused(Status::Malformed | Status::Denied)) => return State::Unknown,
            Err(FlowError::Refused(status)) => {
                bypass.report(&usual.into(), &OpenError::Refused(status));
                return State::Over(Outcome::Unserved);
            }
            Err(FlowError::SessionLost) => return State::Over(Outcome::Unserved),
            Err(FlowError::Ended | FlowError::TooLarge | FlowError::Undelivered(_)) => {
                return State::Over(Outcome::Over);
            }
        }
    }
}

/// A flow among those of a port, until dropped.
struct Place<'a> {
    port: &'a SharedPort,
    association: &'a Rc<Association>,
    remote: SocketAddr,
}

impl<'a> Place<'a> {
    fn take(port: &'a SharedPort, association: &'a Rc<Association>, remote: SocketAddr) -> Self {
        let mut flows = port.flows.borrow_mut();
        flows.insert(remote, Rc::downgrade(association));
        Self {
            port,
            association,
            remote,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut flows = self.port.flows.borrow_mut();
        // It may be a newer flow's by now.
        let own = Rc::as_ptr(self.association);
        if flows
            .get(&self.remote)
            .is_some_and(|flow| flow.as_ptr() == own)
        {
            flows.remove(&self.remote);
        }
    }
}
