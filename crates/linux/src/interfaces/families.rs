//! The families of addresses by which a host reaches others.

use std::net::IpAddr;

use super::{Interface, Kind};

/// IPv4 and IPv6: whether a host can reach others by each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// By IPv4.
    pub v4: bool,
    /// By IPv6.
    pub v6: bool,
}

impl Families {
    /// For hosts of which nothing is known.
    pub const BOTH: Self = Self { v4: true, v6: true };

    /// As the interfaces are: a family counts with an address that is good beyond its wire. Unique
    /// local ones (RFC 4193) are, where a default route leads on.
    #[must_use]
    pub fn of(interfaces: &[Interface]) -> Self {
        let beyond = interfaces.iter().filter(|it| it.kind != Kind::Loopback);
        let addresses: Vec<IpAddr> = beyond.flat_map(Interface::global_addresses).collect();
        let mut routes = interfaces.iter().flat_map(|it| &it.default_routes);
        let leads_on = routes.any(|route| route.is_v6);
        Self {
            v4: addresses.iter().any(IpAddr::is_ipv4),
            v6: addresses.iter().any(|address| match address {
                IpAddr::V4(_) => false,
                IpAddr::V6(v6) => leads_on || !v6.is_unique_local(),
            }),
        }
    }

    /// Those of either host.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            v4: self.v4 || other.v4,
            v6: self.v6 || other.v6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advertised::Advertised;
    use crate::interfaces::{DefaultRoute, InterfaceAddress, Scope, State};

    fn interface(kind: Kind, addresses: &[&str], v6_route: bool) -> Interface {
        let route = DefaultRoute {
            metric: 0,
            is_v6: true,
            gateway: None,
        };
        let address = |text: &&str| InterfaceAddress {
            address: text.parse().unwrap(),
            prefix_bits: 24,
            scope: match text.starts_with("fe80") {
                true => Scope::Link,
                false => Scope::Global,
            },
            ready: true,
        };
        Interface {
            index: 2,
            name: "eth0".to_owned(),
            kind,
            up: true,
            state: State::Up,
            carrier: true,
            mtu: 1500,
            controller: None,
            addresses: addresses.iter().map(address).collect(),
            default_routes: v6_route.then_some(route).into_iter().collect(),
            gateways: Vec::new(),
            behind: None,
            advertised: Advertised::default(),
        }
    }

    #[test]
    fn a_family_needs_an_address_that_is_good_beyond_the_wire() {
        for (kind, addresses, route, v4, v6) in [
            (
                Kind::Ethernet,
                &["192.0.2.1", "fe80::1"][..],
                false,
                true,
                false,
            ),
            (Kind::Ethernet, &["2001:db8::1"], false, false, true),
            (Kind::Ethernet, &["10.0.0.1", "fd00::1"], false, true, false),
            (Kind::Ethernet, &["10.0.0.1", "fd00::1"], true, true, true),
            (
                Kind::Loopback,
                &["192.0.2.1", "2001:db8::1"],
                false,
                false,
                false,
            ),
        ] {
            let found = Families::of(&[interface(kind, addresses, route)]);
            assert_eq!(found, Families { v4, v6 }, "{kind:?} {addresses:?}");
        }
    }
}
