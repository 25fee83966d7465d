//! SOCKS5 on the wire (RFC 1928): greeting, request, reply, and the header of relayed datagrams.
//!
//! Pure: bytes to values and back. Every parser is total. On a stream, `Ok(None)` means "valid so
//! far, more bytes needed", and a parsed value comes with the number of bytes it took.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tabane_base::{Destination, Host};

/// The version byte every SOCKS5 message on a stream begins with.
pub(crate) const VERSION: u8 = 5;
/// The answer to a greeting that offers "no authentication".
pub(crate) const METHOD_NONE: [u8; 2] = [VERSION, 0x00];
/// The answer to a greeting without a method we take; the client then closes.
pub(crate) const METHOD_UNACCEPTABLE: [u8; 2] = [VERSION, 0xff];

const ADDRESS_IPV4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_IPV6: u8 = 4;

/// What is wrong with a SOCKS5 message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Socks5Error {
    /// A message on a stream begins with another version.
    #[error("SOCKS version {0} is not spoken here (only 5)")]
    Version(u8),
    /// The client insists on authenticating.
    #[error("the SOCKS5 client does not offer access without password")]
    NoAcceptableMethod,
    /// `BIND` or an unknown command.
    #[error("SOCKS5 command {0} is not supported (only CONNECT and UDP ASSOCIATE)")]
    Command(u8),
    /// The address type is none of IPv4, IPv6 and name.
    #[error("SOCKS5 address type {0} is unknown")]
    AddressType(u8),
    /// The host name is empty or has impossible characters.
    #[error("the SOCKS5 host name is not valid")]
    Name,
    /// A datagram is shorter than its header.
    #[error("the SOCKS5 datagram is cut short")]
    Short,
    /// A datagram is a fragment; RFC 1928 §7 lets us drop it.
    #[error("SOCKS5 fragments are not supported")]
    Fragment,
}

/// What the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Open a TCP connection to the destination.
    Connect,
    /// Carry datagrams while this connection stays open.
    UdpAssociate,
}

/// A request: what and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socks5Request {
    /// What to do.
    pub command: Command,
    /// Where to (for [`Command::UdpAssociate`]: where the client will send from, often all zero).
    pub destination: Destination,
}

/// A datagram that a client wraps for us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Where to send it.
    pub destination: Destination,
    /// What to send.
    pub payload: &'a [u8],
}

/// Reads a greeting; `Ok(Some(n))` when it took `n` bytes and offers access without password.
pub fn parse_greeting(bytes: &[u8]) -> Result<Option<usize>, Socks5Error> {
    let Some(&version) = bytes.first() else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(Socks5Error::Version(version));
    }
    let Some(&count) = bytes.get(1) else {
        return Ok(None);
    };
    let end = 2 + usize::from(count);
    let Some(methods) = bytes.get(2..end) else {
        return Ok(None);
    };
    if methods.contains(&0) {
        Ok(Some(end))
    } else {
        Err(Socks5Error::NoAcceptableMethod)
    }
}

/// Reads a request and says how many bytes it took.
pub fn parse_socks5_request(bytes: &[u8]) -> Result<Option<(Socks5Request, usize)>, Socks5Error> {
    let Some(&version) = bytes.first() else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(Socks5Error::Version(version));
    }
    let Some(&command) = bytes.get(1) else {
        return Ok(None);
    };
    let command = match command {
        1 => Command::Connect,
        3 => Command::UdpAssociate,
        other => return Err(Socks5Error::Command(other)),
    };
    let Some(rest) = bytes.get(3..) else {
        return Ok(None);
    };
    let address = parse_address(rest, command == Command::UdpAssociate)?;
    Ok(address.map(|(destination, n)| {
        (
            Socks5Request {
                command,
                destination,
            },
            3 + n,
        )
    }))
}

/// Reads the header RFC 1928 §7 puts before every datagram.
pub fn parse_datagram(bytes: &[u8]) -> Result<Datagram<'_>, Socks5Error> {
    let [_, _, fragment, rest @ ..] = bytes else {
        return Err(Socks5Error::Short);
    };
    if *fragment != 0 {
        return Err(Socks5Error::Fragment);
    }
    let (destination, n) = parse_address(rest, false)?.ok_or(Socks5Error::Short)?;
    Ok(Datagram {
        destination,
        payload: &rest[n..],
    })
}

/// Writes a datagram with its header, as the client expects an answer.
pub fn emit_datagram(from: &Destination, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0, 0]);
    emit_address(from, out);
    out.extend_from_slice(payload);
}

/// The reply to a request: code 0 is success, with the address we bound for the client.
pub(crate) fn emit_reply(code: u8, bound: SocketAddr) -> Vec<u8> {
    let mut out = vec![VERSION, code, 0];
    emit_address(&bound.into(), &mut out);
    out
}

/// An address and how many bytes it took; `None` if more are needed. "Any" (an empty name or port
/// 0) only makes sense for a UDP association.
fn parse_address(
    bytes: &[u8],
    any_allowed: bool,
) -> Result<Option<(Destination, usize)>, Socks5Error> {
    let Some(&kind) = bytes.first() else {
        return Ok(None);
    };
    let (host, end) = match kind {
        ADDRESS_IPV4 => {
            let Some(octets) = bytes.get(1..).and_then(<[u8]>::first_chunk::<4>) else {
                return Ok(None);
            };
            (Host::Ip(IpAddr::V4(Ipv4Addr::from(*octets))), 5)
        }
        ADDRESS_IPV6 => {
            let Some(octets) = bytes.get(1..).and_then(<[u8]>::first_chunk::<16>) else {
                return Ok(None);
            };
            (Host::Ip(IpAddr::V6(Ipv6Addr::from(*octets))), 17)
        }
        ADDRESS_NAME => {
            let Some(&length) = bytes.get(1) else {
                return Ok(None);
            };
            let end = 2 + usize::from(length);
            let Some(name) = bytes.get(2..end) else {
                return Ok(None);
            };
            if name.is_empty() && any_allowed {
                (Host::Ip(Ipv4Addr::UNSPECIFIED.into()), end)
            } else {
                let text = std::str::from_utf8(name).map_err(|_| Socks5Error::Name)?;
                (Host::parse(text).map_err(|_| Socks5Error::Name)?, end)
            }
        }
        other => return Err(Socks5Error::AddressType(other)),
    };
    let Some(port) = bytes.get(end..).and_then(<[u8]>::first_chunk::<2>) else {
        return Ok(None);
    };
    Ok(Some((
        Destination {
            host,
            port: u16::from_be_bytes(*port),
        },
        end + 2,
    )))
}

