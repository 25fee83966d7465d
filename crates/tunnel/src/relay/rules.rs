//! Where a user's streams may lead: rules over addresses and ports, as text and applied.
//!
//! Owns their form: `PREFIX`, `PREFIX:PORTS` or `*:PORTS`, PORTS being numbers and ranges with
//! commas between. Names are resolved before rules apply, so a rule cannot name a host.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use tabane_base::Prefix;

/// What a user may reach: nothing denied, and where anything is allowed, only that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// If not empty, what is not among these is refused.
    pub allow: Vec<DestinationRule>,
    /// Refused even where it is allowed.
    pub deny: Vec<DestinationRule>,
    /// Private, link-local and loopback addresses and the relay's own are open to this user, as
    /// to everybody at a relay with `Access::Private`. The rules hold for them as well.
    pub private: bool,
}

/// Addresses and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationRule {
    /// `None`: every address.
    prefix: Option<Prefix>,
    /// Empty: every port.
    ports: Vec<RangeInclusive<u16>>,
}

/// Text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no rule for destinations; write PREFIX, PREFIX:PORTS or *:PORTS, like 192.0.2.0/24, \
     [2001:db8::]/32:443 or *:80,443,8000-8099"
)]
pub struct RuleError(String);

impl Destinations {
    pub(super) fn allow(&self, address: SocketAddr) -> bool {
        !self.denies(address) && (self.allow.is_empty() || self.names(address))
    }

    /// Whether `address` is among the allowed, and not only not excluded.
    pub(super) fn names(&self, address: SocketAddr) -> bool {
        self.allow.iter().any(|rule| rule.matches(address))
    }

    /// Whether `address` is refused by a rule of its own.
    pub(super) fn denies(&self, address: SocketAddr) -> bool {
        self.deny.iter().any(|rule| rule.matches(address))
    }
}

impl DestinationRule {
    /// Whether `address` is meant.
    #[must_use]
    pub fn matches(&self, address: SocketAddr) -> bool {
        let port = address.port();
        let fits = self
            .prefix
            .is_none_or(|prefix| prefix.contains(address.ip().to_canonical()));
        fits && (self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(&port)))
    }
}

impl FromStr for DestinationRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        parse(text).ok_or_else(|| RuleError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<DestinationRule> {
    let (host, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            // `[ADDRESS]`, `[ADDRESS]/BITS`, `[ADDRESS/BITS]`, each with or without ports.
            let (inside, after) = rest.split_once(']')?;
            let (bits, ports) = match after.split_once(':') {
                Some((bits, ports)) => (bits, Some(ports)),
                None => (after, None),
            };
            (format!("{inside}{bits}"), ports)
        }
        // IPv6 without brackets has no ports.
        None if text.matches(':').count() > 1 => (text.to_owned(), None),
        None => match text.split_once(':') {
            Some((host, ports)) => (host.to_owned(), Some(ports)),
            None => (text.to_owned(), None),
        },
    };
    let prefix = match host.as_str() {
        "*" => None,
        host => Some(Prefix::parse(host)?),
    };
    let ports = match ports {
        Some(ports) => ports.split(',').map(parse_ports).collect::<Option<_>>()?,
        None => Vec::new(),
    };
    Some(DestinationRule { prefix, ports })
}

fn parse_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    (first <= last).then_some(first..=last)
}

impl fmt::Display for DestinationRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            None => f.write_str("*")?,
            Some(Prefix { address, bits }) if address.is_ipv6() && !self.ports.is_empty() => {
                write!(f, "[{address}]/{bits}")?
            }
            Some(prefix) => write!(f, "{prefix}")?,
        }
        for (i, ports) in self.ports.iter().enumerate() {
            f.write_str(if i == 0 { ":" } else { "," })?;
            write!(f, "{}", ports.start())?;
            if ports.start() != ports.end() {
                write!(f, "-{}", ports.end())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> DestinationRule {
        text.parse().unwrap()
    }

    #[test]
    fn rules_mean_what_they_say_and_print_as_they_are_read() {
        for (text, yes, no) in [
            ("192.0.2.0/24", "192.0.2.255:1", "192.0.3.0:1"),
            ("192.0.2.7", "192.0.2.7:9", "192.0.2.6:9"),
            ("*:80,443,8000-8099", "[2001:db8::1]:8050", "1.2.3.4:8100"),
            (
                "[2001:db8::]/32:443",
                "[2001:db8:1::1]:443",
                "[2001:db8::1]:80",
            ),
            ("2001:db8::/32", "[2001:db8:1::1]:443", "[2001:db9::1]:443"),
            ("0.0.0.0/0:25", "9.9.9.9:25", "[2001:db8::1]:25"),
            ("::/0", "[2001:db8::1]:25", "9.9.9.9:25"),
            ("*", "9.9.9.9:25", "0.0.0.0:0"),
        ] {
            let rule = rule(text);
            assert!(rule.matches(yes.parse().unwrap()), "{text} {yes}");
            assert!(
                text == "*" || !rule.matches(no.parse().unwrap()),
                "{text} {no}"
            );
            assert_eq!(rule.to_string().parse(), Ok(rule), "{text}");
        }
        assert!(rule("192.0.2.0/24").matches("[::ffff:192.0.2.1]:1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in [
            "",
            ":",
            ":80",
            "*:",
            "*:0",
            "*:80-",
            "*:90-80",
            "*:65536",
            "1.2.3.4/33",
            "1.2.3/8",
            "host:80",
            "[2001:db8::1",
            "[2001:db8::]/129",
            "1.2.3.4:80,",
            "*:80:90",
            "*/8",
        ] {
            assert!(text.parse::<DestinationRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn denial_is_stronger_and_an_allowance_excludes_the_rest() {
        let web: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let mail: SocketAddr = "192.0.2.1:25".parse().unwrap();
        let mut destinations = Destinations::default();
        assert!(destinations.allow(web) && destinations.allow(mail));
        destinations.deny.push(rule("*:25"));
        assert!(destinations.allow(web) && !destinations.allow(mail));
        destinations.allow.push(rule("192.0.2.0/24"));
        assert!(destinations.allow(web) && !destinations.allow(mail));
        assert!(!destinations.allow("198.51.100.1:443".parse().unwrap()));
    }
}
