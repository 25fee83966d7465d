//! Programs that know a proxy: their requests, carried through the session.
//!
//! Owns the listening socket and the limit on connections; the dialects are `tabane-proxy`'s, the
//! carrying is the tunnel's. Names are never looked up here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tabane_base::Duration;
use tabane_core::CloseReason;
use tabane_policy::{FlowFacts, Protocol};
use tabane_proxy::{
    Accepted, Destination, Host, Refusal, Request, TcpRequest, UdpRequest, negotiate,
};
use tabane_tunnel::{Label, OpenError, Status, Target, TcpFlow};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::associations::{Associations, Route};
use crate::carriage::Carriage;
use crate::far_ends::FarEnds;
use crate::rule_book::{RuleBook, Way};

/// Connections at once; as many as the session has streams, less some for UDP.
const MAX_CONNECTIONS: usize = 3_072;
/// Pause after `accept` failed for want of descriptors: some close meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A loopback port that speaks SOCKS5 and HTTP.
#[derive(Debug)]
pub(crate) struct ProxyListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl ProxyListener {
    /// Listens on `address`; port 0 lets the kernel choose.
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self> {
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
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves programs for ever.
    pub(crate) async fn serve(self, far_ends: FarEnds, carriage: Carriage, rules: RuleBook) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((program, from)) => {
                    let (far_ends, rules) = (far_ends.clone(), rules.clone());
                    let passenger = carriage.board();
                    tokio::task::spawn_local(async move {
                        serve_one(program, from, &far_ends, &rules).await;
                        drop((slot, passenger));
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
    let Some(target) = target_of(request.destination()) else {
        return request.refuse(Refusal::Unsupported).await;
    };
    let name = target.to_string();
    let label = match rules.admit(describe(request.destination(), Protocol::Tcp)) {
        Way::Carried(label) => label,
        Way::Direct => return serve_directly(request).await,
    };
    let flow = match open(far_ends, label, target).await {
        Some(Ok(flow)) => flow,
        None => return serve_directly(request).await,
        Some(Err(error)) => {
            tracing::info!(target = name, %error, "refused");
            return request.refuse(refusal_of(&error)).await;
        }
    };
    match request.accept().await {
        Ok(Accepted {
            client: program,
            early,
        }) => {
            let carried = flow.carry_after(&early, program).await;
            tracing::debug!(target = name, ?carried, "connection over");
        }
        Err(error) => tracing::debug!(target = name, %error, "the program is gone"),
    }
}

/// Straight to a peer, else by the relay; `None` where there is none.
async fn open(
    far_ends: &FarEnds,
    label: Label,
    target: Target,
) -> Option<Result<TcpFlow, OpenError>> {
    if let Some((peer, own)) = far_ends.straight(&target, Some(&label)).await {
        let opened = peer.labelled(Some(label.clone())).open_tcp(own).await;
        // What the destination itself says is the same by any way.
        if matches!(opened, Ok(_) | Err(OpenError::Refused(Status::Refused))) {
            return Some(opened);
        }
    }
    let relay = far_ends.relay()?;
    Some(relay.labelled(Some(label)).open_tcp(target).await)
}

/// Connects from here, as the program would have done by itself.
async fn serve_directly(request: TcpRequest) {
    let destination = request.destination();
    let name = destination.to_string();
    let connected = match &destination.host {
        Host::Ip(ip) => TcpStream::connect((*ip, destination.port)).await,
        Host::Name(host) => TcpStream::connect((host.as_str(), destination.port)).await,
    };
    let mut far = match connected {
        Ok(far) => far,
        Err(error) => {
            tracing::info!(target = name, %error, "not reached directly");
            let refusal = match error.kind() {
                io::ErrorKind::ConnectionRefused => Refusal::Refused,
                io::ErrorKind::TimedOut => Refusal::TimedOut,
                _ => Refusal::Unreachable,
            };
            return request.refuse(refusal).await;
        }
    };
    let carried = async {
        let Accepted { mut client, early } = request.accept().await?;
        far.set_nodelay(true)?;
        far.write_all(&early).await?;
        tokio::io::copy_bidirectional(&mut client, &mut far).await
    };
    if let Err(error) = carried.await {
        tracing::debug!(target = name, %error, "ended");
    }
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

/// The way of a UDP flow. Names are not looked up here, so only addresses can be direct.
fn route_udp(
    destination: &Destination,
    target: Target,
    rules: &RuleBook,
    has_relay: bool,
) -> Route {
    let way = rules.admit(describe(destination, Protocol::Udp));
    match (way, &destination.host) {
        (Way::Carried(label), host) => Route {
            label: Some(label),
            plain: match host {
                Host::Ip(ip) if !has_relay => Some(SocketAddr::new(*ip, destination.port)),
                Host::Ip(_) | Host::Name(_) => None,
            },
            ..target.into()
        },
        (Way::Direct, Host::Ip(ip)) => Route {
            plain: Some(SocketAddr::new(*ip, destination.port)),
            stays_here: true,
            ..target.into()
        },
        (Way::Direct, Host::Name(_)) => target.into(),
    }
}

async fn serve_udp(request: UdpRequest, far_ends: &FarEnds, rules: &RuleBook) {
    let mut association = match request.accept().await {
        Ok(association) => association,
        Err(error) => {
            tracing::warn!(%error, "cannot open a UDP association");
            return;
        }
    };
    let has_relay = far_ends.relay().is_some();
    let flows: Associations<Destination> = Associations::new(far_ends.clone());
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
            (
                route_udp(&destination, target, rules, has_relay),
                Box::new(move |answer: &[u8]| sender.send(&destination, answer)),
            )
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

fn refusal_of(error: &OpenError) -> Refusal {
    match error {
        OpenError::Refused(status) => match status {
            Status::Refused => Refusal::Refused,
            Status::Unreachable | Status::Open => Refusal::Unreachable,
            Status::TimedOut => Refusal::TimedOut,
            Status::NameNotFound => Refusal::NameNotFound,
            Status::Denied => Refusal::Denied,
            Status::Limit | Status::VolumeUsedUp => Refusal::Limit,
            Status::Malformed => Refusal::Unsupported,
        },
        OpenError::NoSession(CloseReason::Overloaded) | OpenError::Limit(_) => Refusal::Limit,
        OpenError::NoSession(_) | OpenError::SessionLost => Refusal::NoSession,
        OpenError::TimedOut => Refusal::TimedOut,
    }
}
