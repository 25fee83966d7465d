//! The preface of a stream [P-T]: what the client asks of the relay; `status.rs`: its first byte.
//!
//! Owns the wire form. Parsing is total: any bytes give a request, a wish for more bytes, or an
//! error, and never look beyond the request. What a request leads to is the relay's affair.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tabane_base::{Prefix, Protocol};
use tabane_linux::interfaces::Families;

use crate::range::{address_type, emit_ip, emit_prefix, parse_prefix};
use crate::target::{HostName, MAX_NAME, Target};

mod claim;
mod status;

pub use claim::PortClaim;
pub use status::Status;

pub(crate) use claim::{emit_name, parse_name};

use claim::parse_claim;

/// The longest request: kind, address and port of a resolver, length and name of a domain.
pub(crate) const MAX_REQUEST: usize = 1 + (1 + 16 + 2) + 1 + MAX_NAME;

mod kind {
    pub(super) const TCP: u8 = 1;
    pub(super) const UDP: u8 = 2;
    pub(super) const RESOLVER_TCP: u8 = 3;
    pub(super) const RESOLVER_UDP: u8 = 4;
    pub(super) const PACKETS: u8 = 5;
    pub(super) const LODGED_PACKETS: u8 = 6;
    pub(super) const MAPPING: u8 = 7;
    pub(super) const FAMILIES: u8 = 9;
    pub(super) const MEASURE: u8 = 10;
    pub(super) const EXPOSE: u8 = 11;
    pub(super) const RELAYS: u8 = 12;
    pub(super) const ROUTE: u8 = 13;
    pub(super) const ROUTES: u8 = 14;
    pub(super) const NAMED_ROUTES: u8 = 15;
    pub(super) const TCP_FROM: u8 = 16;
    pub(super) const UDP_FROM: u8 = 17;
    pub(super) const DOMAIN: u8 = 18;
    pub(super) const LOADS: u8 = 19;
}

/// What a stream carries behind its preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The bytes of one TCP connection.
    Tcp,
    /// The same to another site, and whom it is from.
    TcpFrom(SocketAddr),
    /// Nothing: it stands for a UDP flow, whose datagrams carry the stream's id.
    Udp,
    /// The same to another site, and whom it is from.
    UdpFrom(SocketAddr),
    /// What became of datagrams: it stands for a UDP socket of a program, whose datagrams carry the
    /// stream's id and the address they go to or come from.
    Mapping,
    /// Nothing: it stands for all IP packets that are neither, as datagrams with the stream's id.
    Packets,
    /// The same; behind its status the relay says which addresses it gives for them.
    LodgedPackets,
    /// Nothing: behind its status the relay says by which families it reaches others.
    Families,
    /// Bytes that are sent only to be counted.
    Measure(Measure),
    /// Nothing: behind its status the relay gives its fleet's list of relays, where that is newer
    /// than the one of this epoch.
    Relays(u64),
    /// Nothing: behind its status the relay says how much each relay of its fleet has to do.
    Loads,
    /// Nothing: as long as it is open, the relay listens for this client and opens a stream for
    /// each visitor.
    Exposure(PortClaim),
    /// Nothing: as long as it is open, the relay opens a stream to this client for each connection
    /// and flow of its group to an address of the range.
    Route(Prefix),
    /// Nothing: as long as it is open, the relay tells the client's group that names of the
    /// target's domain are asked for here, at a resolver within one of its routes.
    Domain(SocketAddr),
    /// Nothing: behind its status the relay says which routes others of the client's group have,
    /// and again whenever that changes.
    Routes,
    /// The same with more of each. Who knows this knows the kinds that say whom they are from.
    NamedRoutes,
}

/// Kinds behind which nothing follows.
const BARE: [(u8, Transport); 6] = [
    (kind::PACKETS, Transport::Packets),
    (kind::LODGED_PACKETS, Transport::LodgedPackets),
    (kind::FAMILIES, Transport::Families),
    (kind::ROUTES, Transport::Routes),
    (kind::NAMED_ROUTES, Transport::NamedRoutes),
    (kind::LOADS, Transport::Loads),
];

/// Which way bytes go that only show how fast they go [P-T.8].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Measure {
    /// To the client, as many as get there.
    Down = 0,
    /// To the relay, which says how many have come.
    Up = 1,
    /// To the relay and back.
    Echo = 2,
}

impl Measure {
    const fn parse(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Down,
            1 => Self::Up,
            2 => Self::Echo,
            _ => return None,
        })
    }
}

/// The client's first bytes on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// TCP, UDP or the rest.
    pub transport: Transport,
    /// Where to.
    pub target: Target,
}

/// Bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The first byte names no kind of request, or the second no way of measuring.
    #[error("unknown kind of request")]
    Kind,
    /// The second byte names no kind of address.
    #[error("unknown kind of address")]
    AddressType,
    /// A range of another kind, with more bits than an address has, or not its first address.
    #[error("not a range of addresses")]
    Range,
    /// The name is empty, too long, or has characters that no name has.
    #[error("not a host name")]
    Name,
    /// Port 0.
    #[error("port 0 cannot be connected to")]
    Port,
}

