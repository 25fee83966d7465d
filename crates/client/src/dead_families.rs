//! Families of addresses that lead nowhere, neither by the relay nor by this machine's own links.
//!
//! Programs are left alone with them, so that the kernel tells them at once, as on a machine that
//! never had the family, and `getaddrinfo` puts its addresses last (RFC 6724).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tabane_base::Prefix;
use tabane_linux::interfaces;
use tabane_tunnel::Families;

use crate::far_ends::FarEnds;

/// All addresses of both families.
pub(crate) const EVERYTHING: [Prefix; 2] = [
    Prefix {
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        bits: 0,
    },
    Prefix {
        address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        bits: 0,
    },
];

/// What is to be left alone, as relay and interfaces are at the moment.
pub(crate) async fn dead_families(far_ends: &FarEnds) -> Vec<Prefix> {
    let own = match interfaces::list().await {
        Ok(interfaces) => Families::of(&interfaces),
        // Whoever tries is told a round trip later.
        Err(_) => Families::BOTH,
    };
    dead(own.or(far_ends.families()))
}

/// Global unicast and unique local addresses of IPv6. Not all of it: the hooks know IPv4 addresses
/// in their IPv6-mapped form.
const UNICAST_V6: [Prefix; 2] = [
    Prefix {
        address: IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0)),
        bits: 3,
    },
    Prefix {
        address: IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)),
        bits: 7,
    },
];

fn dead(alive: Families) -> Vec<Prefix> {
    let v4 = EVERYTHING[0];
    let v4 = (!alive.v4).then_some(v4);
    let v6 = UNICAST_V6.into_iter().filter(|_| !alive.v6);
    v4.into_iter().chain(v6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_either_end_has_is_captured() {
        let only_v4 = Families {
            v4: true,
            v6: false,
        };
        let none = Families {
            v4: false,
            v6: false,
        };
        let left = |alive, address: &str| {
            let address = address.parse().unwrap();
            dead(alive).iter().any(|prefix| prefix.contains(address))
        };
        for (address, without_v6, without_any) in [
            ("2001:db8::1", true, true),
            ("fd00::1", true, true),
            ("192.0.2.1", false, true),
            // What the hooks make of an IPv4 address.
            ("::ffff:192.0.2.1", false, false),
        ] {
            assert_eq!(left(only_v4.or(none), address), without_v6, "{address}");
            assert_eq!(left(none, address), without_any, "{address}");
            assert!(!left(only_v4.or(Families::BOTH), address), "{address}");
        }
    }
}
