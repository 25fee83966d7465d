//! IP packets as a relay has to know them before it lets them out: who sends them, where to, and
//! what they carry.
//!
//! Pure; parsing is total. What a header could hide (a route of its own, a protocol behind a
//! fragment) is refused instead of followed: RFC 791, RFC 8200 §4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
/// Extension headers in a row; honest packets have one or two.
const MAX_EXTENSIONS: usize = 8;

/// Protocol numbers (IANA).
pub(crate) mod protocol {
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(super) const DCCP: u8 = 33;
    pub(super) const SCTP: u8 = 132;
    pub(super) const UDP_LITE: u8 = 136;
}

/// IPv6 extension headers (RFC 8200 §4.1).
mod extension {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const DESTINATION: u8 = 60;
}

/// What a packet's headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpPacket {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Of the layer above.
    pub(crate) protocol: u8,
    /// The port it is for; 0 where the protocol has none, or another fragment tells it.
    pub(crate) port: u16,
}

/// Why bytes are no packet that could be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Neither 4 nor 6.
    Version,
    /// Cut within a header.
    Truncated,
    /// It says another length than it has.
    Length,
    /// IPv4 options, or a routing header: they may lead elsewhere than the address says.
    Route,
    /// More extension headers than any honest packet, or some within later fragments.
    Chain,
}

impl IpPacket {
    /// Reads the headers of a whole packet.
    pub(crate) fn parse(packet: &[u8]) -> Result<Self, Unfit> {
        match packet.first().ok_or(Unfit::Truncated)? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => Err(Unfit::Version),
        }
    }

    fn parse_v4(packet: &[u8]) -> Result<Self, Unfit> {
        let header: &[u8; V4_HEADER] = packet.first_chunk().ok_or(Unfit::Truncated)?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        match usize::from(header[0] & 0x0f) * 4 {
            V4_HEADER => {}
            0..V4_HEADER => return Err(Unfit::Length),
            _ => return Err(Unfit::Route),
        }
        if usize::from(word(2)) != packet.len() {
            return Err(Unfit::Length);
        }
        let address = |at: usize| {
            let octets = [header[at], header[at + 1], header[at + 2], header[at + 3]];
            IpAddr::V4(Ipv4Addr::from(octets))
        };
        let is_first = word(6) & 0x1fff == 0;
        let above = if is_first { &packet[V4_HEADER..] } else { &[] };
        Ok(Self {
            source: address(12),
            destination: address(16),
            protocol: header[9],
            port: port(header[9], above),
        })
    }

    fn parse_v6(packet: &[u8]) -> Result<Self, Unfit> {
        let header: &[u8; V6_HEADER] = packet.first_chunk().ok_or(Unfit::Truncated)?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if length != packet.len() - V6_HEADER {
            return Err(Unfit::Length);
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        let (protocol, above) = skip_extensions(header[6], &packet[V6_HEADER..])?;
        Ok(Self {
            source: address(8),
            destination: address(24),
            protocol,
            port: port(protocol, above),
        })
    }
}

/// The protocol behind the extension headers, and its bytes as far as this packet has them.
fn skip_extensions(mut next: u8, mut rest: &[u8]) -> Result<(u8, &[u8]), Unfit> {
    for _ in 0..MAX_EXTENSIONS {
        let length = match next {
            extension::HOP_BY_HOP | extension::DESTINATION => {
                8 + 8 * usize::from(*rest.get(1).ok_or(Unfit::Truncated)?)
            }
            extension::FRAGMENT => {
                let header: &[u8; 8] = rest.first_chunk().ok_or(Unfit::Truncated)?;
                if u16::from_be_bytes([header[2], header[3]]) >> 3 != 0 {
                    return match header[0] {
                        extension::HOP_BY_HOP
                        | extension::ROUTING
                        | extension::FRAGMENT
                        | extension::DESTINATION => Err(Unfit::Chain),
                        protocol => Ok((protocol, &[])),
                    };
                }
                8
            }
            extension::ROUTING => return Err(Unfit::Route),
            protocol => return Ok((protocol, rest)),
        };
        let (header, behind) = rest.split_at_checked(length).ok_or(Unfit::Truncated)?;
        (next, rest) = (header[0], behind);
    }
    Err(Unfit::Chain)
}

