//! Echo requests and replies ("ping") as IP packets, of both families.
//!
//! Pure: parsing is total, and what is emitted is a whole packet with its checksums. RFC 791,
//! RFC 792, RFC 8200 §3, RFC 4443 §4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const V4_HEADER: usize = 20;
pub(crate) const V6_HEADER: usize = 40;
/// Type, code, checksum, identifier, sequence number.
pub(crate) const ECHO_HEADER: usize = 8;
pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;
/// What hosts usually begin with; the way back has been counted by others.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Reply,
}

/// One echo message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Echo<'a> {
    pub(crate) kind: Kind,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) identifier: u16,
    pub(crate) sequence: u16,
    /// How many routers it may still pass.
    pub(crate) hop_limit: u8,
    pub(crate) data: &'a [u8],
}

impl<'a> Echo<'a> {
    /// Reads an IP packet; `None` for any other than a whole echo message.
    pub(crate) fn parse(packet: &'a [u8]) -> Option<Self> {
        let around = Around::parse(packet)?;
        around.echo(packet.get(around.header_len..around.end)?)
    }

    /// The same of a packet whose end may be missing, as errors quote it.
    pub(crate) fn parse_quoted(packet: &'a [u8]) -> Option<Self> {
        let around = Around::parse(packet)?;
        around.echo(packet.get(around.header_len..)?)
    }

    /// Reads the message alone, as sockets give it.
    pub(crate) fn parse_message(
        message: &'a [u8],
        source: IpAddr,
        destination: IpAddr,
    ) -> Option<Self> {
        let (header, data) = message.split_first_chunk::<ECHO_HEADER>()?;
        let [kind, code, _, _, id_high, id_low, seq_high, seq_low] = *header;
        let kind = match (kind, destination.is_ipv4()) {
            (8, true) | (128, false) => Kind::Request,
            (0, true) | (129, false) => Kind::Reply,
            _ => return None,
        };
        (code == 0).then_some(Self {
            kind,
            source,
            destination,
            identifier: u16::from_be_bytes([id_high, id_low]),
            sequence: u16::from_be_bytes([seq_high, seq_low]),
            hop_limit: HOP_LIMIT,
            data,
        })
    }

    /// The message alone, with its checksum.
    pub(crate) fn emit_message(&self) -> Vec<u8> {
        let (request, reply) = match self.destination {
            IpAddr::V4(_) => (8, 0),
            IpAddr::V6(_) => (128, 129),
        };
        let kind = match self.kind {
            Kind::Request => request,
            Kind::Reply => reply,
        };
        let mut message = vec![kind, 0, 0, 0];
        message.extend(self.identifier.to_be_bytes());
        message.extend(self.sequence.to_be_bytes());
        message.extend(self.data);
        seal(&mut message, self.source, self.destination);
        message
    }

    /// The whole packet; `None` where the addresses are of different families, or it is too long.
    pub(crate) fn emit(&self) -> Option<Vec<u8>> {
        let message = self.emit_message();
        let mut packet = ip_header(self.source, self.destination, self.hop_limit, message.len())?;
        packet.extend(message);
        Some(packet)
    }
}

/// What stands before a message of ICMP.
struct Around {
    source: IpAddr,
    destination: IpAddr,
    hop_limit: u8,
    header_len: usize,
    /// Of the packet, as its header says.
    end: usize,
}

impl Around {
    fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => None,
        }
    }

    fn parse_v4(packet: &[u8]) -> Option<Self> {
        let header: &[u8; V4_HEADER] = packet.first_chunk()?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        // More fragments, or an offset.
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        if is_fragment || header[9] != PROTOCOL_ICMP || header_len < V4_HEADER {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        Some(Self {
            source: address(12)?.into(),
            destination: address(16)?.into(),
            hop_limit: header[8],
            header_len,
            end: usize::from(u16::from_be_bytes([header[2], header[3]])),
        })
    }

    fn parse_v6(packet: &[u8]) -> Option<Self> {
        let header: &[u8; V6_HEADER] = packet.first_chunk()?;
        if header[6] != PROTOCOL_ICMPV6 {
            return None;
        }
        let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
        Some(Self {
            source: address(8)?.into(),
            destination: address(24)?.into(),
            hop_limit: header[7],
            header_len: V6_HEADER,
            end: V6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]])),
        })
    }

    fn echo<'a>(&self, message: &'a [u8]) -> Option<Echo<'a>> {
        let echo = Echo::parse_message(message, self.source, self.destination)?;
        let hop_limit = self.hop_limit;
        Some(Echo { hop_limit, ..echo })
    }
}

