//! Where a program wants to go, as the relay is told.
//!
//! Owns what counts as a host name. Names are never looked up on the client's side: they travel
//! as they were written, so that the relay's resolver and the relay's view of the world count.

use std::fmt;
use std::net::SocketAddr;

/// DNS allows 253 characters in a name (RFC 1035 §2.3.4, less the length bytes); one length byte
/// on the wire holds that.
pub(crate) const MAX_NAME: usize = 253;

/// A destination behind the relay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A literal address.
    Address(SocketAddr),
    /// A name that the relay resolves.
    Name {
        /// The name.
        name: HostName,
        /// The TCP or UDP port.
        port: u16,
    },
    /// The DNS resolver that the relay itself uses.
    Resolver,
    /// Each packet says itself, or none is asked for.
    Anywhere,
}

impl Target {
    /// The host called `name`, or the address it spells.
    ///
    /// # Errors
    /// The text is no host name.
    pub fn host(name: &str, port: u16) -> Result<Self, NameError> {
        match name.parse() {
            Ok(ip) => Ok(Self::Address(SocketAddr::new(ip, port))),
            Err(_) => Ok(Self::Name {
                name: HostName::new(name)?,
                port,
            }),
        }
    }
}

impl Target {
    /// The name, where it is one.
    pub(crate) fn name(&self) -> Option<&HostName> {
        match self {
            Self::Name { name, .. } => Some(name),
            Self::Address(_) | Self::Resolver | Self::Anywhere => None,
        }
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { name, port } => write!(f, "{name}:{port}"),
            Self::Resolver => f.write_str("the relay's resolver"),
            Self::Anywhere => f.write_str("anywhere"),
        }
    }
}

/// A host name: 1 to 253 letters, digits, `-`, `.` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Box<str>);

/// A text that is no host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty or longer than DNS allows.
    #[error("a host name has 1 to 253 characters, this has {0}")]
    Length(usize),
    /// Something that no host name has.
    #[error("a host name has only letters, digits, '-', '.' and '_'")]
    Character,
}

impl HostName {
    /// Checks `name`.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(NameError::Length(name.len()));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if !name.bytes().all(allowed) {
            return Err(NameError::Character);
        }
        Ok(Self(name.into()))
    }

    /// The name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spells_an_address_is_one() {
        let address = Target::Address("192.0.2.7:80".parse().unwrap());
        assert_eq!(Target::host("192.0.2.7", 80), Ok(address));
        let address = Target::Address("[2001:db8::1]:80".parse().unwrap());
        assert_eq!(Target::host("2001:db8::1", 80), Ok(address));
    }

    #[test]
    fn names_are_checked() {
        assert!(HostName::new("_srv.host-1.example").is_ok());
        assert_eq!(HostName::new(""), Err(NameError::Length(0)));
        assert_eq!(HostName::new(&"a".repeat(254)), Err(NameError::Length(254)));
        for name in ["a b", "a/b", "a:1", "ü", "a\0"] {
            assert_eq!(HostName::new(name), Err(NameError::Character), "{name:?}");
        }
    }
}
