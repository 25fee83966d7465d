//! IP packets as they pass the TUN device: reading their addresses, changing them, making new ones.
//!
//! Owns the bytes, and the kernel's note before each packet (`struct virtio_net_hdr`): with it,
//! packets of 64 kB pass at once and nobody adds up their checksums. Parsing is total.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::syn_hold::packet::{checksum, packet, words};

/// Of the kernel's note.
pub(super) const NOTE: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum has the pseudo-header alone, as yet.
const IS_PARTIAL: u8 = 1;
/// Room for a note and the longest packet.
pub(super) const ROOM: usize = NOTE + 65_536 + 64;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// What the headers of a packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) protocol: u8,
    /// With port 0 where the protocol has none.
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The service class.
    pub(super) dscp: u8,
    /// Where the transport's header begins.
    pub(super) transport: usize,
}

/// Reads a whole packet. `None` for fragments, extension headers and garbage: none of them comes
/// from a kernel that has a device as wide as the longest packet.
pub(super) fn parse(packet: &[u8]) -> Option<Header> {
    let (protocol, from, to, dscp, transport) = match packet.first()? >> 4 {
        4 => {
            let header: &[u8; IPV4_HEADER] = packet.first_chunk()?;
            let transport = usize::from(header[0] & 0xf) * 4;
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            if transport < IPV4_HEADER || is_fragment {
                return None;
            }
            let address = |at: usize| {
                let octets = [header[at], header[at + 1], header[at + 2], header[at + 3]];
                IpAddr::V4(Ipv4Addr::from(octets))
            };
            (
                header[9],
                address(12),
                address(16),
                header[1] >> 2,
                transport,
            )
        }
        6 => {
            let header: &[u8; IPV6_HEADER] = packet.first_chunk()?;
            let address = |at: usize| {
                let octets: [u8; 16] = *header.get(at..)?.first_chunk()?;
                Some(IpAddr::V6(Ipv6Addr::from(octets)))
            };
            let dscp = (header[0] & 0xf) << 2 | header[1] >> 6;
            (header[6], address(8)?, address(24)?, dscp, IPV6_HEADER)
        }
        _ => return None,
    };
    let (from_port, to_port) = match protocol {
        TCP | UDP => {
            let ports: &[u8; 4] = packet.get(transport..)?.first_chunk()?;
            (
                u16::from_be_bytes([ports[0], ports[1]]),
                u16::from_be_bytes([ports[2], ports[3]]),
            )
        }
        _ => (0, 0),
    };
    let least = match protocol {
        TCP => 20,
        UDP | ICMP | ICMPV6 => UDP_HEADER,
        _ => 0,
    };
    packet.get(transport..transport + least)?;
    Some(Header {
        protocol,
        from: SocketAddr::new(from, from_port),
        to: SocketAddr::new(to, to_port),
        dscp,
        transport,
    })
}

impl Header {
    /// The flags of a TCP segment.
    pub(super) fn flags(&self, packet: &[u8]) -> u8 {
        packet[self.transport + 13]
    }

    /// The sequence number of a TCP segment.
    pub(super) fn sequence(&self, packet: &[u8]) -> u32 {
        let at = self.transport + 4;
        u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
    }

    /// The TCP header with its options.
    pub(super) fn tcp<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let length = usize::from(packet[self.transport + 12] >> 4) * 4;
        packet.get(self.transport..self.transport + length)
    }

    /// What a datagram brings; may be empty.
    pub(super) fn datagram<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let at = self.transport;
        let length = usize::from(u16::from_be_bytes([packet[at + 4], packet[at + 5]]));
        packet.get(at + UDP_HEADER..at + length)
    }
}

