//! Packets about a connection request: itself once more, a reset, an ICMP error.
//!
//! Owns their bytes. Whether and when they are sent is left to others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
/// What an ICMPv4 error shows of the packet it is about, behind its IP header (RFC 792).
const SHOWN: usize = 8;
const HOPS: u8 = 64;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const RST_ACK: u8 = 0x14;

/// Why a connection request is turned down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynRefusal {
    /// By a reset: `ECONNREFUSED`.
    Refused,
    /// By ICMP: `ENETUNREACH`.
    NetworkUnreachable,
    /// By ICMP: `EHOSTUNREACH`.
    HostUnreachable,
}

/// A connection request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Syn {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// The TCP header with its options.
    tcp: Vec<u8>,
}

impl Syn {
    /// Reads the fixed part of an IP header and a whole TCP header. `None` for anything else.
    pub(crate) fn parse(ip: &[u8], tcp: &[u8]) -> Option<Self> {
        if tcp.len() < TCP_HEADER || tcp.len() > 60 || tcp.len() != usize::from(tcp[12] >> 4) * 4 {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let (from, to) = match ip.first()? >> 4 {
            4 => {
                let address = |at: usize| {
                    let octets: [u8; 4] = *ip.get(at..)?.first_chunk()?;
                    Some(Ipv4Addr::from(octets))
                };
                (
                    SocketAddr::V4(SocketAddrV4::new(address(12)?, port(0))),
                    SocketAddr::V4(SocketAddrV4::new(address(16)?, port(2))),
                )
            }
            6 => {
                let address = |at: usize| {
                    let octets: [u8; 16] = *ip.get(at..)?.first_chunk()?;
                    Some(Ipv6Addr::from(octets))
                };
                (
                    SocketAddr::V6(SocketAddrV6::new(address(8)?, port(0), 0, 0)),
                    SocketAddr::V6(SocketAddrV6::new(address(24)?, port(2), 0, 0)),
                )
            }
            _ => return None,
        };
        let tcp = tcp.to_vec();
        Some(Self { from, to, tcp })
    }

    /// Where the connection's bytes begin.
    pub(crate) fn sequence(&self) -> u32 {
        u32::from_be_bytes([self.tcp[4], self.tcp[5], self.tcp[6], self.tcp[7]])
    }

    /// The request once more, without what data it may have brought: the sender repeats that.
    pub(crate) fn again(&self) -> Vec<u8> {
        let mut tcp = self.tcp.clone();
        fill_checksum(&mut tcp, 16, self.from.ip(), self.to.ip(), TCP);
        packet(self.from.ip(), self.to.ip(), TCP, &tcp)
    }

    /// What a closed port answers (RFC 9293 §3.10.7.1).
    pub(crate) fn reset(&self) -> Vec<u8> {
        let mut tcp = vec![0; TCP_HEADER];
        tcp[..2].copy_from_slice(&self.to.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.from.port().to_be_bytes());
        let acknowledged = self.sequence().wrapping_add(1);
        tcp[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        tcp[12] = (TCP_HEADER as u8 / 4) << 4;
        tcp[13] = RST_ACK;
        fill_checksum(&mut tcp, 16, self.to.ip(), self.from.ip(), TCP);
        packet(self.to.ip(), self.from.ip(), TCP, &tcp)
    }

    /// What a router at `own` answers that knows no way on. An unspecified `own` of IPv4 is filled
    /// in by the kernel.
    pub(crate) fn unreachable(&self, own: IpAddr, is_network: bool) -> Vec<u8> {
        let is_v4 = self.from.is_ipv4();
        let whole = self.again();
        let shown = match is_v4 {
            true => &whole[..IPV4_HEADER + SHOWN],
            // As much as fits the smallest MTU: all of it (RFC 4443 §3.1).
            false => &whole[..],
        };
        // RFC 792: network 0, host 1. RFC 4443 §3.1: no route 0, address unreachable 3.
        let (kind, code) = match (is_v4, is_network) {
            (true, true) => (3, 0),
            (true, false) => (3, 1),
            (false, true) => (1, 0),
            (false, false) => (1, 3),
        };
        let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(shown);
        if is_v4 {
            let sum = checksum(&message, 0);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            packet(own, self.from.ip(), ICMP, &message)
        } else {
            fill_checksum(&mut message, 2, own, self.from.ip(), ICMPV6);
            packet(own, self.from.ip(), ICMPV6, &message)
        }
    }
}

/// An IP packet; the kernel fills in the checksum of an IPv4 header that is sent raw.
pub(crate) fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = |header: usize| {
        let total = u16::try_from(header + payload.len()).expect("headers fit a packet");
        total.to_be_bytes()
    };
    let mut packet = Vec::with_capacity(IPV6_HEADER + payload.len());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x45, 0]);
            packet.extend(length(IPV4_HEADER));
            packet.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (from, to) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(length(0));
            packet.extend([protocol, HOPS]);
            packet.extend(as_v6(from).octets());
            packet.extend(as_v6(to).octets());
        }
    }
    packet.extend_from_slice(payload);
    packet
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The checksum with the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1), at `at` of `payload`.
fn fill_checksum(payload: &mut [u8], at: usize, from: IpAddr, to: IpAddr, protocol: u8) {
    payload[at..at + 2].fill(0);
    let mut sum = u32::from(protocol) + u32::try_from(payload.len()).expect("headers are short");
    for address in [from, to] {
        sum += match address {
            IpAddr::V4(v4) => words(&v4.octets()),
            IpAddr::V6(v6) => words(&v6.octets()),
        };
    }
    let sum = checksum(payload, sum);
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// RFC 1071.
pub(crate) fn checksum(bytes: &[u8], begin: u32) -> u16 {
    let mut sum = begin + words(bytes);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

pub(crate) fn words(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| (*low).into());
    bytes.chunks(2).map(word).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn(v6: bool) -> Syn {
        let mut tcp = vec![0; 24];
        tcp[..8].copy_from_slice(&[0x12, 0x34, 0, 80, 1, 2, 3, 4]);
        tcp[12] = 6 << 4;
        tcp[13] = 2;
        tcp[20..].copy_from_slice(&[2, 4, 5, 180]);
        let mut ip = vec![0; if v6 { 40 } else { 20 }];
        if v6 {
            ip[0] = 0x60;
            ip[8..24].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
            ip[24..].copy_from_slice(&"2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
        } else {
            ip[0] = 0x45;
            ip[12..].copy_from_slice(&[192, 0, 2, 1, 198, 51, 100, 7]);
        }
        Syn::parse(&ip, &tcp).unwrap()
    }

    /// Whoever receives it adds everything up, the checksum included, and gets zero.
    fn verifies(packet: &[u8]) -> bool {
        let (header, addresses, protocol) = match packet[0] >> 4 {
            4 => (IPV4_HEADER, 12..20, packet[9]),
            _ => (IPV6_HEADER, 8..40, packet[6]),
        };
        let payload = &packet[header..];
        let begin = match protocol {
            ICMP => 0,
            _ => words(&packet[addresses]) + u32::from(protocol) + payload.len() as u32,
        };
        checksum(payload, begin) == 0
    }

    #[test]
    fn a_request_goes_on_as_it_came() {
        for v6 in [false, true] {
            let syn = syn(v6);
            let again = syn.again();
            assert!(verifies(&again));
            let header = if v6 { IPV6_HEADER } else { IPV4_HEADER };
            let read = Syn::parse(&again[..header], &again[header..]).unwrap();
            assert_eq!((read.from, read.to), (syn.from, syn.to));
            assert_eq!(read.sequence(), 0x0102_0304);
            assert_eq!(read.tcp[20..], syn.tcp[20..]);
        }
    }

    #[test]
    fn answers_go_back_to_who_asked_and_name_what_they_are_about() {
        for v6 in [false, true] {
            let syn = syn(v6);
            let header = if v6 { IPV6_HEADER } else { IPV4_HEADER };
            let reset = syn.reset();
            assert!(verifies(&reset));
            let read = Syn::parse(&reset[..header], &reset[header..]).unwrap();
            assert_eq!((read.from, read.to), (syn.to, syn.from));
            assert_eq!(read.tcp[8..12], [1, 2, 3, 5]);
            let own: IpAddr = match v6 {
                true => "2001:db8::fe".parse().unwrap(),
                false => "192.0.2.254".parse().unwrap(),
            };
            let codes = [syn.unreachable(own, true), syn.unreachable(own, false)].map(|packet| {
                assert!(verifies(&packet));
                let about = &packet[header + 8..];
                assert_eq!(about[header..header + 4], [0x12, 0x34, 0, 80]);
                (packet[header], packet[header + 1])
            });
            let expected = if v6 {
                [(1, 0), (1, 3)]
            } else {
                [(3, 0), (3, 1)]
            };
            assert_eq!(codes, expected);
        }
    }

    #[test]
    fn what_is_no_request_is_left_out() {
        let good = syn(false);
        assert_eq!(Syn::parse(&[], &good.tcp), None);
        assert_eq!(Syn::parse(&[0x45; 12], &good.tcp), None);
        assert_eq!(Syn::parse(&[0x60; 39], &good.tcp), None);
        assert_eq!(Syn::parse(&[0x45; 20], &good.tcp[..23]), None);
        assert_eq!(Syn::parse(&[0x15; 20], &good.tcp), None);
    }
}
