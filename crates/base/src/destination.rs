//! Where a program wants to go: a host (address or name) and a port.
//!
//! Owns the text form (`host:port`, IPv6 in brackets) and what counts as a name. A name that is an
//! address in letters is an address here, so that nobody downstream asks a resolver for `10.0.0.1`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Longest name in bytes; SOCKS5 and the tunnel's own header both count it in one byte, and DNS
/// allows 253 characters.
const MAX_NAME: usize = 253;

/// A host as the program wrote it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A literal address.
    Ip(IpAddr),
    /// A name for the relay to resolve: printable ASCII, at most 253 bytes, never an address.
    Name(String),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The TCP or UDP port; 0 occurs only where a SOCKS5 client says "any".
    pub port: u16,
}

/// Why a text or a byte string is no destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// The name is empty or longer than 253 bytes.
    #[error("a host name must have 1 to 253 characters")]
    NameLength,
    /// The name has a character that no host name has (space, control, slash, non-ASCII…).
    #[error("a host name may only have letters, digits, '-', '.' and '_'")]
    NameCharacter,
    /// There is no port, or it is not a number from 1 to 65535.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// An IPv6 address in brackets is broken.
    #[error("the IPv6 address in brackets is not valid")]
    Brackets,
}

impl Host {
    /// Reads a name or a bare address (IPv6 without brackets).
    pub fn parse(text: &str) -> Result<Self, DestinationError> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Ip(ip));
        }
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(DestinationError::NameLength);
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        if !text.bytes().all(allowed) {
            return Err(DestinationError::NameCharacter);
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl Destination {
    /// Reads `host:port`, `[ipv6]:port`, or only a host when there is a default port.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, DestinationError> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (inner, after) = rest.split_once(']').ok_or(DestinationError::Brackets)?;
            let ip: Ipv6Addr = inner.parse().map_err(|_| DestinationError::Brackets)?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err(DestinationError::Brackets),
            };
            (Host::Ip(IpAddr::V6(ip)), port)
        } else {
            match text.split_once(':') {
                Some((host, port)) => (Host::parse(host)?, Some(port)),
                None => (Host::parse(text)?, None),
            }
        };
        let port = match port {
            Some(digits) => parse_port(digits)?,
            None => default_port.ok_or(DestinationError::Port)?,
        };
        Ok(Self { host, port })
    }
}

fn parse_port(digits: &str) -> Result<u16, DestinationError> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(DestinationError::Port);
    }
    digits
        .parse()
        .ok()
        .filter(|&port| port != 0)
        .ok_or(DestinationError::Port)
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Ip(address.ip()),
            port: address.port(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            host @ (Host::Ip(IpAddr::V4(_)) | Host::Name(_)) => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in [
            "example.org:80",
            "10.0.0.1:443",
            "[2001:db8::1]:8080",
            "_srv.host-1:1",
        ] {
            assert_eq!(Destination::parse(text, None).unwrap().to_string(), text);
        }
    }

    #[test]
    fn address_in_letters_is_an_address() {
        let it = Destination::parse("192.0.2.7:1", None).unwrap();
        assert_eq!(it.host, Host::Ip([192, 0, 2, 7].into()));
    }

    #[test]
    fn default_port_serves_only_where_none_is_written() {
        assert_eq!(Destination::parse("a", Some(80)).unwrap().port, 80);
        assert_eq!(Destination::parse("[::1]", Some(80)).unwrap().port, 80);
        assert_eq!(Destination::parse("a:81", Some(80)).unwrap().port, 81);
        assert_eq!(Destination::parse("a", None), Err(DestinationError::Port));
    }

    #[test]
    fn rejects_what_is_no_destination() {
        use DestinationError::*;
        for (text, why) in [
            ("", NameLength),
            (":80", NameLength),
            ("a b:80", NameCharacter),
            ("a/b:80", NameCharacter),
            ("ü.example:80", NameCharacter),
            ("a:", Port),
            ("a:0", Port),
            ("a:65536", Port),
            ("a:+80", Port),
            ("a:80:90", Port),
            ("[::1", Brackets),
            ("[::1]80", Brackets),
            ("[10.0.0.1]:80", Brackets),
        ] {
            assert_eq!(Destination::parse(text, Some(1)), Err(why), "{text:?}");
        }
        assert_eq!(Host::parse(&"a".repeat(254)), Err(NameLength));
    }
}
