//! What routers and hosts say of packets that they do not pass on, or do not take (RFC 792,
//! RFC 4443), as IP packets of both families.
//!
//! Pure: parsing is total, and what is emitted is a whole packet with its checksums.

use std::net::IpAddr;

use crate::echo::{
    Echo, HOP_LIMIT, Kind, PROTOCOL_ICMP, PROTOCOL_ICMPV6, V4_HEADER, V6_HEADER, ip_header, seal,
};
use crate::ip_packet::IpPacket;

/// Type, code, checksum, and four bytes that depend on the type.
const HEADER: usize = 8;
/// What of a packet is quoted: no error is longer than IPv6 asks every link to take (RFC 4443
/// §2.4), or as hosts send of IPv4 (RFC 1812 §4.3.2.3).
const MAX_QUOTED_V4: usize = 576 - V4_HEADER - HEADER;
const MAX_QUOTED_V6: usize = 1_280 - V6_HEADER - HEADER;

/// What is said, whoever says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    /// Of a packet that is too big: what would not be.
    pub(crate) mtu: u16,
}

impl Complaint {
    /// It has passed as many routers as it may.
    pub(crate) const fn time_exceeded(is_v4: bool) -> Self {
        Self {
            kind: if is_v4 { 11 } else { 3 },
            code: 0,
            mtu: 0,
        }
    }

    /// Nobody can hand it to its host.
    pub(crate) const fn host_unreachable(is_v4: bool) -> Self {
        let (kind, code) = if is_v4 { (3, 1) } else { (1, 3) };
        Self { kind, code, mtu: 0 }
    }

    /// What this says of `packet`, which `destination` has sent, in the name of `source`; `None`
    /// where their addresses are of different families.
    pub(crate) fn emit(
        self,
        source: IpAddr,
        destination: IpAddr,
        packet: &[u8],
    ) -> Option<Vec<u8>> {
        let most = match destination {
            IpAddr::V4(_) => MAX_QUOTED_V4,
            IpAddr::V6(_) => MAX_QUOTED_V6,
        };
        let quoted = &packet[..packet.len().min(most)];
        let [high, low] = self.mtu.to_be_bytes();
        let mut message = vec![self.kind, self.code, 0, 0, 0, 0, high, low];
        message.extend(quoted);
        seal(&mut message, source, destination);
        let mut packet = ip_header(source, destination, HOP_LIMIT, message.len())?;
        packet.extend(message);
        Some(packet)
    }
}

/// Of an error about an echo request of the very host that it goes to: whom that had asked. `None`
/// for every other packet.
pub(crate) fn asked(packet: &[u8]) -> Option<IpAddr> {
    let header = IpPacket::parse(packet).ok()?;
    let (protocol, header_len) = match header.destination {
        IpAddr::V4(_) => (PROTOCOL_ICMP, V4_HEADER),
        IpAddr::V6(_) => (PROTOCOL_ICMPV6, V6_HEADER),
    };
    let message = packet.get(header_len..)?;
    let (&[kind, ..], quoted) = message.split_first_chunk::<HEADER>()?;
    // Unreachable, time exceeded, a parameter; of IPv6, too big.
    let is_error = match header.destination {
        IpAddr::V4(_) => matches!(kind, 3 | 11 | 12),
        IpAddr::V6(_) => matches!(kind, 1..=4),
    };
    // One of IPv6 has another header first, which is none of ICMP.
    let flags = u16::from_be_bytes([packet[6], packet[7]]);
    if header.destination.is_ipv4() && flags & 0x3fff != 0 {
        return None;
    }
    let request = Echo::parse_quoted(quoted).filter(|_| is_error && header.protocol == protocol)?;
    let is_own = request.kind == Kind::Request && request.source == header.destination;
    is_own.then_some(request.destination)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn request(source: &str, destination: &str) -> Vec<u8> {
        let echo = Echo {
            kind: Kind::Request,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            identifier: 0x1234,
            sequence: 7,
            hop_limit: 1,
            data: &[7; 1_400],
        };
        echo.emit().unwrap()
    }

    #[test]
    fn an_error_says_whose_request_it_is_about_though_it_quotes_only_its_beginning() {
        for (asker, host, router) in [
            ("192.168.10.2", "192.168.20.77", "192.168.20.1"),
            ("fd00:10::2", "fd00:20::77", "fd00:20::1"),
        ] {
            let packet = request(asker, host);
            let (asker, router): (IpAddr, IpAddr) =
                (asker.parse().unwrap(), router.parse().unwrap());
            let complaint = Complaint::time_exceeded(asker.is_ipv4());
            let error = complaint.emit(router, asker, &packet).unwrap();
            assert!(error.len() <= if asker.is_ipv4() { 576 } else { 1_280 });
            assert_eq!(asked(&error), Some(host.parse().unwrap()));
            // The request itself, an error for somebody else, and one about another protocol.
            assert_eq!(asked(&packet), None);
            assert_eq!(
                asked(&complaint.emit(asker, router, &packet).unwrap()),
                None
            );
            let mut other = packet.clone();
            other[if asker.is_ipv4() { 9 } else { 6 }] = 17;
            assert_eq!(asked(&complaint.emit(router, asker, &other).unwrap()), None);
            if asker.is_ipv4() {
                let mut piece = error.clone();
                piece[6] = 0x20;
                assert_eq!(asked(&piece), None);
            }
            // A reply is nothing that could be complained of.
            let mut reply = packet.clone();
            let (at, kind) = if asker.is_ipv4() { (20, 0) } else { (40, 129) };
            reply[at] = kind;
            assert_eq!(asked(&complaint.emit(router, asker, &reply).unwrap()), None);
        }
    }

    #[test]
    fn too_big_says_what_would_not_be() {
        let complaint = Complaint {
            kind: 3,
            code: 4,
            mtu: 1_280,
        };
        let packet = request("192.168.10.2", "192.168.20.2");
        let [asker, router] = ["192.168.10.2", "192.168.20.1"].map(|it| it.parse().unwrap());
        let error = complaint.emit(router, asker, &packet).unwrap();
        assert_eq!(&error[20..22], &[3, 4]);
        assert_eq!(&error[24..28], &[0, 0, 5, 0]);
    }

    #[test]
    fn cut_or_garbled_errors_are_none_and_nothing_panics() {
        let seed = Seed(9);
        let mut rng = seed.rng("packets");
        for (asker, host) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let packet = request(asker, host);
            let [asker, host] = [asker, host].map(|it| it.parse::<IpAddr>().unwrap());
            let complaint = Complaint::time_exceeded(asker.is_ipv4());
            let error = complaint.emit(host, asker, &packet).unwrap();
            for len in 0..error.len() {
                assert_eq!(asked(&error[..len]), None, "{len}");
            }
            for _ in 0..20_000 {
                let mut garbled = error.clone();
                for _ in 0..3 {
                    let at = rng.below(100) as usize;
                    garbled[at] = rng.below(256) as u8;
                }
                let _ = asked(&garbled);
            }
        }
    }
}