/// Puts other addresses, of the same family, into a TCP segment behind its note.
pub(super) fn readdress(noted: &mut [u8], header: &Header, from: SocketAddr, to: SocketAddr) {
    let (note, packet) = noted.split_at_mut(NOTE);
    let is_partial = note[0] & IS_PARTIAL != 0;
    let (addresses, ports) = match header.from {
        SocketAddr::V4(_) => (12..20, header.transport..header.transport + 4),
        SocketAddr::V6(_) => (8..40, header.transport..header.transport + 4),
    };
    let summed = |packet: &[u8]| {
        let pseudo = words(&packet[addresses.clone()]);
        // The ports are not in the pseudo-header.
        pseudo
            + if is_partial {
                0
            } else {
                words(&packet[ports.clone()])
            }
    };
    let before = summed(packet);
    put_ip(&mut packet[addresses.start..], from.ip(), to.ip());
    packet[ports.start..ports.start + 2].copy_from_slice(&from.port().to_be_bytes());
    packet[ports.start + 2..ports.end].copy_from_slice(&to.port().to_be_bytes());
    let after = summed(packet);
    let at = header.transport + 16;
    let field = u16::from_be_bytes([packet[at], packet[at + 1]]);
    // RFC 1624: the sum without what was there, and with what is there.
    let sum = if is_partial { field } else { !field };
    let sum = fold(u32::from(sum) + u32::from(!fold(before)) + u32::from(fold(after)));
    let field = if is_partial { sum } else { !sum };
    packet[at..at + 2].copy_from_slice(&field.to_be_bytes());
    sum_ipv4(packet);
}

/// A datagram with its note; the kernel takes its checksum on trust.
pub(super) fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(UDP_HEADER + payload.len()).ok()?;
    let (header, addresses) = match (from, to) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => (IPV4_HEADER, 12..20),
        (SocketAddr::V6(_), SocketAddr::V6(_)) => (IPV6_HEADER, 8..40),
        _ => return None,
    };
    if header + usize::from(length) > usize::from(u16::MAX) {
        return None;
    }
    let mut body = Vec::with_capacity(usize::from(length));
    body.extend(from.port().to_be_bytes());
    body.extend(to.port().to_be_bytes());
    body.extend(length.to_be_bytes());
    body.extend([0; 2]);
    body.extend(payload);
    let mut whole = packet(from.ip(), to.ip(), UDP, &body);
    let pseudo = words(&whole[addresses]) + u32::from(UDP) + u32::from(length);
    whole[header + 6..header + 8].copy_from_slice(&fold(pseudo).to_be_bytes());
    sum_ipv4(&mut whole);
    let mut noted = Vec::with_capacity(NOTE + whole.len());
    noted.extend([IS_PARTIAL, 0, 0, 0, 0, 0]);
    noted.extend((header as u16).to_ne_bytes());
    noted.extend(6_u16.to_ne_bytes());
    noted.extend(whole);
    Some(noted)
}

/// A packet whose transport's checksum is right, with its note.
pub(super) fn noted(packet: &[u8]) -> Vec<u8> {
    let mut noted = vec![0; NOTE];
    noted.extend_from_slice(packet);
    sum_ipv4(&mut noted[NOTE..]);
    noted
}

fn put_ip(to_bytes: &mut [u8], from: IpAddr, to: IpAddr) {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            to_bytes[..4].copy_from_slice(&from.octets());
            to_bytes[4..8].copy_from_slice(&to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            to_bytes[..16].copy_from_slice(&from.octets());
            to_bytes[16..32].copy_from_slice(&to.octets());
        }
        // Flows have ends of one family.
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
    }
}

