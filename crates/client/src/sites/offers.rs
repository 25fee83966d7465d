//! Networks behind this machine that others of its group are led to, by all links.
//!
//! Owns which of them may be offered at all, asking in every session, and that nobody is led but to
//! addresses of what was asked for.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::{Prefix, Protocol};
use tabane_linux::interfaces::{self, Interface};
use tabane_policy::FlowFacts;
use tabane_tunnel::{
    CallProtocol, Client, Domain, Exposure, ExposureEvent, OWN_MARK, OpenError, Status, Visitor,
    may_mark,
};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub(super) use super::domain_offer::DomainOffer;
pub use super::domain_offer::check_domains;
use super::{Sites, is_route, is_within};
use crate::exposing::{
    ExposureState, MAX_DATAGRAM, MAX_VISITORS, TARGET_WAIT, keep_asking, label, status_of,
};
use crate::plain::{self, PlainWay};
use crate::rule_book::RuleBook;

/// What is offered.
#[derive(Default)]
pub(super) struct Offers {
    networks: RefCell<Vec<(Rc<Offer>, AbortHandle)>>,
    domains: RefCell<Vec<(Rc<DomainOffer>, AbortHandle)>>,
}

/// One network, as its task and those who look at it see it.
pub(super) struct Offer {
    pub(super) prefix: Prefix,
    /// What is known of the others.
    pub(super) sites: Sites,
    /// Hosts see whom connections are for.
    shows: bool,
    pub(super) state: watch::Sender<ExposureState>,
    /// Why it is not even asked for.
    fault: RefCell<Option<String>>,
    pub(super) present: Cell<usize>,
    pub(super) so_far: Cell<u64>,
    /// Those for whom the target was not there.
    pub(super) in_vain: Cell<u64>,
    pub(super) is_also_wanted: Cell<bool>,
}

/// Counts somebody who is led there, while it is.
struct Presence(Rc<Offer>);

impl Offers {
    /// Asks for it from now on. Where it `shows`, hosts see whom connections are for.
    pub(super) fn begin(
        &self,
        relay: &Client,
        rules: &RuleBook,
        prefix: Prefix,
        (sites, shows): (Sites, bool),
    ) {
        let offer = Rc::new(Offer::new(prefix, sites, shows));
        let following = offer.clone().follow(relay.clone(), rules.clone());
        let task = tokio::task::spawn_local(following).abort_handle();
        self.networks.borrow_mut().push((offer, task));
    }

    /// Asks for this domain, too, from now on.
    pub(super) fn begin_domain(
        &self,
        relay: &Client,
        domain: &Domain,
        resolver: Option<SocketAddr>,
    ) {
        let offer = Rc::new(DomainOffer::new(domain.clone(), resolver, self.ranges()));
        let following = offer.clone().follow(relay.clone());
        let task = tokio::task::spawn_local(following).abort_handle();
        self.domains.borrow_mut().push((offer, task));
    }

    pub(super) fn domains(&self) -> Vec<Rc<DomainOffer>> {
        let offers = self.domains.borrow();
        offers.iter().map(|(offer, _)| offer.clone()).collect()
    }

    pub(super) fn ranges(&self) -> Vec<Prefix> {
        let offers = self.networks.borrow();
        offers.iter().map(|(offer, _)| offer.prefix).collect()
    }

    pub(super) fn all(&self) -> Vec<Rc<Offer>> {
        let offers = self.networks.borrow();
        offers.iter().map(|(offer, _)| offer.clone()).collect()
    }

    /// Gives all of them up.
    pub(super) fn stop(&self) {
        let networks = self.networks.take().into_iter().map(|(_, task)| task);
        let domains = self.domains.take().into_iter().map(|(_, task)| task);
        networks.chain(domains).for_each(|task| task.abort());
    }
}

/// Networks that may be offered at all, of what the user names.
///
/// # Errors
/// Why one of them may not be.
pub fn check_routes(ranges: &[Prefix]) -> Result<(), String> {
    for (place, range) in ranges.iter().enumerate() {
        if !is_route(range) {
            return Err(format!(
                "{range} is no network behind this machine; write it like 192.168.20.0/24"
            ));
        }
        if let Some(other) = ranges[..place].iter().find(|it| it.overlaps(range)) {
            return Err(format!(
                "the routes {other} and {range} overlap: name one of them"
            ));
        }
    }
    Ok(())
}

