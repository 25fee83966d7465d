//! Which of the relay's ports may lead to a user's devices: nothing that is not granted.
//!
//! Owns the form of grants as text, and what they allow. Whether a port is free is the exposures'.

use std::fmt;
use std::str::FromStr;

use tabane_base::{PortRange, Protocol};

use crate::request::PortClaim;
use crate::target::HostName;

/// Where visitors of a name come who were told no port: for HTTP and HTTPS, whoever may have the
/// name may have it there.
const WEB_PORTS: [u16; 2] = [80, 443];

/// What a user may have lead to its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Whole ports, and names at them.
    pub ports: Vec<PortGrant>,
    /// Names, which others' names may share a port with.
    pub hosts: Vec<HostGrant>,
}

/// Ports, of one protocol or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGrant {
    /// `None`: both.
    protocol: Option<Protocol>,
    ports: PortRange,
}

/// A name, or with `*.` before it all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGrant {
    /// In small letters.
    name: HostName,
    is_below: bool,
}

/// Text that is no grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Of ports.
    #[error("'{0}' is no port; write 443, 8000-8100, tcp:22 or udp:27015")]
    Port(String),
    /// Of names.
    #[error("'{0}' is no name of a host; write www.example.org or *.example.org")]
    Host(String),
}

impl Grants {
    /// Whether what is asked for, at this name if there is one, may be had.
    pub(super) fn allow(&self, claim: PortClaim, name: Option<&HostName>) -> bool {
        let is_granted = |port| {
            let mut grants = self.ports.iter();
            grants.any(|grant| grant.allows(claim.protocol, port))
        };
        let mut ports = claim.ports.ports();
        match name {
            None => ports.all(is_granted),
            Some(name) => {
                claim.protocol == Protocol::Tcp
                    && self.hosts.iter().any(|host| host.allows(name))
                    && ports.all(|port| WEB_PORTS.contains(&port) || is_granted(port))
            }
        }
    }
}

impl PortGrant {
    fn allows(&self, protocol: Protocol, port: u16) -> bool {
        self.protocol.is_none_or(|own| own == protocol) && self.ports.contains(port)
    }
}

impl HostGrant {
    fn allows(&self, name: &HostName) -> bool {
        let name = name.as_str().to_ascii_lowercase();
        match self.is_below {
            false => name == self.name.as_str(),
            true => {
                let above = name.strip_suffix(self.name.as_str());
                above.is_some_and(|above| above.len() > 1 && above.ends_with('.'))
            }
        }
    }
}

impl FromStr for PortGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let (protocol, ports) = match text.split_once(':') {
            Some(("tcp", ports)) => (Some(Protocol::Tcp), ports),
            Some(("udp", ports)) => (Some(Protocol::Udp), ports),
            // A colon is in no range.
            Some(_) | None => (None, text),
        };
        let ports = PortRange::parse(ports).ok_or_else(|| GrantError::Port(text.to_owned()))?;
        Ok(Self { protocol, ports })
    }
}

impl fmt::Display for PortGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(protocol) = self.protocol {
            write!(f, "{protocol}:")?;
        }
        self.ports.fmt(f)
    }
}

impl FromStr for HostGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let (name, is_below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        // An address has no name of its own to be asked for by.
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        match HostName::new(&name.to_ascii_lowercase()) {
            Ok(name) if !is_address && !name.as_str().starts_with('.') => {
                Ok(Self { name, is_below })
            }
            Ok(_) | Err(_) => Err(GrantError::Host(text.to_owned())),
        }
    }
}

impl fmt::Display for HostGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_below { "*." } else { "" })?;
        self.name.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(protocol: Protocol, ports: &str) -> PortClaim {
        let ports = PortRange::parse(ports).unwrap();
        PortClaim { protocol, ports }
    }

    fn grants(ports: &[&str], hosts: &[&str]) -> Grants {
        Grants {
            ports: ports.iter().map(|text| text.parse().unwrap()).collect(),
            hosts: hosts.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn nothing_is_granted_but_what_is_named() {
        use Protocol::{Tcp, Udp};
        let some = grants(&["443", "8000-8002", "8003-8100", "udp:53", "tcp:22"], &[]);
        for (protocol, ports, is_granted) in [
            (Tcp, "443", true),
            (Udp, "443", true),
            (Tcp, "444", false),
            (Tcp, "8000-8100", true),
            (Tcp, "7999-8000", false),
            (Tcp, "8100-8101", false),
            (Udp, "53", true),
            (Tcp, "53", false),
            (Udp, "22", false),
            (Tcp, "1-65535", false),
        ] {
            let claim = claim(protocol, ports);
            assert_eq!(some.allow(claim, None), is_granted, "{claim:?}");
            assert!(!Grants::default().allow(claim, None));
        }
    }

    #[test]
    fn a_name_is_had_at_the_web_s_ports_and_at_granted_ones() {
        let some = grants(&["8443"], &["Www.Example.org", "*.home.example"]);
        let name = |text: &str| HostName::new(text).unwrap();
        let tcp = |ports| claim(Protocol::Tcp, ports);
        for (text, ports, is_granted) in [
            ("www.example.org", "443", true),
            ("WWW.example.ORG", "80", true),
            ("www.example.org", "8443", true),
            ("www.example.org", "8444", false),
            ("example.org", "443", false),
            ("awww.example.org", "443", false),
            ("a.home.example", "443", true),
            ("a.b.home.example", "443", true),
            ("home.example", "443", false),
            ("ahome.example", "443", false),
            (".home.example", "443", false),
        ] {
            let allowed = some.allow(tcp(ports), Some(&name(text)));
            assert_eq!(allowed, is_granted, "{text} at {ports}");
        }
        // A name gives no whole port, a port no name, and datagrams have none.
        assert!(!some.allow(tcp("443"), None));
        assert!(!grants(&["443"], &[]).allow(tcp("443"), Some(&name("www.example.org"))));
        let udp = claim(Protocol::Udp, "443");
        assert!(!some.allow(udp, Some(&name("www.example.org"))));
    }

    #[test]
    fn grants_print_as_they_are_read_and_nonsense_is_named() {
        for text in ["443", "8000-8100", "tcp:22", "udp:27015-27020"] {
            assert_eq!(text.parse::<PortGrant>().unwrap().to_string(), text);
        }
        for text in ["www.example.org", "*.example.org"] {
            assert_eq!(text.parse::<HostGrant>().unwrap().to_string(), text);
        }
        for bad in ["", "0", "sctp:9", "443,80", ":443", "9-8"] {
            assert!(bad.parse::<PortGrant>().is_err(), "{bad}");
        }
        for bad in [
            "",
            "*",
            "*.",
            "a b",
            "192.0.2.1",
            "**.a",
            ".a",
            "*..a",
            "a*",
        ] {
            assert!(bad.parse::<HostGrant>().is_err(), "{bad}");
        }
    }
}
