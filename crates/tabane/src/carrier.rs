//! What is done with captured traffic: through the session, to the relay's resolver, or plainly.
//!
//! Owns that choice for each connection and flow, and the loops that take them from the capture
//! sockets. What the session cannot serve goes the way it would have gone without us, by links that
//! the policy allows: no program gets an error from us that a bare machine would not give. While no
//! link leads to the relay, one command waits; the whole machine does not.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::Duration;
use tabane_linux::capture::{CaptureListener, CaptureUdp};
use tabane_linux::hooks::{self, FlowTable, Original};
use tabane_policy::{FlowFacts, Protocol};
use tabane_tunnel::{
    Client, Label, Offer, OpenError, Silence, Status, Target, Unserved, system_resolvers,
};
use tokio::net::TcpStream;

use crate::associations::{Associations, Deliver, Route};
use crate::carriage::Carriage;
use crate::far_ends::FarEnds;
use crate::near_names::asks_for_near;
use crate::plain;
use crate::rule_book::{RuleBook, Way};

const DNS_PORT: u16 = 53;
/// Pause after `accept` failed for want of descriptors: some close meanwhile.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Carries captured traffic. Copies do the same.
#[derive(Clone)]
pub(crate) struct Carrier {
    far_ends: FarEnds,
    carriage: Carriage,
    /// The resolvers of this host: a question to them is one to the relay's.
    resolvers: Rc<RefCell<Vec<IpAddr>>>,
    rules: RuleBook,
    silence: Silence,
}

impl Carrier {
    /// For one command, which asked for the session: a silent one is waited for.
    pub(crate) fn for_command(far_ends: FarEnds, carriage: Carriage, rules: RuleBook) -> Self {
        Self {
            far_ends,
            carriage,
            resolvers: Rc::new(RefCell::new(resolver_addresses())),
            rules,
            silence: Silence::Waits,
        }
    }

    /// For the whole machine, where nobody asked the programs.
    pub(crate) fn for_machine(far_ends: FarEnds, rules: RuleBook) -> Self {
        Self {
            silence: Silence::GivesBack,
            ..Self::for_command(far_ends, Carriage::default(), rules)
        }
    }

    /// The resolvers of this host may have changed.
    pub(crate) fn renew_resolvers(&self) {
        *self.resolvers.borrow_mut() = resolver_addresses();
    }