/// Fills in the checksum of the header, which IPv6 does not have.
fn sum_ipv4(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 {
        let header = usize::from(packet[0] & 0xf) * 4;
        packet[10..12].fill(0);
        let sum = checksum(&packet[..header], 0);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syn_hold::packet::Syn;

    fn addresses(v6: bool) -> [SocketAddr; 4] {
        let all = match v6 {
            false => [
                "192.0.2.1:4001",
                "198.51.100.7:80",
                "198.18.3.9:2000",
                "192.0.2.1:5",
            ],
            true => [
                "[2001:db8::1]:4001",
                "[2001:db8::7]:80",
                "[2001:2::3]:9",
                "[fd00::1]:5",
            ],
        };
        all.map(|text| text.parse().unwrap())
    }

    fn segment(v6: bool) -> Vec<u8> {
        let [from, to, ..] = addresses(v6);
        let mut tcp = vec![0; 20];
        tcp[..2].copy_from_slice(&from.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
        tcp[12] = 5 << 4;
        tcp[13] = SYN;
        let bare = packet(from.ip(), to.ip(), TCP, &tcp);
        let header = parse(&bare).unwrap();
        Syn::parse(&bare[..header.transport], &tcp).unwrap().again()
    }

    fn sum_of(packet: &[u8]) -> u16 {
        let header = parse(packet).unwrap();
        let addresses = if packet[0] >> 4 == 4 { 12..20 } else { 8..40 };
        let body = &packet[header.transport..];
        checksum(
            body,
            words(&packet[addresses]) + u32::from(header.protocol) + body.len() as u32,
        )
    }

    #[test]
    fn a_segment_with_other_addresses_adds_up() {
        for v6 in [false, true] {
            let mut noted = noted(&segment(v6));
            assert_eq!(sum_of(&noted[NOTE..]), 0);
            let header = parse(&noted[NOTE..]).unwrap();
            let [from, to, other_from, other_to] = addresses(v6);
            assert_eq!((header.from, header.to), (from, to));
            readdress(&mut noted, &header, other_from, other_to);
            let header = parse(&noted[NOTE..]).unwrap();
            assert_eq!((header.from, header.to), (other_from, other_to));
            assert_eq!(sum_of(&noted[NOTE..]), 0);
            if !v6 {
                assert_eq!(checksum(&noted[NOTE..NOTE + 20], 0), 0);
            }
        }
    }

    #[test]
    fn of_a_sum_that_is_not_finished_the_pseudo_header_alone_changes() {
        for v6 in [false, true] {
            let mut noted = noted(&segment(v6));
            noted[0] = IS_PARTIAL;
            let header = parse(&noted[NOTE..]).unwrap();
            let pseudo = |packet: &[u8]| {
                let addresses = if v6 { 8..40 } else { 12..20 };
                fold(words(&packet[addresses]) + u32::from(TCP) + 20)
            };
            let at = NOTE + header.transport + 16;
            let sum = pseudo(&noted[NOTE..]);
            noted[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            let [_, _, from, to] = addresses(v6);
            readdress(&mut noted, &header, from, to);
            let found = u16::from_be_bytes([noted[at], noted[at + 1]]);
            assert_eq!(found, pseudo(&noted[NOTE..]));
        }
    }

    #[test]
    fn a_datagram_says_where_it_is_from_and_is_trusted() {
        for v6 in [false, true] {
            let [from, to, ..] = addresses(v6);
            let noted = datagram(from, to, b"hello").unwrap();
            assert_eq!(noted[0], IS_PARTIAL);
            let header = parse(&noted[NOTE..]).unwrap();
            assert_eq!((header.from, header.to), (from, to));
            assert_eq!(header.datagram(&noted[NOTE..]), Some(&b"hello"[..]));
        }
        let [v4, ..] = addresses(false);
        let [v6, ..] = addresses(true);
        assert_eq!(datagram(v4, v6, b""), None);
        assert_eq!(datagram(v4, v4, &[0; 65_535]), None);
    }

    #[test]
    fn garbage_is_no_packet() {
        let good = segment(false);
        for length in 0..good.len() {
            assert_eq!(parse(&good[..length]), None, "{length}");
        }
        let mut fragment = good.clone();
        fragment[6] |= 0x20;
        assert_eq!(parse(&fragment), None);
        let mut short = good.clone();
        short[0] = 0x44;
        assert_eq!(parse(&short), None);
        assert_eq!(parse(&[0x60; 39]), None);
        assert_eq!(parse(&[0xff; 60]), None);
    }
}