/// Why a network cannot be offered, where the relay or this machine's own links are in it: what
/// carries it would be led to it.
fn fault_of(range: &Prefix, relay: &[IpAddr], interfaces: &[Interface]) -> Option<String> {
    if let Some(ip) = relay.iter().find(|ip| range.contains(ip.to_canonical())) {
        return Some(format!(
            "{range}: the relay itself ({ip}) is in it; name the networks behind this machine alone"
        ));
    }
    let links = interfaces.iter().filter(|it| !it.default_routes.is_empty());
    let mut own = links.flat_map(|it| it.addresses.iter().map(move |own| (&it.name, own)));
    let (name, own) = own.find(|(_, own)| {
        let network = Prefix {
            address: own.address,
            bits: own.prefix_bits,
        };
        range.contains(own.address) || is_within(range, &network)
    })?;
    Some(format!(
        "{range}: the link {name} ({}) is in it; name the networks behind this machine alone",
        own.address
    ))
}

impl Offer {
    fn new(prefix: Prefix, sites: Sites, shows: bool) -> Self {
        Self {
            prefix,
            sites,
            shows,
            state: watch::Sender::new(ExposureState::Asked),
            fault: RefCell::default(),
            present: Cell::new(0),
            so_far: Cell::new(0),
            in_vain: Cell::new(0),
            is_also_wanted: Cell::new(false),
        }
    }

    async fn follow(self: Rc<Self>, relay: Client, rules: RuleBook) {
        let reached = |it| relay.until_reachable(it);
        let ask = || self.ask(&relay, &rules);
        let serve = |exposure| self.clone().serve(exposure, &rules);
        keep_asking(reached, &self.state, ask, |status| self.why(status), serve).await;
    }

    async fn ask(&self, relay: &Client, rules: &RuleBook) -> Result<Exposure, OpenError> {
        let addrs = relay.relay_addrs().into_iter().flatten();
        let addrs: Vec<_> = addrs.map(|addr| addr.ip()).collect();
        let interfaces = interfaces::list().await.unwrap_or_default();
        let fault = fault_of(&self.prefix, &addrs, &interfaces);
        let is_faulty = fault.is_some();
        *self.fault.borrow_mut() = fault;
        if is_faulty {
            return Err(OpenError::Refused(Status::PortUnavailable));
        }
        // What comes begins in its class.
        let label = label(rules, self.facts(None));
        relay.labelled(label).offer_route(self.prefix).await
    }

    /// What rules may ask for of those who come.
    fn facts(&self, to: Option<(SocketAddr, Protocol)>) -> FlowFacts {
        FlowFacts {
            port: to.map_or(0, |(at, _)| at.port()),
            protocol: to.map_or(Protocol::Tcp, |(_, protocol)| protocol),
            inbound: true,
            ..FlowFacts::default()
        }
    }

    /// Why it is not to be had, and what to do, for whoever wants it.
    fn why(&self, status: Status) -> String {
        if let Some(fault) = &*self.fault.borrow() {
            return fault.clone();
        }
        let range = self.prefix;
        match status {
            Status::Denied => format!(
                "{range}: the relay's owner has not granted it; `tabane relay user set NAME \
                 --routes {range}` there does, for the user whose client this is"
            ),
            Status::PortTaken => format!(
                "{range}: another client of the group has a route that overlaps; it keeps it until \
                 it gives it up"
            ),
            Status::PortUnavailable => format!("{range}: the relay's own addresses are in it"),
            Status::Malformed => {
                format!("{range}: the relay is older than `--route`: update tabane there")
            }
            Status::Limit => format!("{range}: the relay has as many routes as it may already"),
            status => format!("{range}: {status}"),
        }
    }

    /// Leads whoever comes to its destination, until nobody is led here any more.
    async fn serve(self: Rc<Self>, mut exposure: Exposure, rules: &RuleBook) {
        self.is_also_wanted.set(false);
        loop {
            match exposure.next().await {
                ExposureEvent::Visitor(visitor) => {
                    let leading = self.clone().lead(visitor, rules.clone());
                    tokio::task::spawn_local(leading);
                }
                ExposureEvent::AlsoWanted => {
                    if !self.is_also_wanted.replace(true) {
                        let range = self.prefix;
                        tracing::warn!("{range}: another client of the group has asked for it too");
                    }
                }
                ExposureEvent::Over => return,
            }
        }
    }