impl Request {
    /// Appends the wire form to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(match (&self.target, self.transport) {
            (Target::Resolver, Transport::Tcp) => kind::RESOLVER_TCP,
            (Target::Resolver, Transport::Udp) => kind::RESOLVER_UDP,
            (_, Transport::Measure(measure)) => {
                out.extend([kind::MEASURE, measure as u8]);
                return;
            }
            (_, Transport::Relays(known)) => {
                out.push(kind::RELAYS);
                out.extend(known.to_be_bytes());
                return;
            }
            (target, Transport::Exposure(claim)) => {
                out.push(kind::EXPOSE);
                return claim.emit(target.name(), out);
            }
            (_, Transport::Route(prefix)) => {
                out.push(kind::ROUTE);
                return emit_prefix(prefix, out);
            }
            (target, Transport::Domain(resolver)) => {
                out.push(kind::DOMAIN);
                emit_address(resolver, out);
                return emit_name(target.name(), out);
            }
            (Target::Address(at), Transport::TcpFrom(from)) => {
                return emit_pair(kind::TCP_FROM, from, *at, out);
            }
            (Target::Address(at), Transport::UdpFrom(from)) => {
                return emit_pair(kind::UDP_FROM, from, *at, out);
            }
            (
                _,
                Transport::Packets
                | Transport::LodgedPackets
                | Transport::Families
                | Transport::Routes
                | Transport::NamedRoutes
                | Transport::Loads,
            )
            | (Target::Anywhere, _) => {
                let bare = BARE.iter().find(|(_, it)| *it == self.transport);
                out.push(bare.map_or(kind::PACKETS, |(kind, _)| *kind));
                return;
            }
            (_, Transport::Tcp | Transport::TcpFrom(_)) => kind::TCP,
            (_, Transport::Udp | Transport::UdpFrom(_)) => kind::UDP,
            (_, Transport::Mapping) => kind::MAPPING,
        });
        match &self.target {
            Target::Resolver | Target::Anywhere => {}
            Target::Address(address) => emit_address(*address, out),
            Target::Name { name, port } => {
                let len = u8::try_from(name.as_str().len()).expect("names have at most 253 bytes");
                out.extend([address_type::NAME, len]);
                out.extend(name.as_str().as_bytes());
                out.extend(port.to_be_bytes());
            }
        }
    }

    /// Reads a request from the front of `bytes` and gives it with the number of bytes it took;
    /// `None` where more bytes are needed.
    ///
    /// # Errors
    /// See [`RequestError`]; reported as early as the bytes show it.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, RequestError> {
        let Some((&kind, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        if let Some((_, transport)) = BARE.iter().find(|(it, _)| *it == kind) {
            let (transport, target) = (*transport, Target::Anywhere);
            return Ok(Some((Self { transport, target }, 1)));
        }
        if kind == kind::MEASURE {
            let Some(&way) = rest.first() else {
                return Ok(None);
            };
            let target = Target::Anywhere;
            let measure = Measure::parse(way).ok_or(RequestError::Kind)?;
            let transport = Transport::Measure(measure);
            return Ok(Some((Self { transport, target }, 2)));
        }
        if kind == kind::RELAYS {
            let target = Target::Anywhere;
            return Ok(rest.first_chunk().map(|known| {
                let transport = Transport::Relays(u64::from_be_bytes(*known));
                (Self { transport, target }, 9)
            }));
        }
        if kind == kind::ROUTE {
            let target = Target::Anywhere;
            let parsed = parse_prefix(rest).map_err(|_| RequestError::Range)?;
            return Ok(parsed.map(|(prefix, used)| {
                let transport = Transport::Route(prefix);
                (Self { transport, target }, 1 + used)
            }));
        }
        if matches!(kind, kind::TCP_FROM | kind::UDP_FROM) {
            return Ok(parse_from(kind, rest)?.map(|(request, used)| (request, 1 + used)));
        }
        if kind == kind::DOMAIN {
            return Ok(parse_domain(rest)?.map(|(request, used)| (request, 1 + used)));
        }
        if kind == kind::EXPOSE {
            return Ok(parse_claim(rest)?.map(|(request, used)| (request, 1 + used)));
        }
        let transport = match kind {
            kind::TCP | kind::RESOLVER_TCP => Transport::Tcp,
            kind::UDP | kind::RESOLVER_UDP => Transport::Udp,
            kind::MAPPING => Transport::Mapping,
            _ => return Err(RequestError::Kind),
        };
        if matches!(kind, kind::RESOLVER_TCP | kind::RESOLVER_UDP) {
            let target = Target::Resolver;
            return Ok(Some((Self { transport, target }, 1)));
        }
        if kind == kind::MAPPING && rest.first() == Some(&address_type::NAME) {
            return Err(RequestError::AddressType);
        }
        Ok(parse_target(rest)?.map(|(target, used)| (Self { transport, target }, 1 + used)))
    }
}

