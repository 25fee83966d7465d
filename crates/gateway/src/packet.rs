//! IP packets that carry TCP, read where they lie.
//!
//! Owns what makes a packet one that can be understood: everything else is told why not, and goes
//! on untouched. Offsets are checked once, in [`Packet::parse`]; the views cannot fail after that.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use crate::checksum::{Sum, TCP};
use crate::options::Options;
use crate::seq::Seq;

pub(crate) const TCP_HEADER: usize = 20;
pub(crate) const IPV4_HEADER: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;

/// Why a packet is none that the gateway understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum Malformed {
    /// It ends before its headers do, or before the length that it gives.
    #[error("truncated")]
    Truncated,
    /// Neither IPv4 nor IPv6.
    #[error("unknown IP version")]
    Version,
    /// An IPv4 header shorter than 20 bytes, or longer than the packet.
    #[error("bad IP header length")]
    HeaderLength,
    /// A piece of a packet: without its first bytes, or without its last.
    #[error("fragment")]
    Fragment,
    /// IPv6 with extension headers.
    #[error("IPv6 extension header")]
    ExtensionHeader,
    /// Not TCP at all.
    #[error("not TCP")]
    NotTcp,
    /// A TCP header shorter than 20 bytes, or longer than the packet.
    #[error("bad TCP header length")]
    DataOffset,
    /// An option of length 0 or 1, or one that ends beyond the header.
    #[error("bad TCP option")]
    Option,
    /// SYN with FIN or RST, or no flag at all.
    #[error("flags that do not go together")]
    Flags,
    /// The TCP checksum is wrong: whoever receives it drops it.
    #[error("wrong checksum")]
    Checksum,
}

/// TCP's flags (RFC 9293 §3.1), and the one that Accurate ECN took from the reserved bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x001);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x002);
    /// Reset the connection.
    pub const RST: Self = Self(0x004);
    /// Hand over at once.
    pub const PSH: Self = Self(0x008);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(0x010);
    /// The urgent pointer counts.
    pub const URG: Self = Self(0x020);
    /// An echo of congestion marks (RFC 3168 §6.1).
    pub const ECE: Self = Self(0x040);
    /// Congestion window reduced (RFC 3168 §6.1).
    pub const CWR: Self = Self(0x080);
    /// Accurate ECN, formerly NS.
    pub const AE: Self = Self(0x100);

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Both sets.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// A whole IP packet with a TCP segment in it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// From the IP header to the last byte of the payload; what a link appended is cut off.
    bytes: &'a [u8],
    /// Where TCP begins.
    tcp_at: usize,
    /// Where the payload begins.
    payload_at: usize,
}

