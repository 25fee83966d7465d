//! Hosts behind this machine: what they send through it, taken up by TPROXY and carried.
//!
//! Owns the sockets. Which packets come here is the filter's affair; where they go, `dispatcher`'s.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use tabane_linux::{
    neighbours::Neighbours,
    raw_ip::{RawIp, port_unreachable},
    routing::Routing,
    transparent::Transparent,
};
use tabane_policy::{HardwareAddress, Protocol, Sender};

use super::filter::{LAN, RELEASED};
use crate::associations::{Answer, Beginning, Deliver, Stranger};
use crate::dispatcher::{ACCEPT_PAUSE, Dispatcher};
use crate::lan_hosts::{Holder, Part};
use tabane_tunnel::{Headcount, OWN_MARK, Seldom};

const MAX_DATAGRAM: usize = 65_535;
/// Addresses that a socket hears of without having asked, which are remembered with a socket each.
const MAX_STRANGERS: usize = 16;
/// By these, under `net.bridge`, bridges have packets filtered as if they were routed.
const FILTERED: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];

/// The sockets for hosts behind this machine.
#[derive(Debug)]
pub(super) struct Lan {
    sockets: Rc<Transparent>,
    /// Where there is no right to ask, cards are unknown.
    neighbours: Option<Rc<Neighbours>>,
}

impl Lan {
    /// For hosts behind these interfaces.
    pub(super) async fn set_up(routing: &Routing, interfaces: &[String]) -> Result<Self> {
        refuse_filtered_bridges(interfaces)?;
        let sockets = Transparent::open(OWN_MARK);
        let mut sockets = sockets.context("cannot open sockets for hosts behind this one")?;
        if let Err(error) = sockets.hold_requests(RELEASED.mark) {
            tracing::warn!(
                "hosts of the LAN are connected before their destination has answered: {error}"
            );
        }
        routing.add_local(LAN.table).await?;
        for rule in [LAN, RELEASED] {
            routing.add_rule(rule).await?;
        }
        let sockets = Rc::new(sockets);
        let neighbours = Neighbours::open(interfaces.to_vec()).inspect_err(|error| {
            tracing::warn!(%error, "hosts of the LAN are known by their addresses alone");
        });
        let neighbours = neighbours.ok().map(Rc::new);
        Ok(Self {
            sockets,
            neighbours,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.sockets.port()
    }

    /// Takes connections for ever.
    pub(super) fn serve_tcp(&self, dispatcher: Dispatcher) -> impl Future<Output = ()> + use<> {
        let (sockets, neighbours) = (self.sockets.clone(), self.neighbours.clone());
        async move {
            let connections = Headcount::default();
            loop {
                match sockets.accept().await {
                    Ok((caller, dest)) => {
                        let sender = sender(neighbours.as_deref(), caller.from);
                        let mut route = dispatcher.route_from(sender, dest, Protocol::Tcp);
                        route.source = Some(caller.from);
                        let holder = Holder::of(sender, neighbours.is_some());
                        route.part = Some(Part::of(&connections, holder));
                        dispatcher.carry(caller, route);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of the LAN");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Takes datagrams for ever.
    pub(super) fn serve_udp(&self, dispatcher: Dispatcher) -> impl Future<Output = ()> + use<> {
        let (sockets, neighbours) = (self.sockets.clone(), self.neighbours.clone());
        async move {
            let associations = dispatcher.associations::<_, SocketAddr>();
            let errors = RawIp::open(Some(OWN_MARK)).ok().map(Rc::new);
            let mut buffer = vec![0; MAX_DATAGRAM];
            loop {
                let (length, from, dest) = match sockets.recv(&mut buffer).await {
                    Ok(received) => received,
                    Err(error) => {
                        tracing::warn!(%error, "cannot receive datagrams of the LAN");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let payload = &buffer[..length];
                let question = dispatcher.site_question(dest, payload);
                associations.send(&(from, dest, question), payload, || {
                    let deliver = deliver(&sockets, errors.clone(), from, dest);
                    let sender = sender(neighbours.as_deref(), from);
                    let mut route = dispatcher.route_from(sender, dest, Protocol::Udp);
                    route.source = Some(from);
                    Beginning {
                        route: match question {
                            Some(question) => route.led_to(question.resolver),
                            None => route,
                        },
                        deliver: dispatcher.listen(dest, question, payload, deliver),
                        socket: Some((from, stranger(sockets.clone(), from))),
                        holder: Some(Holder::of(sender, neighbours.is_some())),
                    }
                });
            }
        }
    }
}

/// A bridge that has packets filtered forgets which socket the filter has chosen for them, and they
/// lead nowhere: its hosts would be cut off.
fn refuse_filtered_bridges(interfaces: &[String]) -> Result<()> {
    let devices = Path::new("/sys/class/net");
    let is_bridge = |name: &&String| devices.join(name).join("bridge").exists();
    let Some(bridge) = interfaces.iter().find(is_bridge) else {
        return Ok(());
    };
    let is_on = |name: &&&str| {
        let value = fs::read_to_string(Path::new("/proc/sys/net/bridge").join(name));
        value.is_ok_and(|value| value.trim() != "0")
    };
    let on = FILTERED.iter().filter(is_on);
    let cure: Vec<String> = on.map(|name| format!("net.bridge.{name}=0")).collect();
    if !cure.is_empty() {
        bail!(
            "{bridge} is a bridge, whose hosts cannot be carried while bridges have packets \
             filtered (as Docker wants it): `sysctl -w {}` ends that",
            cure.join(" ")
        );
    }
    Ok(())
}

/// The host that sends from there.
fn sender(neighbours: Option<&Neighbours>, from: SocketAddr) -> Sender {
    let address = from.ip().to_canonical();
    Sender {
        address: Some(address),
        hardware: neighbours
            .and_then(|it| it.card_of(address))
            .map(HardwareAddress),
    }
}

/// Takes what comes from `dest` to the host's socket `to`, in the name of `dest`.
fn deliver(
    sockets: &Transparent,
    errors: Option<Rc<RawIp>>,
    to: SocketAddr,
    dest: SocketAddr,
) -> Deliver {
    let impostor = sockets.impostor(dest);
    if let Err(error) = &impostor {
        static TOLD: Seldom = Seldom::of(1, "");
        if TOLD.is_due() {
            tracing::warn!(%error, %dest, "cannot answer the LAN");
        }
    }
    Box::new(move |answer| match answer {
        Answer::Datagram(payload) => {
            if let Ok(impostor) = &impostor {
                // Lost like any datagram.
                let _ = impostor.try_send(to, payload);
            }
        }
        Answer::Refused => {
            if let (Some(errors), Some(packet)) = (&errors, port_unreachable(to, dest)) {
                let _ = errors.send(&packet);
            }
        }
    })
}

/// Takes to the host's socket `to` what comes from elsewhere.
fn stranger(sockets: Rc<Transparent>, to: SocketAddr) -> Stranger {
    let known = RefCell::new(BTreeMap::new());
    Box::new(move |from, payload| {
        let mut known = known.borrow_mut();
        if known.len() >= MAX_STRANGERS {
            known.clear();
        }
        let impostor = known
            .entry(from)
            .or_insert_with(|| sockets.impostor(from).ok());
        if let Some(impostor) = impostor {
            let _ = impostor.try_send(to, payload);
        }
    })
}
