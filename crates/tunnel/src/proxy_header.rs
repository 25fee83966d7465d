//! The header by which a server learns who has come, where another host connects to it (PROXY
//! protocol, version 2 of https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt, §2.2).
//!
//! Owns its form. It is written to servers that expect it; none is ever read or believed.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, on behalf of somebody.
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// The header of a TCP connection from `from` that was made to `at`.
#[must_use]
pub fn proxy_header(from: SocketAddr, at: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.push(PROXY);
    match (from.ip().to_canonical(), at.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(at)) => {
            header.extend([TCP4, 0, 12]);
            header.extend(from.octets());
            header.extend(at.octets());
        }
        // Both are of one family there.
        (from, at) => {
            header.extend([TCP6, 0, 36]);
            header.extend(as_v6(from).octets());
            header.extend(as_v6(at).octets());
        }
    }
    header.extend(from.port().to_be_bytes());
    header.extend(at.port().to_be_bytes());
    header
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(from: &str, at: &str) -> Vec<u8> {
        proxy_header(from.parse().unwrap(), at.parse().unwrap())
    }

    #[test]
    fn addresses_and_ports_stand_where_the_specification_has_them() {
        let v4 = header("192.0.2.1:50000", "203.0.113.1:443");
        let expected = [
            &b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a"[..],
            &[0x21, 0x11, 0x00, 0x0c],
            &[192, 0, 2, 1, 203, 0, 113, 1],
            &[0xc3, 0x50, 0x01, 0xbb],
        ]
        .concat();
        assert_eq!(v4, expected);
        assert_eq!(v4, header("[::ffff:192.0.2.1]:50000", "203.0.113.1:443"));

        let v6 = header("[2001:db8::1]:1", "[2001:db8::2]:2");
        assert_eq!(v6[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(v6.len(), 16 + 36);
        assert_eq!(v6[48..], [0, 1, 0, 2]);
        let mixed = header("192.0.2.1:1", "[2001:db8::2]:2");
        assert_eq!(
            mixed[16..32],
            "::ffff:192.0.2.1".parse::<Ipv6Addr>().unwrap().octets()
        );
    }
}
