//! The network interfaces of this host and whether each could be a link.
//!
//! Owns asking the kernel (netlink) and naming what it says; a [`Watch`] tells that something has
//! changed, and the list is asked for again. Works in the network namespace of the calling thread.
//! Whether a usable interface *is* used, and what it costs, is policy and left to others.

mod families;
mod kind;
mod listing;
mod watch;

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use crate::Egress;
use crate::advertised::Advertised;

pub use rtnetlink::packet_route::link::State;

pub use families::Families;
pub use kind::Kind;
pub(crate) use listing::routed_ranges;
pub use listing::{list, local, near};
pub use watch::Watch;

/// Names that container and virtual-machine hosts give to bridges with nothing beyond them.
const INSIDE_PREFIXES: [&str; 5] = ["docker", "br-", "virbr", "podman", "cni"];

/// Why interfaces could not be listed or watched.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The netlink socket could not be opened.
    #[error("cannot open a netlink socket: {0}")]
    Open(#[source] io::Error),
    /// The kernel refused an answer.
    #[error("cannot list {what}: {source}")]
    List {
        /// What was asked for.
        what: &'static str,
        /// What the kernel said.
        source: Box<rtnetlink::Error>,
    },
}

/// How far an address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Anywhere, as far as routing allows: private addresses too.
    Global,
    /// On the wire only: 169.254/16, fe80::/10.
    Link,
    /// In this host only.
    Host,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// How many leading bits the neighbours share.
    pub prefix_bits: u8,
    /// How far it reaches.
    pub scope: Scope,
    /// May be used for new sessions: not deprecated, not waiting for duplicate detection.
    pub ready: bool,
}

/// A default route that leaves by an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefaultRoute {
    /// The route's cost: the kernel prefers the lowest of all interfaces.
    pub metric: u32,
    /// Serves IPv6, else IPv4.
    pub is_v6: bool,
    /// The router. `None` where everything is on the wire, as on PPP and cellular links.
    pub gateway: Option<IpAddr>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's number for it.
    pub index: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Switched on by the administrator.
    pub up: bool,
    /// What the driver says of its state, RFC 2863.
    pub state: State,
    /// There is a cable, an association or a peer.
    pub carrier: bool,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// The bridge, bond or the like that it is a port of.
    pub controller: Option<u32>,
    /// Its addresses, global ones first.
    pub addresses: Vec<InterfaceAddress>,
    /// Its default routes, cheapest first.
    pub default_routes: Vec<DefaultRoute>,
    /// The wire's addresses (EUI-48) of those routes' gateways, as far as the kernel has them.
    pub gateways: Vec<(IpAddr, [u8; 6])>,
    /// What it is one of, where this is one of several gateways behind an interface, as a link of
    /// its own: its name is the link's then, and it has what belongs to this gateway alone.
    pub behind: Option<Behind>,
    /// What its routers say, as far as somebody has listened.
    pub advertised: Advertised,
}

/// One of several gateways behind an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The interface's name.
    pub interface: String,
    /// What leads packets to the gateway; `None` to the one that the routing table has anyway. Or
    /// why nothing does.
    pub mark: Result<Option<u32>, Unusable>,
}

/// Why an interface is no link by default. Who names it explicitly may use it all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unusable {
    /// It leads to this host itself.
    #[error("leads nowhere but here")]
    Loopback,
    /// A tunnel over other links; to bond it with those would count them twice.
    #[error("is a tunnel over other links")]
    Tunnel,
    /// Its packets are its bridge's or bond's.
    #[error("is a port of another interface")]
    Port,
    /// A virtual interface without default route: containers and virtual machines.
    #[error("leads to containers or virtual machines only")]
    Inside,
    /// Switched off.
    #[error("is down")]
    Down,
    /// No cable, association or peer.
    #[error("has no carrier")]
    NoCarrier,
    /// No address that reaches beyond the wire.
    #[error("has no global address")]
    NoAddress,
    /// One of several gateways, and no right to choose among them.
    #[error(
        "is one of several gateways behind its interface: to choose among them, run as root or \
         with CAP_NET_ADMIN"
    )]
    NoRight,
    /// Two were named that cannot be told apart.
    #[error("has the gateway of another link behind the same interface")]
    SameGateway,
    /// The name of a gateway's link is taken.
    #[error("is called as an interface, or another gateway, is")]
    SameName,
    /// The kernel took no route.
    #[error("is one of several gateways, and its route could not be made: see the log")]
    NoRoute,
    /// More gateways than there are marks for.
    #[error("is one gateway too many: 16 are used")]
    TooMany,
}

impl Interface {
    /// Whether this interface could be a link.
    ///
    /// # Errors
    /// Why not. Routes go with a link that goes down, so what they tell comes after that.
    pub fn usable(&self) -> Result<(), Unusable> {
        match self.kind {
            Kind::Loopback => return Err(Unusable::Loopback),
            Kind::Tunnel => return Err(Unusable::Tunnel),
            _ if self.controller.is_some() => return Err(Unusable::Port),
            _ => {}
        }
        if !self.up {
            return Err(Unusable::Down);
        }
        if !self.carrier {
            return Err(Unusable::NoCarrier);
        }
        // Ends of containers' and virtual machines' wires; but in a container, or on a host whose
        // uplink is a bridge, the way out, which a default route tells.
        let is_virtual = matches!(self.kind, Kind::Bridge | Kind::Veth | Kind::Dummy);
        if is_virtual && (self.default_routes.is_empty() || self.has_inside_name()) {
            return Err(Unusable::Inside);
        }
        if self.global_addresses().next().is_none() {
            return Err(Unusable::NoAddress);
        }
        match &self.behind {
            Some(Behind { mark: Err(why), .. }) => Err(*why),
            Some(_) | None => Ok(()),
        }
    }