fn emit_address(destination: &Destination, out: &mut Vec<u8>) {
    match &destination.host {
        Host::Ip(IpAddr::V4(ip)) => {
            out.push(ADDRESS_IPV4);
            out.extend_from_slice(&ip.octets());
        }
        Host::Ip(IpAddr::V6(ip)) => {
            out.push(ADDRESS_IPV6);
            out.extend_from_slice(&ip.octets());
        }
        Host::Name(name) => {
            out.push(ADDRESS_NAME);
            out.push(u8::try_from(name.len()).expect("Host::parse keeps names under 254 bytes"));
            out.extend_from_slice(name.as_bytes());
        }
    }
    out.extend_from_slice(&destination.port.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn destinations() -> Vec<Destination> {
        ["192.0.2.1:80", "[2001:db8::9]:65535", "example.org:1"]
            .map(|text| Destination::parse(text, None).unwrap())
            .to_vec()
    }

    fn request_bytes(destination: &Destination) -> Vec<u8> {
        let mut bytes = vec![VERSION, 1, 0];
        emit_address(destination, &mut bytes);
        bytes
    }

    #[test]
    fn greeting_needs_every_byte_and_method_zero() {
        let full = [5, 2, 2, 0];
        for n in 0..full.len() {
            assert_eq!(parse_greeting(&full[..n]), Ok(None), "{n} bytes");
        }
        assert_eq!(parse_greeting(&[5, 2, 2, 0, 9, 9]), Ok(Some(4)));
        assert_eq!(
            parse_greeting(&[5, 1, 2]),
            Err(Socks5Error::NoAcceptableMethod)
        );
        assert_eq!(
            parse_greeting(&[5, 0]),
            Err(Socks5Error::NoAcceptableMethod)
        );
        assert_eq!(parse_greeting(&[4, 1]), Err(Socks5Error::Version(4)));
    }

    #[test]
    fn request_round_trips_and_every_truncation_waits() {
        for destination in destinations() {
            let full = request_bytes(&destination);
            for n in 0..full.len() {
                assert_eq!(
                    parse_socks5_request(&full[..n]),
                    Ok(None),
                    "{destination}, {n} bytes"
                );
            }
            let mut longer = full.clone();
            longer.extend_from_slice(b"early data");
            let expected = Socks5Request {
                command: Command::Connect,
                destination,
            };
            assert_eq!(
                parse_socks5_request(&longer),
                Ok(Some((expected, full.len())))
            );
        }
    }

    #[test]
    fn request_names_its_fault() {
        assert_eq!(parse_socks5_request(&[4]), Err(Socks5Error::Version(4)));
        assert_eq!(parse_socks5_request(&[5, 2]), Err(Socks5Error::Command(2)));
        assert_eq!(
            parse_socks5_request(&[5, 1, 0, 7]),
            Err(Socks5Error::AddressType(7))
        );
        assert_eq!(
            parse_socks5_request(&[5, 1, 0, 3, 0]),
            Err(Socks5Error::Name)
        );
        assert_eq!(
            parse_socks5_request(b"\x05\x01\x00\x03\x02\xc3\x28"),
            Err(Socks5Error::Name)
        );
        assert_eq!(
            parse_socks5_request(b"\x05\x01\x00\x03\x03a b"),
            Err(Socks5Error::Name)
        );
    }

    #[test]
    fn association_may_say_any() {
        let (request, n) = parse_socks5_request(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0])
            .unwrap()
            .unwrap();
        assert_eq!(
            (request.command, request.destination.port, n),
            (Command::UdpAssociate, 0, 10)
        );
        assert!(
            parse_socks5_request(&[5, 3, 0, 3, 0, 0, 0])
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn datagram_round_trips_and_every_truncation_is_named() {
        for destination in destinations() {
            let mut full = Vec::new();
            emit_datagram(&destination, b"payload", &mut full);
            let parsed = parse_datagram(&full).unwrap();
            assert_eq!(
                (parsed.destination, parsed.payload),
                (destination, &b"payload"[..])
            );
            for n in 0..full.len() - b"payload".len() {
                assert_eq!(
                    parse_datagram(&full[..n]),
                    Err(Socks5Error::Short),
                    "{n} bytes"
                );
            }
        }
        assert_eq!(parse_datagram(&[0, 0, 1, 1]), Err(Socks5Error::Fragment));
    }

    #[test]
    fn garbage_never_panics_nor_takes_more_than_it_got() {
        let mut rng = Seed(7).rng("socks5 garbage");
        for _ in 0..50_000 {
            let mut bytes: Vec<u8> = (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = 5;
            }
            if let Ok(Some(n)) = parse_greeting(&bytes) {
                assert!(n <= bytes.len());
            }
            if let Ok(Some((_, n))) = parse_socks5_request(&bytes) {
                assert!(n <= bytes.len());
            }
            let _ = parse_datagram(&bytes);
        }
    }
}