    /// The flows of one entrance.
    pub(crate) fn associations<K: Ord + Clone + 'static>(&self) -> Associations<K> {
        Associations::new(self.far_ends.clone())
    }

    /// The way of a flow that a program began. A resolver of this host, or of the network a link
    /// is in, is often unreachable from the relay, and knows the way from here instead of from
    /// there.
    pub(crate) fn route(&self, original: Original) -> Route {
        let flow = self.describe(original);
        let mut route = self.route_of(original.dest, flow);
        if original.captured_dns {
            route.target = Target::Resolver;
        }
        route
    }

    /// The way of a flow that begins with `payload`: questions for names that only the resolvers
    /// near here know stay here.
    fn route_datagram(&self, original: Original, payload: &[u8]) -> Route {
        let mut route = self.route(original);
        route.stays_here |= route.target == Target::Resolver && asks_for_near(payload);
        route
    }

    /// The way to `dest`, for who knows no more of who asks than how.
    pub(crate) fn route_to(&self, dest: SocketAddr, protocol: Protocol) -> Route {
        let flow = FlowFacts {
            address: Some(dest.ip()),
            port: dest.port(),
            protocol,
            ..FlowFacts::default()
        };
        self.route_of(dest, flow)
    }

    /// What rules may ask for of a captured flow.
    fn describe(&self, original: Original) -> FlowFacts {
        let pid = original.pid.filter(|_| self.rules.asks_for_process());
        FlowFacts {
            domains: Vec::new(),
            address: Some(original.dest.ip()),
            port: original.dest.port(),
            protocol: match original.protocol {
                hooks::Protocol::Tcp => Protocol::Tcp,
                hooks::Protocol::Udp => Protocol::Udp,
            },
            process: pid.and_then(program_name),
            dscp: original.dscp,
        }
    }

    /// The way to `dest` as the rules have it.
    fn route_of(&self, dest: SocketAddr, flow: FlowFacts) -> Route {
        let is_resolver = dest.port() == DNS_PORT && self.resolvers.borrow().contains(&dest.ip());
        let target = if is_resolver {
            Target::Resolver
        } else {
            Target::Address(dest)
        };
        let way = self.rules.admit(flow);
        let is_direct = matches!(way, Way::Direct);
        Route {
            target,
            plain: Some(dest),
            stays_here: is_direct,
            silence: self.silence,
            label: match way {
                Way::Carried(label) => Some(label),
                Way::Direct => None,
            },
        }
    }

    /// Answers to the questions of this flow tell the names of addresses.
    pub(crate) fn listen(&self, dest: SocketAddr, deliver: Deliver) -> Deliver {
        if dest.port() != DNS_PORT {
            return deliver;
        }
        let rules = self.rules.clone();
        Box::new(move |answer: &[u8]| {
            rules.see_answer(answer);
            deliver(answer);
        })
    }

    /// Takes connections for ever.
    pub(crate) async fn serve_tcp(self, listener: CaptureListener, flows: FlowTable) {
        loop {
            match listener.accept(&flows).await {
                Ok(captured) => {
                    let route = self.route(captured.original);
                    self.carry(captured.stream, route);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a captured connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Carries one connection, in a task of its own.
    pub(crate) fn carry(&self, stream: TcpStream, route: Route) {
        let far_ends = self.far_ends.clone();
        let passenger = self.carriage.board();
        tokio::task::spawn_local(async move {
            carry(&far_ends, stream.into(), route).await;
            drop(passenger);
        });
    }

    /// Takes datagrams for ever.
    pub(crate) async fn serve_udp(self, mut capture: CaptureUdp, flows: FlowTable) {
        let sender = capture.sender();
        let associations = self.associations();
        loop {
            let received = capture.recv(&flows, |datagram| {
                let payload = &*datagram.payload;
                associations.send(&datagram.flow, payload, || {
                    let (sender, flow) = (sender.clone(), datagram.flow);
                    let deliver = move |answer: &[u8]| {
                        // Lost like any datagram where the program's socket is full.
                        let _ = sender.try_send(flow, answer, None);
                    };
                    (
                        self.route_datagram(datagram.original, payload),
                        self.listen(datagram.original.dest, Box::new(deliver)),
                    )
                });
            });
            if let Err(error) = received.await {
                tracing::warn!(%error, "cannot receive captured datagrams");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Carries a connection straight to a peer, else by the relay, else plainly.
async fn carry(far_ends: &FarEnds, mut offer: Offer, route: Route) {
    let Route { target, label, .. } = &route;
    if !route.stays_here {
        if let Some((peer, own)) = far_ends.straight(target, label.as_ref()).await {
            match carry_if_served(&peer, label, offer, &own, Silence::GivesBack).await {
                None => return,
                Some(returned) => offer = returned,
            }
        }
        if let Some(relay) = far_ends.relay() {
            match carry_if_served(relay, label, offer, target, route.silence).await {
                None => return,
                Some(returned) => offer = returned,
            }
        }
    }
    if let Some(dest) = route.plain {
        carry_plainly(far_ends, offer, dest, label.as_ref()).await;
    }
}

/// Carries a connection by the session of `client`; gives it back where that cannot serve it.
async fn carry_if_served(
    client: &Client,
    label: &Option<Label>,
    offer: Offer,
    target: &Target,
    silence: Silence,
) -> Option<Offer> {
    let client = client.labelled(label.clone());
    let carrying = client.carry_tcp_or_return(offer, target.clone(), silence);
    match carrying.await {
        Ok(carried) => {
            tracing::debug!(%target, ?carried, "connection over");
            None
        }
        Err(Unserved { offer, why }) => {
            report(target, &why);
            Some(offer)
        }
    }
}

async fn carry_plainly(far_ends: &FarEnds, offer: Offer, dest: SocketAddr, label: Option<&Label>) {
    let Offer { tcp, early } = offer;
    let passage = match far_ends.plain_way(dest, label).await {
        Ok(passage) => passage,
        Err(error) => {
            tracing::warn!("{dest}: {error}");
            // A reset tells the program that nothing went through.
            let _ = tcp.set_zero_linger();
            return;
        }
    };
    if let Err(error) = plain::carry(tcp, &early, dest, passage).await {
        tracing::debug!(%dest, %error, "ended without the session");
    }
}

/// Programs notice nothing; where the user can do something it is worth a line.
pub(crate) fn report(target: &Target, why: &OpenError) {
    match why {
        OpenError::Refused(Status::Limit | Status::VolumeUsedUp | Status::Malformed)
        | OpenError::Limit(_) => tracing::warn!("{target}: {why}; it goes without the relay"),
        OpenError::Refused(_)
        | OpenError::NoSession(_)
        | OpenError::SessionLost
        | OpenError::TimedOut => tracing::info!("{target}: {why}; it goes without the relay"),
    }
}

/// The name of the file that a process runs.
fn program_name(pid: u32) -> Option<String> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = exe.file_name()?.to_string_lossy().into_owned();
    // What was replaced while it runs is marked so.
    Some(name.trim_end_matches(" (deleted)").to_owned())
}

/// The resolvers of this host.
pub(crate) fn resolver_addresses() -> Vec<IpAddr> {
    system_resolvers().iter().map(SocketAddr::ip).collect()
}
