//! Address ranges as users write them: `192.168.0.0/16`, `2001:db8::/32`, or one address.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use tabane_base::{Host, Prefix};

use crate::as_text::read_as_text;

/// Ranges that are nobody's on the internet, and mean something else beyond a relay (RFC 1918,
/// RFC 6598, RFC 4193).
pub const PRIVATE: [&str; 5] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
];

/// Whether an address is of [`PRIVATE`], or of one wire or one host: over each link it may mean
/// something else.
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    let is_near = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_loopback(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_loopback(),
    };
    let mut ranges = PRIVATE.iter().filter_map(|range| Prefix::parse(range));
    is_near || ranges.any(|range| range.contains(address))
}

/// A range that goes its own way, without the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectPrefix(pub Prefix);

impl FromStr for DirectPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = Prefix::parse(text);
        let advice = || format!("'{text}' is no address range; write it like 192.168.0.0/16");
        prefix.map(Self).ok_or_else(advice)
    }
}

read_as_text!(DirectPrefix);

/// A network behind this machine, which others of its group are led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutePrefix(pub Prefix);

impl FromStr for RoutePrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || format!("'{text}' is no network; write it like 192.168.20.0/24");
        let given = Prefix::parse(text).ok_or_else(advice)?;
        let address = given.nth(0).ok_or_else(advice)?;
        Ok(Self(Prefix { address, ..given }))
    }
}

read_as_text!(RoutePrefix);

/// A domain whose names are asked for behind this machine, and whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteDomain {
    /// As it was written.
    pub domain: String,
    /// `None`: this machine.
    pub resolver: Option<SocketAddr>,
}

impl FromStr for RouteDomain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const DNS_PORT: u16 = 53;
        let advice = || format!("'{text}' is no domain; write lan-b.example=192.168.20.53");
        let (domain, resolver) = match text.split_once('=') {
            Some((domain, resolver)) => (domain, Some(resolver)),
            None => (text, None),
        };
        let resolver = resolver.map(|it| {
            let with_port = it.parse().ok();
            let alone = || Some(SocketAddr::new(it.parse().ok()?, DNS_PORT));
            let found: Option<SocketAddr> = with_port.or_else(alone);
            found.filter(|found| found.port() != 0).ok_or_else(advice)
        });
        match Host::parse(domain) {
            Ok(Host::Name(name)) => Ok(Self {
                domain: name,
                resolver: resolver.transpose()?,
            }),
            Ok(Host::Ip(_)) | Err(_) => Err(advice()),
        }
    }
}

read_as_text!(RouteDomain);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_names_its_resolver_or_leaves_it_to_this_machine() {
        let read = |text: &str| text.parse::<RouteDomain>();
        for (text, resolver) in [
            ("lan-b.example", None),
            ("lan-b.example=192.168.20.53", Some("192.168.20.53:53")),
            (
                "lan-b.example=192.168.20.53:5353",
                Some("192.168.20.53:5353"),
            ),
            ("lan-b.example=fd00:20::53", Some("[fd00:20::53]:53")),
            (
                "lan-b.example=[fd00:20::53]:5353",
                Some("[fd00:20::53]:5353"),
            ),
        ] {
            let found = read(text).unwrap();
            assert_eq!(found.domain, "lan-b.example");
            let resolver = resolver.map(|it| it.parse().unwrap());
            assert_eq!(found.resolver, resolver, "{text}");
        }
        for bad in [
            "",
            "=192.168.20.53",
            "10.0.0.1",
            "a.example=b",
            "a.example=1.2.3.4:0",
        ] {
            let said = read(bad).unwrap_err();
            assert!(
                said.contains("lan-b.example=") && !said.contains('\n'),
                "{said}"
            );
        }
    }

    #[test]
    fn what_is_nobody_s_on_the_internet_is_told_from_the_rest() {
        let is = |text: &str| is_private(text.parse().unwrap());
        for near in [
            "192.168.1.9",
            "100.64.0.1",
            "fd00::1",
            "fe80::1",
            "127.0.0.1",
            "169.254.1.1",
        ] {
            assert!(is(near), "{near}");
        }
        assert!(!is("203.0.113.2") && !is("2001:db8::1"));
    }
}
