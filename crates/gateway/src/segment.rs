//! Packets the gateway writes itself, and those of others it changes on their way.

use std::net::{IpAddr, SocketAddr};

use crate::checksum::{Sum, TCP};
use crate::options::{self, Blocks};
use crate::packet::{Flags, IPV4_HEADER, IPV6_HEADER, Packet, TCP_HEADER};
use crate::seq::Seq;

/// What a host puts into its IP headers beside addresses: packets in its name have the same.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// DSCP; the two bits of ECN are zero, as on every ACK and retransmission (RFC 3168 §6.1.4).
    traffic_class: u8,
    hop_limit: u8,
    flow_label: [u8; 3],
}

impl Manner {
    /// Of a host without wishes.
    pub const PLAIN: Self = Self {
        traffic_class: 0,
        hop_limit: 64,
        flow_label: [0; 3],
    };

    pub(crate) fn of(packet: &Packet<'_>) -> Self {
        match *packet.ip_header() {
            [first, class, ..] if first >> 4 == 4 => Self {
                traffic_class: class & 0xfc,
                hop_limit: packet.ip_header()[8],
                flow_label: [0; 3],
            },
            [a, b, c, d, _, _, _, hop_limit, ..] => Self {
                traffic_class: (a << 4 | b >> 4) & 0xfc,
                hop_limit,
                flow_label: [b & 0xf, c, d],
            },
            // No IP header is shorter.
            _ => Self::PLAIN,
        }
    }
}

/// A segment to be written, as an IP packet.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Who sends it, or is said to.
    pub source: SocketAddr,
    /// Whom it is for: of the same family.
    pub destination: SocketAddr,
    /// What else its IP header says.
    pub manner: Manner,
    /// Number of its first byte.
    pub seq: Seq,
    /// What it acknowledges.
    pub ack: Seq,
    /// Its flags.
    pub flags: Flags,
    /// The window field.
    pub window: u16,
    /// Value and echo.
    pub timestamps: Option<(u32, u32)>,
    /// What arrived beyond holes.
    pub sack: Blocks,
    /// Its data.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// The packet.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(IPV6_HEADER + 60 + self.payload.len());
        let ip = match self.source {
            SocketAddr::V4(_) => IPV4_HEADER,
            SocketAddr::V6(_) => IPV6_HEADER,
        };
        tcp.resize(ip + TCP_HEADER, 0);
        options::write(&mut tcp, self.timestamps, self.sack);
        let words = ((tcp.len() - ip) / 4) as u16;
        tcp.extend_from_slice(self.payload);
        let mut packet = tcp;
        self.ip_header(&mut packet);
        let tcp = &mut packet[ip..];
        tcp[0..2].copy_from_slice(&self.source.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        tcp[12..14].copy_from_slice(&(words << 12 | self.flags.0).to_be_bytes());
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        seal(tcp, self.source.ip(), self.destination.ip());
        packet
    }

    fn ip_header(&self, packet: &mut [u8]) {
        let length = packet.len();
        let Manner {
            traffic_class,
            hop_limit,
            flow_label,
        } = self.manner;
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                packet[0] = 0x45;
                packet[1] = traffic_class;
                packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
                // Do not fragment; so the identification means nothing (RFC 6864 §4.1).
                packet[6] = 0x40;
                packet[8] = hop_limit;
                packet[9] = TCP;
                packet[12..16].copy_from_slice(&from.octets());
                packet[16..20].copy_from_slice(&to.octets());
                let mut sum = Sum::default();
                sum.add(&packet[..IPV4_HEADER]);
                packet[10..12].copy_from_slice(&sum.field().to_be_bytes());
            }
            (from, to) => {
                packet[0] = 0x60 | traffic_class >> 4;
                packet[1] = traffic_class << 4 | flow_label[0];
                packet[2..4].copy_from_slice(&flow_label[1..]);
                let payload = (length - IPV6_HEADER) as u16;
                packet[4..6].copy_from_slice(&payload.to_be_bytes());
                packet[6] = TCP;
                packet[7] = hop_limit;
                for (at, address) in [(8, from), (24, to)] {
                    let octets = match address {
                        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                        IpAddr::V6(v6) => v6.octets(),
                    };
                    packet[at..at + 16].copy_from_slice(&octets);
                }
            }
        }
    }
}

/// A copy of `packet` that acknowledges otherwise: without SACK blocks, which the gateway keeps for
/// itself, and with `echo` in its timestamps.
pub(crate) fn with_ack(
    packet: &Packet<'_>,
    ack: Seq,
    window: u16,
    ece: bool,
    echo: Option<u32>,
) -> Vec<u8> {
    let mut bytes = packet.bytes().to_vec();
    let (source, destination) = (packet.source().ip(), packet.destination().ip());
    let tcp = &mut bytes[packet.tcp_at()..];
    tcp[8..12].copy_from_slice(&ack.0.to_be_bytes());
    tcp[14..16].copy_from_slice(&window.to_be_bytes());
    let bit = Flags::ECE.0 as u8;
    tcp[13] = if ece { tcp[13] | bit } else { tcp[13] & !bit };
    let header = packet.payload_at() - packet.tcp_at();
    options::rewrite(&mut tcp[TCP_HEADER..header], echo);
    seal(tcp, source, destination);
    bytes
}

/// Puts the checksum in.
fn seal(tcp: &mut [u8], source: IpAddr, destination: IpAddr) {
    tcp[16..18].fill(0);
    let mut sum = Sum::default();
    sum.pseudo_header(source, destination, tcp.len());
    sum.add(tcp);
    let field = sum.field();
    tcp[16..18].copy_from_slice(&field.to_be_bytes());
}