impl<'a> Packet<'a> {
    /// Looks whether `bytes` are a packet the gateway understands. The checksum is looked at apart,
    /// by [`has_good_checksum`](Self::has_good_checksum): the kernel may know it already.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (tcp_at, end) = match bytes.first().ok_or(Malformed::Truncated)? >> 4 {
            4 => ipv4(bytes)?,
            6 => ipv6(bytes)?,
            _ => return Err(Malformed::Version),
        };
        if end > bytes.len() || end < tcp_at + TCP_HEADER {
            return Err(Malformed::Truncated);
        }
        let bytes = &bytes[..end];
        let header = usize::from(bytes[tcp_at + 12] >> 4) * 4;
        let payload_at = tcp_at + header;
        if header < TCP_HEADER || payload_at > end {
            return Err(Malformed::DataOffset);
        }
        let packet = Self {
            bytes,
            tcp_at,
            payload_at,
        };
        Options::check(packet.option_bytes()).ok_or(Malformed::Option)?;
        let flags = packet.flags();
        let both = |one, other| flags.has(one) && flags.has(other);
        if flags.0 & 0x3f == 0 || both(Flags::SYN, Flags::FIN) || both(Flags::SYN, Flags::RST) {
            return Err(Malformed::Flags);
        }
        Ok(packet)
    }

    /// Whether the TCP checksum is right.
    #[must_use]
    pub fn has_good_checksum(&self) -> bool {
        let mut sum = Sum::default();
        sum.pseudo_header(
            self.source().ip(),
            self.destination().ip(),
            self.bytes.len() - self.tcp_at,
        );
        sum.add(&self.bytes[self.tcp_at..]);
        sum.is_good()
    }

    /// Whether the TCP checksum covers nothing but the addresses and the length yet: what a stack
    /// leaves for hardware to complete.
    #[must_use]
    pub fn has_begun_checksum(&self) -> bool {
        let mut sum = Sum::default();
        let length = self.bytes.len() - self.tcp_at;
        sum.pseudo_header(self.source().ip(), self.destination().ip(), length);
        self.u16(16) == !sum.field()
    }

    /// Who sends it.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        SocketAddr::new(self.address(0), self.u16(0))
    }

    /// Whom it is for.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.address(1), self.u16(2))
    }

    /// The number of the first byte of the payload, or of the SYN.
    #[must_use]
    pub fn seq(&self) -> Seq {
        Seq(self.u32(4))
    }

    /// The number after the last byte of the payload; SYN and FIN count (RFC 9293 §3.4).
    #[must_use]
    pub fn seq_end(&self) -> Seq {
        let flags = self.flags();
        let control = u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN));
        self.seq() + (self.payload().len() as u32 + control)
    }

    /// Everything below it has been received. Counts only with [`Flags::ACK`].
    #[must_use]
    pub fn ack(&self) -> Seq {
        Seq(self.u32(8))
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> Flags {
        Flags(self.u16(12) & 0x1ff)
    }

    /// The window field, not scaled.
    #[must_use]
    pub fn window(&self) -> u16 {
        self.u16(14)
    }

    /// The options, read.
    #[must_use]
    pub fn options(&self) -> Options {
        Options::read(self.option_bytes())
    }

    /// The data.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.payload_at..]
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The IP header.
    #[must_use]
    pub(crate) fn ip_header(&self) -> &'a [u8] {
        &self.bytes[..self.tcp_at]
    }

    pub(crate) fn tcp_at(&self) -> usize {
        self.tcp_at
    }

    pub(crate) fn payload_at(&self) -> usize {
        self.payload_at
    }

    fn option_bytes(&self) -> &'a [u8] {
        &self.bytes[self.tcp_at + TCP_HEADER..self.payload_at]
    }

    fn u16(&self, at: usize) -> u16 {
        let at = self.tcp_at + at;
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 16 | u32::from(self.u16(at + 2))
    }

    /// The source's or the destination's.
    fn address(&self, which: usize) -> IpAddr {
        if self.bytes[0] >> 4 == 4 {
            let at = 12 + 4 * which;
            let mut octets = [0; 4];
            octets.copy_from_slice(&self.bytes[at..at + 4]);
            Ipv4Addr::from(octets).into()
        } else {
            let at = 8 + 16 * which;
            let mut octets = [0; 16];
            octets.copy_from_slice(&self.bytes[at..at + 16]);
            Ipv6Addr::from(octets).into()
        }
    }
}

/// Where TCP begins, and where the packet ends (RFC 791 §3.1).
fn ipv4(bytes: &[u8]) -> Result<(usize, usize), Malformed> {
    if bytes.len() < IPV4_HEADER {
        return Err(Malformed::Truncated);
    }
    let header = usize::from(bytes[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    if header < IPV4_HEADER || header > total {
        return Err(Malformed::HeaderLength);
    }
    // More fragments, or not the first.
    if u16::from_be_bytes([bytes[6], bytes[7]]) & 0x3fff != 0 {
        return Err(Malformed::Fragment);
    }
    if bytes[9] != TCP {
        return Err(Malformed::NotTcp);
    }
    Ok((header, total))
}

/// The same for IPv6 (RFC 8200 §3).
fn ipv6(bytes: &[u8]) -> Result<(usize, usize), Malformed> {
    if bytes.len() < IPV6_HEADER {
        return Err(Malformed::Truncated);
    }
    match bytes[6] {
        TCP => {}
        // Hop-by-hop, routing, fragment, destination options, authentication.
        0 | 43 | 44 | 51 | 60 => return Err(Malformed::ExtensionHeader),
        _ => return Err(Malformed::NotTcp),
    }
    let payload = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
    Ok((IPV6_HEADER, IPV6_HEADER + payload))
}