/// The destination port, in the protocols that have it where UDP has it.
fn port(protocol: u8, above: &[u8]) -> u16 {
    match (protocol, above) {
        (
            protocol::TCP | protocol::UDP | protocol::DCCP | protocol::SCTP | protocol::UDP_LITE,
            [_, _, high, low, ..],
        ) => u16::from_be_bytes([*high, *low]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let total = (V4_HEADER + payload.len()) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 203, 0, 113, 9]);
        packet.extend(payload);
        packet
    }

    fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([next, 64]);
        for address in ["2001:db8::1", "2001:db8::2"] {
            packet.extend(address.parse::<Ipv6Addr>().unwrap().octets());
        }
        packet.extend(payload);
        packet
    }

    #[test]
    fn addresses_protocol_and_port_are_read() {
        let packet = IpPacket::parse(&v4(253, b"odd")).unwrap();
        assert_eq!(packet.source, "192.0.2.1".parse::<IpAddr>().unwrap());
        assert_eq!(packet.destination, "203.0.113.9".parse::<IpAddr>().unwrap());
        assert_eq!((packet.protocol, packet.port), (253, 0));
        let lite = IpPacket::parse(&v4(protocol::UDP_LITE, &[0, 1, 31, 64, 0, 0, 0, 0])).unwrap();
        assert_eq!(lite.port, 8_000);
        let packet = IpPacket::parse(&v6(47, b"gre?")).unwrap();
        assert_eq!(packet.source, "2001:db8::1".parse::<IpAddr>().unwrap());
        assert_eq!((packet.protocol, packet.port), (47, 0));
    }

    #[test]
    fn a_protocol_behind_extension_headers_is_found_and_none_hides() {
        let tcp = [0, 80, 0, 80];
        let options = [protocol::TCP, 0, 1, 4, 0, 0, 0, 0];
        let found = IpPacket::parse(&v6(60, &[&options[..], &tcp].concat())).unwrap();
        assert_eq!((found.protocol, found.port), (protocol::TCP, 80));
        let fragment = |next: u8, offset: u16| {
            let [high, low] = (offset << 3).to_be_bytes();
            [next, 0, high, low, 0, 0, 0, 1]
        };
        let first = IpPacket::parse(&v6(44, &[&fragment(6, 0)[..], &tcp].concat())).unwrap();
        assert_eq!(first.protocol, protocol::TCP);
        let later = IpPacket::parse(&v6(44, &[&fragment(6, 9)[..], b"data"].concat())).unwrap();
        assert_eq!((later.protocol, later.port), (protocol::TCP, 0));
        let hidden = v6(44, &[&fragment(60, 9)[..], &options].concat());
        assert_eq!(IpPacket::parse(&hidden), Err(Unfit::Chain));
        assert_eq!(IpPacket::parse(&v6(43, &[6; 24])), Err(Unfit::Route));
        let endless: Vec<u8> = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
        assert_eq!(IpPacket::parse(&v6(60, &endless)), Err(Unfit::Chain));
        let mut routed = v4(253, &[7, 3, 4, 0]);
        routed[0] = 0x46;
        assert_eq!(IpPacket::parse(&routed), Err(Unfit::Route));
    }

    #[test]
    fn cut_or_stretched_packets_are_refused_and_nothing_panics() {
        let seed = Seed(8);
        let mut rng = seed.rng("packets");
        for packet in [
            v4(253, b"payload"),
            v6(60, &[253, 0, 1, 4, 0, 0, 0, 0, 1, 2]),
        ] {
            assert!(IpPacket::parse(&packet).is_ok());
            for len in 0..packet.len() {
                assert!(IpPacket::parse(&packet[..len]).is_err(), "{len}");
            }
            let longer = [&packet[..], b"x"].concat();
            assert_eq!(IpPacket::parse(&longer), Err(Unfit::Length));
            for _ in 0..20_000 {
                let mut garbled = packet.clone();
                for _ in 0..3 {
                    let at = rng.below(garbled.len() as u64) as usize;
                    garbled[at] = rng.below(256) as u8;
                }
                let _ = IpPacket::parse(&garbled);
            }
        }
    }
}
