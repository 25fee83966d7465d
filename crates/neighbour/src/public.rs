//! Which addresses are the internet's: a friend may borrow the way there, and never reach this
//! machine or the networks it is in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether anybody may hold this address (the special-purpose registries of RFC 6890), so that
/// nothing of ours is behind it; unless it belongs to a network that this machine is in, which is
/// the caller's to know.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    /// What a cloud tells its machines of themselves, keys among it (Azure's WireServer).
    const WIRE_SERVER: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        // This network, private, loopback, and multicast upwards with broadcast.
        (0 | 10 | 127 | 224..=255, _, _)
            // Behind a carrier's NAT (RFC 6598): the provider's own devices, and ours.
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            // Protocol assignments; examples; relays of 6to4; benchmarks.
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !is_special && address != WIRE_SERVER
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let [a, b, c, ..] = segments;
    // An address of the old internet within one of the new is judged by what a translator makes of
    // it: NAT64 (RFC 6052) and 6to4 (RFC 3056).
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match a {
        0x0064 if segments[1..6] == [0xff9b, 0, 0, 0, 0] => {
            is_public_v4(v4(segments[6], segments[7]))
        }
        0x2002 => is_public_v4(v4(b, c)),
        // Protocol assignments (Teredo among them), and examples.
        0x2001 if b < 0x0200 || b == 0x0db8 => false,
        // All that is given out as global unicast; examples of RFC 9637 apart.
        0x3fff if b < 0x1000 => false,
        _ => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_internet_is_public() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "168.63.129.16",
            "169.254.169.254",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.2.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:192.168.1.1",
            "::192.168.1.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::a00:1",
            "2002:c0a8:101::1",
            "2001:0:1::1",
            "2001:db8::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }
}