    async fn lead(self: Rc<Self>, mut visitor: Visitor, rules: RuleBook) {
        let at = visitor.at;
        self.so_far.set(self.so_far.get() + 1);
        let Some(spoken) = visitor.call_protocol().await else {
            return;
        };
        let protocol = match spoken {
            CallProtocol::Carried(protocol) => protocol,
            CallProtocol::Echoes | CallProtocol::Packets => Protocol::Udp,
        };
        let visitor = visitor.labelled(label(&rules, self.facts(Some((at, protocol)))));
        let presence = Presence::new(&self);
        let led = match self.may_go(at) {
            Err(status) => {
                visitor.refuse(status).await;
                Err(status)
            }
            Ok(()) => match spoken {
                CallProtocol::Carried(Protocol::Tcp) => self.lead_connection(visitor).await,
                CallProtocol::Carried(Protocol::Udp) => self.lead_datagrams(visitor).await,
                CallProtocol::Echoes => {
                    let mark = may_mark().then_some(OWN_MARK);
                    let may_ask = |ip| self.prefix.contains(ip);
                    visitor.answer_echoes(mark, may_ask).await;
                    Ok(())
                }
                CallProtocol::Packets => self.lead_packets(visitor).await,
            },
        };
        drop(presence);
        if let Err(status) = led {
            tracing::debug!(%at, "nobody is there for another site: {status}");
            self.in_vain.set(self.in_vain.get() + 1);
        }
    }

    /// The relay's word is not taken for what was offered.
    fn may_go(&self, at: SocketAddr) -> Result<(), Status> {
        if !self.prefix.contains(at.ip()) {
            return Err(Status::Denied);
        }
        match self.present.get() > MAX_VISITORS {
            true => Err(Status::Limit),
            false => Ok(()),
        }
    }
}

impl Presence {
    fn new(offer: &Rc<Offer>) -> Self {
        offer.present.set(offer.present.get() + 1);
        Self(offer.clone())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.present.set(self.0.present.get() - 1);
    }
}

impl Offer {
    /// In whose name its hosts are spoken to, if not in this machine's.
    async fn source(&self, from: SocketAddr) -> Option<SocketAddr> {
        match self.shows {
            true => self.sites.source(from).await,
            false => None,
        }
    }

    async fn connect(&self, at: SocketAddr, from: SocketAddr) -> io::Result<TcpStream> {
        match self.source(from).await {
            Some(from) => self.sites.0.sources.connect_for_site(at, from).await,
            None => plain::connect_tcp(at, &PlainWay::Routed).await,
        }
    }

    async fn bind(&self, at: SocketAddr, from: SocketAddr) -> io::Result<UdpSocket> {
        match self.source(from).await {
            Some(from) => self.sites.0.sources.bind_for_site(at, from).await,
            None => plain::connect_udp(at, &PlainWay::Routed).await,
        }
    }

    async fn lead_connection(&self, visitor: Visitor) -> Result<(), Status> {
        let (at, from) = (visitor.at, visitor.from);
        let connected = tokio::select! {
            connected = timeout(TARGET_WAIT, self.connect(at, from)) => connected,
            () = visitor.gone() => return Ok(()),
        };
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match connected {
            Ok(tcp) => {
                if let Ok(flow) = visitor.connected().await {
                    let carried = flow.carry(tcp).await;
                    tracing::debug!(%at, ?carried, "a connection of another site is over");
                }
                Ok(())
            }
            Err(error) => {
                let status = status_of(&error);
                visitor.refuse(status).await;
                Err(status)
            }
        }
    }

    /// Puts packets of others' hosts to those here, until no more come; where there is no device
    /// for them they are sent back.
    async fn lead_packets(&self, visitor: Visitor) -> Result<(), Status> {
        let Some(device) = self.sites.device() else {
            return Err(Status::Unreachable);
        };
        let packets = visitor.packets();
        while let Some(packet) = packets.recv().await {
            let is_ours = self.prefix.contains(packet.destination);
            if is_ours && self.sites.is_others(packet.source) {
                // Lost like any packet where the kernel has no room.
                let _ = device.try_send(&packet.bytes);
            }
        }
        Ok(())
    }

