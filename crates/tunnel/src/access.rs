//! Which addresses a relay connects to on behalf of its clients.
//!
//! Owns the list of ranges that lead into somebody's private network instead of the internet. The
//! check applies to addresses after name resolution, or a name that points at `127.0.0.1` would
//! open the relay's own services to every client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A relay's policy towards destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Only addresses of the public internet.
    #[default]
    Public,
    /// Private, link-local and loopback addresses as well (`--allow-private`).
    Private,
    /// Only addresses of this host itself, loopback not among them: a peer (`--peer`).
    Own,
}

impl Access {
    /// Whether clients may reach `ip`.
    #[must_use]
    pub fn allows(self, ip: IpAddr) -> bool {
        let unicast = match ip.to_canonical() {
            IpAddr::V4(v4) => {
                !(v4.is_unspecified() || v4.is_multicast() || v4 == Ipv4Addr::BROADCAST)
            }
            IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast()),
        };
        match self {
            // Which addresses are own ones, the relay looks up.
            Self::Private | Self::Own => unicast,
            Self::Public => {
                unicast
                    && match ip {
                        IpAddr::V4(v4) => is_public_v4(v4),
                        IpAddr::V6(v6) => is_public_v6(v6),
                    }
            }
        }
    }
}

/// Not in the IANA registry of special-purpose IPv4 addresses (RFC 6890).
fn is_public_v4(ip: Ipv4Addr) -> bool {
    /// What a cloud tells its machines of themselves, keys among it (Azure's WireServer).
    const WIRE_SERVER: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    let [a, b, c, _] = ip.octets();
    let special = matches!(
        (a, b, c),
        // This network, private, loopback.
        (0 | 10 | 127, _, _)
            // Shared by carrier-grade NAT (RFC 6598).
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            // Protocol assignments, and DS-Lite's own ends among them (RFC 6333).
            | (192, 0, 0)
            // Benchmarks (RFC 2544): laboratories, not the internet.
            | (198, 18..=19, _)
            // Multicast, reserved and broadcast.
            | (224..=255, _, _)
    );
    !special && ip != WIRE_SERVER
}

/// Global unicast (2000::/3), and not a wrapping of an IPv4 address that is none.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    let v4_at = |high: usize| {
        let [a, b] = segments[high].to_be_bytes();
        let [c, d] = segments[high + 1].to_be_bytes();
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // v4-mapped.
        [0, 0, 0, 0, 0, 0xffff, ..] => v4_at(6),
        // NAT64's well-known prefix (RFC 6052) and 6to4 (RFC 3056).
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => v4_at(6),
        [0x2002, ..] => v4_at(1),
        // Teredo (RFC 4380) hides the address behind an exclusive or; nobody needs it.
        [0x2001, 0, ..] => false,
        [0x2000..=0x3fff, ..] => true,
        // Loopback, unique-local, link-local, site-local, multicast, v4-compatible, unassigned.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_in_every_disguise_are_refused() {
        for text in "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 \
            169.254.169.254 172.16.0.1 172.31.255.255 192.168.1.1 192.0.0.1 \
            198.18.0.1 168.63.129.16 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 \
            ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.1.2.3 ::ffff:169.254.169.254 \
            64:ff9b::10.0.0.1 64:ff9b:1::8.8.8.8 2002:7f00:1:: 2002:c0a8:101::1 \
            2001:0:1::1 fe80::1 fec0::1 fc00::1 fd12:3456::1 ff02::1 5f00::1"
            .split_whitespace()
        {
            let ip = text.parse().unwrap();
            assert!(!Access::Public.allows(ip), "{text}");
        }
    }

    #[test]
    fn the_internet_is_allowed() {
        for text in "1.1.1.1 100.63.0.1 100.128.0.1 172.15.0.1 172.32.0.1 192.167.0.1 \
            198.17.0.1 223.255.255.255 2606:4700::1111 2a00:1450::1 ::ffff:1.1.1.1 \
            64:ff9b::1.1.1.1 2002:101:101::1"
            .split_whitespace()
        {
            let ip = text.parse().unwrap();
            assert!(Access::Public.allows(ip), "{text}");
            assert!(Access::Private.allows(ip), "{text}");
        }
    }

    #[test]
    fn what_is_no_destination_stays_refused_even_with_leave() {
        for text in "0.0.0.0 255.255.255.255 224.0.0.1 :: ff02::1 ::ffff:0.0.0.0".split_whitespace()
        {
            assert!(!Access::Private.allows(text.parse().unwrap()), "{text}");
        }
        for text in "127.0.0.1 10.0.0.1 ::1 fe80::1 fd00::1 ::ffff:127.0.0.1".split_whitespace() {
            assert!(Access::Private.allows(text.parse().unwrap()), "{text}");
        }
    }
}
