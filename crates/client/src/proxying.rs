//! Programs that know a proxy: their requests, carried through the session.
//!
//! Owns the listening socket and the limit on connections; the dialects are `proxy`'s, the carrying
//! is the tunnel's. Names are looked up here only for what the session cannot serve, and
//! at another site where they are its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::proxy::{Accepted, Refusal, Request, TcpRequest, UdpRequest, negotiate};
use anyhow::{Context, Result};
use tabane_base::{Destination, Duration, Host};
use tabane_linux::threads::lookup_host;
use tabane_policy::{FlowFacts, Protocol};
use tabane_tunnel::{Label, Target};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::associations::{Answer, Associations, Beginning};
use crate::far_ends::FarEnds;
use crate::open_connections::OpenConnections;
use crate::opening::{Opened, open, refusal_of};
use crate::plain::{self, Far};
use crate::route::Route;
use crate::rule_book::RuleBook;
use crate::sites::lookup;

/// Connections at once; as many as the session has streams, less some for UDP.
const MAX_CONNECTIONS: usize = 3_072;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Pause after `accept` failed for want of descriptors: some close meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A loopback port that speaks SOCKS5 and HTTP.
#[derive(Debug)]
pub struct ProxyListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl ProxyListener {
    /// Listens on `address`; port 0 lets the kernel choose.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let bind = async || {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            io::Result::Ok(Self { listener, address })
        };
        bind().await.with_context(|| {
            format!("cannot listen on {address} for the proxy; choose another with --listen")
        })
    }

    /// Where programs find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves programs for ever.
    pub async fn serve(self, far_ends: FarEnds, connections: OpenConnections, rules: RuleBook) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((program, from)) => {
                    let (far_ends, rules) = (far_ends.clone(), rules.clone());
                    let connection = connections.begin();
                    tokio::task::spawn_local(async move {
                        serve_one(program, from, &far_ends, &rules).await;
                        drop((slot, connection));
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the proxy");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn serve_one(program: TcpStream, from: SocketAddr, far_ends: &FarEnds, rules: &RuleBook) {
    match negotiate(program).await {
        Ok(Request::Tcp(request)) => serve_tcp(request, far_ends, rules).await,
        Ok(Request::Udp(request)) => serve_udp(request, far_ends, rules).await,
        Err(error) => tracing::debug!(%from, %error, "a program did not get through"),
    }
}

async fn serve_tcp(request: TcpRequest, far_ends: &FarEnds, rules: &RuleBook) {
    let destination = request.destination();
    let (far, target) = match reach(destination, far_ends, rules).await {
        Ok(reached) => reached,
        Err(refusal) => {
            tracing::info!(?destination, ?refusal, "not reached");
            return request.refuse(refusal).await;
        }
    };
    match request.accept().await {
        Ok(Accepted { client, early }) => far.carry(client.into(), early, &target).await,
        Err(error) => tracing::debug!(%target, %error, "the program is gone"),
    }
}

/// Connects to a destination, or, where its name is another site's, to the first of the addresses
/// it has there that answers.
async fn reach(
    destination: &Destination,
    far_ends: &FarEnds,
    rules: &RuleBook,
) -> Result<(Opened, Target), Refusal> {
    let facts = || describe(destination, Protocol::Tcp);
    let Some(found) = at_site(destination, far_ends, rules).await else {
        return reach_at(destination, facts(), far_ends, rules).await;
    };
    let mut refusal = Refusal::NameNotFound;
    for ip in found?.into_iter().take(MAX_ADDRESSES) {
        let at = Destination {
            host: Host::Ip(ip),
            port: destination.port,
        };
        let facts = FlowFacts {
            address: Some(ip),
            ..facts()
        };
        match reach_at(&at, facts, far_ends, rules).await {
            Ok(reached) => return Ok(reached),
            Err(said) => refusal = said,
        }
    }
    Err(refusal)
}

/// The addresses of a name that another site's resolver is asked for; `None` for every other
/// destination, and where a rule keeps it here.
async fn at_site(
    destination: &Destination,
    far_ends: &FarEnds,
    rules: &RuleBook,
) -> Option<Result<Vec<IpAddr>, Refusal>> {
    let Host::Name(name) = &destination.host else {
        return None;
    };
    let resolver = far_ends.sites().resolver_of(name)?;
    let target = target_of(destination)?;
    let facts = describe(destination, Protocol::Tcp);
    if route(destination, target, facts, rules).stays_here {
        return None;
    }
    let found = lookup(far_ends.relay()?, resolver, name).await;
    // Who can reach the proxy is not thereby somebody at the relay.
    let others = |found: Vec<IpAddr>| found.into_iter().filter(|ip| !is_own(*ip)).collect();
    Some(found.map(others))
}

async fn reach_at(
    destination: &Destination,
    facts: FlowFacts,
    far_ends: &FarEnds,
    rules: &RuleBook,
) -> Result<(Opened, Target), Refusal> {
    let target = target_of(destination).ok_or(Refusal::Unsupported)?;
    let route = route(destination, target, facts, rules);
    let plain = connect_plainly(destination, far_ends, route.label.as_ref());
    let far = open(far_ends, &route, plain).await?;
    Ok((far, route.target))
}

/// The first address of `destination` that answers.
async fn connect_plainly(
    destination: &Destination,
    far_ends: &FarEnds,
    label: Option<&Label>,
) -> Result<Far, Refusal> {
    let addresses: Vec<SocketAddr> = match &destination.host {
        Host::Ip(ip) => vec![SocketAddr::new(*ip, destination.port)],
        Host::Name(host) => match lookup_host((host.as_str(), destination.port)).await {
            Ok(found) => found.collect(),
            Err(_) => return Err(Refusal::NameNotFound),
        },
    };
    let mut refusal = Refusal::NetworkUnreachable;
    for address in addresses {
        // Who can reach the proxy is not thereby somebody on this machine.
        if is_own(address.ip()) {
            refusal = Refusal::Denied;
            continue;
        }
        let Ok(metered) = far_ends.plain_way(address, label).await else {
            continue;
        };
        match plain::connect(address, metered).await {
            Ok(far) => return Ok(far),
            Err(error) => refusal = refusal_of(&error),
        }
    }
    Err(refusal)
}

/// Leads to this machine's own services.
fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

/// What rules may ask for of a request.
fn describe(destination: &Destination, protocol: Protocol) -> FlowFacts {
    let (domains, address) = match &destination.host {
        Host::Ip(ip) => (Vec::new(), Some(*ip)),
        Host::Name(name) => (vec![name.trim_end_matches('.').to_owned()], None),
    };
    FlowFacts {
        domains,
        address,
        port: destination.port,
        protocol,
        ..FlowFacts::default()
    }
}

/// The way to `destination`. A name has no plain address: it is looked up when it is needed, and
/// datagrams to it have no way but the session.
fn route(destination: &Destination, target: Target, facts: FlowFacts, rules: &RuleBook) -> Route {
    let protocol = facts.protocol;
    let way = rules.admit(facts);
    let plain = match &destination.host {
        Host::Ip(ip) if !is_own(*ip) => Some(SocketAddr::new(*ip, destination.port)),
        Host::Ip(_) | Host::Name(_) => None,
    };
    let has_plain = plain.is_some() || protocol == Protocol::Tcp;
    let mut route = Route {
        plain,
        ..target.into()
    };
    route = route.ruled(way, None);
    route.stays_here &= has_plain;
    route
}

async fn serve_udp(request: UdpRequest, far_ends: &FarEnds, rules: &RuleBook) {
    let mut association = match request.accept().await {
        Ok(association) => association,
        Err(error) => {
            tracing::warn!(%error, "cannot open a UDP association");
            return;
        }
    };
    let flows: Associations<Destination, ()> = Associations::new(far_ends.clone());
    loop {
        let incoming = match association.receive().await {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "a UDP association failed");
                return;
            }
        };
        let destination = incoming.destination;
        let Some(target) = target_of(&destination) else {
            continue;
        };
        let sender = association.sender();
        flows.send(&destination.clone(), &incoming.payload, || {
            let facts = describe(&destination, Protocol::Udp);
            let others = sender.clone();
            let stranger = move |from: SocketAddr, payload: &[u8]| {
                others.send(&from.into(), payload);
            };
            Beginning {
                route: route(&destination, target, facts, rules),
                // SOCKS5 has no word for a refused datagram.
                deliver: Box::new(move |answer| {
                    if let Answer::Datagram(payload) = answer {
                        sender.send(&destination, payload);
                    }
                }),
                socket: Some(((), Box::new(stranger))),
                holder: None,
            }
        });
    }
}

fn target_of(destination: &Destination) -> Option<Target> {
    if destination.port == 0 {
        return None;
    }
    match &destination.host {
        Host::Ip(ip) => Some(Target::Address(SocketAddr::new(*ip, destination.port))),
        Host::Name(name) => Target::host(name, destination.port).ok(),
    }
}