    /// Until either end has enough; a target that takes nothing ends it, which the other site is
    /// told.
    async fn lead_datagrams(&self, visitor: Visitor) -> Result<(), Status> {
        let (at, from) = (visitor.at, visitor.from);
        let flow = visitor.datagrams();
        let bound = self.bind(at, from).await;
        let socket = bound.map_err(|error| status_of(&error))?;
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            tokio::select! {
                received = flow.recv() => match received {
                    // What was said of an earlier one shows when receiving.
                    Ok(datagram) => {
                        if socket.send(&datagram).await.is_err() {
                            let _ = socket.send(&datagram).await;
                        }
                    }
                    Err(_) => return Ok(()),
                },
                answered = socket.recv(&mut buffer) => match answered {
                    // What is too large for the tunnel is lost, as beyond any MTU.
                    Ok(len) => drop(flow.send(&buffer[..len])),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        return Err(Status::Refused);
                    }
                    Err(_) => {}
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_linux::interfaces::{DefaultRoute, InterfaceAddress, Kind, Scope, State};

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap()
    }

    fn interface(name: &str, address: &str, prefix_bits: u8, is_link: bool) -> Interface {
        let route = DefaultRoute {
            metric: 0,
            is_v6: false,
            gateway: None,
        };
        Interface {
            index: 2,
            name: name.to_owned(),
            kind: Kind::Ethernet,
            up: true,
            state: State::Up,
            carrier: true,
            mtu: 1500,
            controller: None,
            addresses: vec![InterfaceAddress {
                address: address.parse().unwrap(),
                prefix_bits,
                scope: Scope::Global,
                ready: true,
            }],
            default_routes: is_link.then_some(route).into_iter().collect(),
            gateways: Vec::new(),
            behind: None,
            advertised: tabane_linux::advertised::Advertised::default(),
        }
    }

    #[test]
    fn networks_of_the_links_or_the_relay_are_not_offered() {
        let relay = [
            "203.0.113.1".parse().unwrap(),
            "::ffff:198.51.100.1".parse().unwrap(),
        ];
        let interfaces = [
            interface("usb0", "10.71.1.1", 24, true),
            interface("lan0", "192.168.20.1", 24, false),
        ];
        for (range, word) in [
            ("192.168.20.0/24", None),
            ("192.168.0.0/16", None),
            ("10.72.0.0/16", None),
            ("10.71.1.0/24", Some("usb0 (10.71.1.1)")),
            ("10.0.0.0/8", Some("usb0")),
            ("10.71.1.128/25", Some("usb0")),
            ("203.0.113.0/24", Some("the relay itself")),
            ("198.51.100.0/25", Some("the relay itself")),
        ] {
            let fault = fault_of(&prefix(range), &relay, &interfaces);
            assert_eq!(fault.is_some(), word.is_some(), "{range}: {fault:?}");
            let said = fault.unwrap_or_default();
            assert!(
                said.contains(word.unwrap_or_default()) && !said.contains('\n'),
                "{said}"
            );
        }
    }

    #[test]
    fn routes_that_overlap_or_are_no_networks_are_refused_in_a_line() {
        let check = |texts: &[&str]| {
            let ranges: Vec<_> = texts.iter().map(|text| prefix(text)).collect();
            check_routes(&ranges)
        };
        assert_eq!(check(&["192.168.20.0/24", "fd00:20::/64"]), Ok(()));
        let said = check(&["192.168.20.0/24", "192.168.0.0/16"]).unwrap_err();
        assert!(said.contains("overlap"), "{said}");
        let said = check(&["0.0.0.0/0"]).unwrap_err();
        assert!(said.contains("no network behind"), "{said}");
    }

    #[test]
    fn nobody_is_led_beyond_what_was_offered_and_every_refusal_says_what_to_do() {
        let offer = Offer::new(prefix("192.168.20.0/24"), Sites::default(), true);
        for (at, led) in [
            ("192.168.20.5:80", Ok(())),
            ("192.168.21.5:80", Err(Status::Denied)),
            ("127.0.0.1:22", Err(Status::Denied)),
        ] {
            assert_eq!(offer.may_go(at.parse().unwrap()), led, "{at}");
        }
        for (status, word) in [
            (Status::Denied, "user set NAME --routes 192.168.20.0/24"),
            (Status::PortTaken, "overlaps"),
            (Status::PortUnavailable, "relay's own addresses"),
            (Status::Malformed, "update tabane there"),
            (Status::Limit, "as many routes"),
        ] {
            let why = offer.why(status);
            assert!(why.contains(word) && !why.contains('\n'), "{why}");
        }
        *offer.fault.borrow_mut() = Some("in it".to_owned());
        assert_eq!(offer.why(Status::PortUnavailable), "in it");
    }
}