fn emit_pair(kind: u8, from: SocketAddr, at: SocketAddr, out: &mut Vec<u8>) {
    out.push(kind);
    emit_address(from, out);
    emit_address(at, out);
}

/// Reads a request to another site, behind its kind.
fn parse_from(kind: u8, rest: &[u8]) -> Result<Option<(Request, usize)>, RequestError> {
    let Some((from, first)) = parse_address(rest)? else {
        return Ok(None);
    };
    let transport = match kind {
        kind::TCP_FROM => Transport::TcpFrom(from),
        _ => Transport::UdpFrom(from),
    };
    let at = parse_address(&rest[first..])?;
    Ok(at.map(|(at, second)| {
        let target = Target::Address(at);
        (Request { transport, target }, first + second)
    }))
}

/// Reads a domain's request, behind its kind.
fn parse_domain(rest: &[u8]) -> Result<Option<(Request, usize)>, RequestError> {
    let Some((resolver, first)) = parse_address(rest)? else {
        return Ok(None);
    };
    let name = parse_name(&rest[first..])?;
    Ok(name.map(|(name, second)| {
        let port = resolver.port();
        let target = name.map_or(Target::Anywhere, |name| Target::Name { name, port });
        let transport = Transport::Domain(resolver);
        (Request { transport, target }, first + second)
    }))
}

/// Reads an address and a port: a target that is no name.
pub(crate) fn parse_address(bytes: &[u8]) -> Result<Option<(SocketAddr, usize)>, RequestError> {
    if bytes.first() == Some(&address_type::NAME) {
        return Err(RequestError::AddressType);
    }
    Ok(match parse_target(bytes)? {
        Some((Target::Address(address), used)) => Some((address, used)),
        Some(_) | None => None,
    })
}

/// Writes an address and a port.
pub(crate) fn emit_address(address: SocketAddr, out: &mut Vec<u8>) {
    emit_ip(address.ip(), out);
    out.extend(address.port().to_be_bytes());
}

fn parse_target(bytes: &[u8]) -> Result<Option<(Target, usize)>, RequestError> {
    let Some((&address_type, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    match address_type {
        address_type::V4 => with_port(rest.split_first_chunk::<4>(), 1 + 4, |octets, port| {
            Ok(Target::Address((Ipv4Addr::from(*octets), port).into()))
        }),
        address_type::V6 => with_port(rest.split_first_chunk::<16>(), 1 + 16, |octets, port| {
            Ok(Target::Address(SocketAddr::from((
                Ipv6Addr::from(*octets),
                port,
            ))))
        }),
        address_type::NAME => {
            let Some((&len, rest)) = rest.split_first() else {
                return Ok(None);
            };
            let len = usize::from(len);
            if len == 0 || len > MAX_NAME {
                return Err(RequestError::Name);
            }
            with_port(rest.split_at_checked(len), 2 + len, |name, port| {
                let name = std::str::from_utf8(name).map_err(|_| RequestError::Name)?;
                let name = HostName::new(name).map_err(|_| RequestError::Name)?;
                Ok(Target::Name { name, port })
            })
        }
        _ => Err(RequestError::AddressType),
    }
}

/// Reads the port behind a host of `used` bytes, then makes the target of both.
fn with_port<H: ?Sized>(
    split: Option<(&H, &[u8])>,
    used: usize,
    target: impl FnOnce(&H, u16) -> Result<Target, RequestError>,
) -> Result<Option<(Target, usize)>, RequestError> {
    let Some((host, rest)) = split else {
        return Ok(None);
    };
    let Some(port) = rest.first_chunk::<2>() else {
        return Ok(None);
    };
    match u16::from_be_bytes(*port) {
        0 => Err(RequestError::Port),
        port => Ok(Some((target(host, port)?, used + 2))),
    }
}

/// The byte that stands for a protocol.
pub(crate) fn protocol_byte(protocol: Protocol) -> u8 {
    u8::from(protocol == Protocol::Udp)
}

/// The byte that stands for echo requests and replies, as whole packets, where calls of a site are
/// told apart.
pub(crate) const ECHO_BYTE: u8 = 2;
/// The same for packets that are neither those, TCP nor UDP.
pub(crate) const PACKET_BYTE: u8 = 3;

/// What such a byte says.
pub(crate) fn protocol_of(byte: u8) -> Option<Protocol> {
    match byte {
        0 => Some(Protocol::Tcp),
        1 => Some(Protocol::Udp),
        _ => None,
    }
}

/// The byte that says by which families a relay reaches others [P-T.6].
pub(crate) fn families_byte(families: Families) -> u8 {
    u8::from(families.v4) | u8::from(families.v6) << 1
}

/// What such a byte says.
pub(crate) fn families_of(byte: u8) -> Families {
    Families {
        v4: byte & 1 != 0,
        v6: byte & 2 != 0,
    }
}

#[cfg(test)]
mod tests;