/// Puts the checksum into a message of ICMP.
pub(crate) fn seal(message: &mut [u8], source: IpAddr, destination: IpAddr) {
    message[2..4].fill(0);
    let mut sum = Checksum::default();
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) {
        // The pseudo-header, RFC 8200 §8.1.
        sum.add(&source.octets());
        sum.add(&destination.octets());
        sum.add(&(message.len() as u32).to_be_bytes());
        sum.add(&[0, 0, 0, PROTOCOL_ICMPV6]);
    }
    sum.add(message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

/// The header of a packet with a message of ICMP of this length; `None` where the addresses are of
/// different families, or it is too long.
pub(crate) fn ip_header(
    source: IpAddr,
    destination: IpAddr,
    hop_limit: u8,
    message_len: usize,
) -> Option<Vec<u8>> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = u16::try_from(V4_HEADER + message_len).ok()?;
            let mut header = [0; V4_HEADER];
            header[0] = 0x45;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[8] = hop_limit;
            header[9] = PROTOCOL_ICMP;
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
            let mut sum = Checksum::default();
            sum.add(&header);
            header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
            Some(header.to_vec())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let length = u16::try_from(message_len).ok()?;
            let mut header = [0; V6_HEADER];
            header[0] = 0x60;
            header[4..6].copy_from_slice(&length.to_be_bytes());
            header[6] = PROTOCOL_ICMPV6;
            header[7] = hop_limit;
            header[8..24].copy_from_slice(&source.octets());
            header[24..40].copy_from_slice(&destination.octets());
            Some(header.to_vec())
        }
        _ => None,
    }
}

/// The internet checksum (RFC 1071). Only the last piece may have an odd length.
#[derive(Default)]
struct Checksum(u32);

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            self.0 += u32::from(word);
            self.0 = (self.0 & 0xffff) + (self.0 >> 16);
        }
    }

    fn finish(&self) -> u16 {
        !(self.0 as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn samples() -> [Echo<'static>; 2] {
        let echo = |source: &str, destination: &str| Echo {
            kind: Kind::Request,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            identifier: 0x1234,
            sequence: 7,
            hop_limit: 9,
            data: b"odd",
        };
        [
            echo("192.0.2.1", "203.0.113.9"),
            echo("2001:db8::1", "2001:db8::2"),
        ]
    }

    fn sum(bytes: &[u8]) -> u16 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.finish()
    }

    #[test]
    fn what_is_emitted_parses_back_with_sums_that_are_right() {
        for echo in samples() {
            for kind in [Kind::Request, Kind::Reply] {
                let echo = Echo {
                    kind,
                    ..echo.clone()
                };
                let packet = echo.emit().unwrap();
                assert_eq!(Echo::parse(&packet), Some(echo.clone()));
                match echo.source {
                    // A sum over what contains its sum is zero.
                    IpAddr::V4(_) => {
                        assert_eq!(
                            (sum(&packet[..V4_HEADER]), sum(&packet[V4_HEADER..])),
                            (0, 0)
                        );
                    }
                    IpAddr::V6(_) => {
                        let pseudo = [&packet[8..40], &[0, 0, 0, 11, 0, 0, 0, 58]].concat();
                        assert_eq!(sum(&[&pseudo[..], &packet[V6_HEADER..]].concat()), 0);
                    }
                }
            }
        }
    }

    #[test]
    fn cut_foreign_or_garbled_packets_are_no_echoes_and_no_panics() {
        let seed = Seed(5);
        let mut rng = seed.rng("packets");
        for echo in samples() {
            let packet = echo.emit().unwrap();
            for len in 0..packet.len() {
                assert_eq!(Echo::parse(&packet[..len]), None, "{len}");
            }
            for _ in 0..20_000 {
                let mut garbled = packet.clone();
                let at = rng.below(garbled.len() as u64) as usize;
                garbled[at] = rng.below(256) as u8;
                let _ = Echo::parse(&garbled);
                garbled.truncate(rng.below(60) as usize);
                let _ = Echo::parse(&garbled);
            }
        }
    }
}
