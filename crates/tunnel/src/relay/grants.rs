//! Which of the relay's ports may lead to a user's devices: nothing that is not granted.
//!
//! Owns the form of grants as text, and what they allow. Whether a port is free is the exposures'.

use std::fmt;
use std::str::FromStr;

use tabane_base::{PortRange, Prefix, Protocol};

use super::exit_address::ExitAddress;
use crate::domain::Domain;
use crate::range::canonical;
use crate::request::PortClaim;
use crate::target::HostName;

/// Where visitors of a name come who were told no port: for HTTP and HTTPS, whoever may have the
/// name may have it there.
const WEB_PORTS: [u16; 2] = [80, 443];
/// The most a group's name may have; it stands in lists.
const MAX_GROUP: usize = 64;

/// What a user may have lead to its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Whole ports, and names at them.
    pub ports: Vec<PortGrant>,
    /// Names, which others' names may share a port with.
    pub hosts: Vec<HostGrant>,
    /// Networks behind its devices, which others of its group may be led to.
    pub routes: Vec<RouteGrant>,
    /// Domains whose names are asked for at resolvers within such networks.
    pub domains: Vec<DomainGrant>,
    /// With whom it shares them; `None`: its devices among themselves.
    pub group: Option<GroupName>,
    /// By which of the relay's addresses its connections leave, of each family the first that the
    /// host has; where none of a family is named, by the usual one.
    pub exits: Vec<ExitAddress>,
}

/// A range of addresses, all of it or parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteGrant(Prefix);

/// A domain, all of it or what is below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainGrant(Domain);

/// What a group of users is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupName(String);

/// Whose routes lead to one another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Users whom the owner has put together.
    Named(String),
    /// The devices of one user.
    OfUser(String),
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
    /// Of routes.
    #[error("'{0}' is no range of addresses; write 192.168.20.0/24 or 2001:db8:20::/64")]
    Route(String),
    /// Of domains.
    #[error("'{0}' is no domain; write lan-b.example")]
    Domain(String),
    /// Of groups.
    #[error("'{0}' is no name of a group; use letters, digits and -_.@, at most {MAX_GROUP}")]
    Group(String),
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

impl Grants {
    /// Whether these addresses may lead to its devices.
    pub(super) fn allow_route(&self, route: Prefix) -> bool {
        let covers =
            |grant: &RouteGrant| grant.0.bits <= route.bits && grant.0.contains(route.address);
        self.routes.iter().any(covers)
    }

    /// Whether names of this domain may be asked for at its devices.
    pub(super) fn allow_domain(&self, domain: &Domain) -> bool {
        let mut grants = self.domains.iter();
        grants.any(|grant| grant.0.covers(domain.as_str()))
    }

    /// The group of a user of this name.
    pub(super) fn group_of(&self, user: &str) -> Group {
        match &self.group {
            Some(GroupName(name)) => Group::Named(name.clone()),
            None => Group::OfUser(user.to_owned()),
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

impl FromStr for RouteGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let prefix = Prefix::parse(text).map(canonical);
        let prefix = prefix.ok_or_else(|| GrantError::Route(text.to_owned()))?;
        Ok(Self(prefix))
    }
}

impl fmt::Display for RouteGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DomainGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let domain = text.parse();
        domain
            .map(Self)
            .map_err(|_| GrantError::Domain(text.to_owned()))
    }
}

impl fmt::Display for DomainGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for GroupName {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        match !text.is_empty() && text.len() <= MAX_GROUP && text.chars().all(fits) {
            true => Ok(Self(text.to_owned())),
            false => Err(GrantError::Group(text.to_owned())),
        }
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
            ..Grants::default()
        }
    }

    #[test]
    fn routes_are_granted_whole_or_in_parts_and_groups_are_named_or_one_s_own() {
        let grant = |texts: &[&str]| Grants {
            routes: texts.iter().map(|text| text.parse().unwrap()).collect(),
            ..Grants::default()
        };
        let some = grant(&["192.168.20.9/24", "10.0.0.0/8", "2001:db8:20::/48"]);
        for (route, is_granted) in [
            ("192.168.20.0/24", true),
            ("192.168.20.128/25", true),
            ("192.168.20.0/23", false),
            ("192.168.21.0/24", false),
            ("10.200.0.0/16", true),
            ("0.0.0.0/0", false),
            ("2001:db8:20:1::/64", true),
            ("2001:db8::/32", false),
        ] {
            let route = Prefix::parse(route).unwrap();
            assert_eq!(some.allow_route(route), is_granted, "{route}");
            assert!(!Grants::default().allow_route(route));
        }
        assert_eq!(some.routes[0].to_string(), "192.168.20.0/24");
        let named = Grants {
            group: Some("ann".parse().unwrap()),
            ..Grants::default()
        };
        assert_eq!(named.group_of("bob"), named.group_of("ann"));
        assert_ne!(named.group_of("bob"), Grants::default().group_of("ann"));
        for bad in ["", "a b", "ü"] {
            assert!(bad.parse::<GroupName>().is_err(), "{bad}");
        }
        for bad in ["", "10.0.0.0/33", "lan"] {
            assert!(bad.parse::<RouteGrant>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_domain_is_granted_with_what_is_below_it() {
        let domains = ["lan-b.example", "lan"].map(|text| text.parse().unwrap());
        let some = Grants {
            domains: domains.into(),
            ..Grants::default()
        };
        for (domain, is_granted) in [
            ("lan-b.example", true),
            ("x.LAN-b.example", true),
            ("example", false),
            ("alan-b.example", false),
            ("lan", true),
            ("com", false),
        ] {
            let domain: Domain = domain.parse().unwrap();
            assert_eq!(some.allow_domain(&domain), is_granted, "{domain}");
            assert!(!Grants::default().allow_domain(&domain));
        }
        assert!("10.0.0.1".parse::<DomainGrant>().is_err());
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