    /// By where its packets leave.
    #[must_use]
    pub fn egress(&self) -> Egress {
        Egress {
            interface: self.interface().to_owned(),
            mark: self.behind.as_ref().and_then(|it| it.mark.ok().flatten()),
        }
    }

    /// The kernel's name for it, whatever the link is called.
    #[must_use]
    pub fn interface(&self) -> &str {
        let behind = self.behind.as_ref();
        behind.map_or(&self.name, |behind| &behind.interface)
    }

    /// The addresses that new sessions may use.
    pub fn global_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let usable = |address: &&InterfaceAddress| address.ready && address.scope == Scope::Global;
        self.addresses
            .iter()
            .filter(usable)
            .map(|address| address.address)
    }

    /// The gateway of the cheapest default route, IPv4's if there is one, and its address on the
    /// wire, if the kernel has that.
    pub fn gateway(&self) -> Option<(IpAddr, Option<[u8; 6]>)> {
        let of = |is_v6: bool| {
            let mut routes = self.default_routes.iter();
            routes.find_map(|route| route.gateway.filter(|_| route.is_v6 == is_v6))
        };
        let gateway = of(false).or_else(|| of(true))?;
        let mut known = self.gateways.iter();
        let known = known.find(|(address, _)| *address == gateway);
        Some((gateway, known.map(|(_, hardware)| *hardware)))
    }

    /// Whether a default route leads to this router.
    #[must_use]
    pub fn has_router(&self, router: Ipv6Addr) -> bool {
        let mut routes = self.default_routes.iter();
        routes.any(|route| route.gateway == Some(IpAddr::V6(router)))
    }

    fn has_inside_name(&self) -> bool {
        INSIDE_PREFIXES
            .iter()
            .any(|prefix| self.name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet() -> Interface {
        Interface {
            index: 2,
            name: "eth0".to_owned(),
            kind: Kind::Ethernet,
            up: true,
            state: State::Up,
            carrier: true,
            mtu: 1500,
            controller: None,
            addresses: vec![InterfaceAddress {
                address: "192.0.2.7".parse().unwrap(),
                prefix_bits: 24,
                scope: Scope::Global,
                ready: true,
            }],
            default_routes: Vec::new(),
            gateways: Vec::new(),
            behind: None,
            advertised: Advertised::default(),
        }
    }

    fn route() -> DefaultRoute {
        let gateway = Some("192.0.2.1".parse().unwrap());
        DefaultRoute {
            metric: 0,
            is_v6: false,
            gateway,
        }
    }

    #[test]
    fn a_gateway_is_ipv4s_first_and_known_by_its_card() {
        let [v4, v6] = ["192.0.2.1", "fe80::1"].map(|text| text.parse().unwrap());
        let sixth = |gateway| DefaultRoute {
            is_v6: true,
            gateway: Some(gateway),
            ..route()
        };
        let with = |default_routes: Vec<_>| Interface {
            default_routes,
            gateways: vec![(v6, [2; 6])],
            ..ethernet()
        };
        assert_eq!(with(Vec::new()).gateway(), None);
        assert_eq!(with(vec![sixth(v6)]).gateway(), Some((v6, Some([2; 6]))));
        assert_eq!(with(vec![sixth(v6), route()]).gateway(), Some((v4, None)));
    }

    #[test]
    fn links_are_told_from_what_only_looks_like_one() {
        let eth = ethernet;
        let veth = || Interface {
            kind: Kind::Veth,
            ..eth()
        };
        let bridge = |name: &str, routes| Interface {
            kind: Kind::Bridge,
            name: name.to_owned(),
            default_routes: routes,
            ..eth()
        };
        let mut tentative = eth();
        tentative.addresses[0].ready = false;
        let mut link_local = eth();
        link_local.addresses[0].scope = Scope::Link;

        for (interface, expected) in [
            (eth(), Ok(())),
            (
                Interface {
                    kind: Kind::Loopback,
                    ..eth()
                },
                Err(Unusable::Loopback),
            ),
            (
                Interface {
                    kind: Kind::Tunnel,
                    ..eth()
                },
                Err(Unusable::Tunnel),
            ),
            (
                Interface {
                    controller: Some(3),
                    ..eth()
                },
                Err(Unusable::Port),
            ),
            (veth(), Err(Unusable::Inside)),
            (
                Interface {
                    default_routes: vec![route()],
                    ..veth()
                },
                Ok(()),
            ),
            (bridge("br0", vec![route()]), Ok(())),
            (bridge("br0", vec![]), Err(Unusable::Inside)),
            (bridge("docker0", vec![route()]), Err(Unusable::Inside)),
            (
                Interface {
                    up: false,
                    carrier: false,
                    ..eth()
                },
                Err(Unusable::Down),
            ),
            (
                Interface {
                    carrier: false,
                    ..eth()
                },
                Err(Unusable::NoCarrier),
            ),
            (
                Interface {
                    addresses: Vec::new(),
                    ..eth()
                },
                Err(Unusable::NoAddress),
            ),
            (tentative, Err(Unusable::NoAddress)),
            (link_local, Err(Unusable::NoAddress)),
        ] {
            assert_eq!(interface.usable(), expected, "{interface:?}");
        }
    }
}
