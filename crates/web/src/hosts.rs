//! The hosts whose HTTPS is opened here, as a user names them: `files.example.org`, or
//! `*.example.org` for all below it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// The longest name there is, RFC 1035 §2.3.4, and the longest part of one.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// In lower case, without a dot at the end.
    domain: String,
    is_below: bool,
}

/// Why a text names no hosts for us.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostsError {
    /// It is no name.
    #[error("'{0}' is no host; write files.example.org, or *.example.org for all below it")]
    Form(String),
    /// Certificates are limited to names.
    #[error("'{0}' is an address: only names can be intercepted")]
    Address(String),
    /// A limit to it would limit nothing.
    #[error("'{0}' is too much: name a host or a domain of two parts or more")]
    Wide(String),
}

impl FromStr for Hosts {
    type Err = HostsError;

    fn from_str(text: &str) -> Result<Self, HostsError> {
        let form = || HostsError::Form(text.to_owned());
        let name = text.trim().to_ascii_lowercase();
        if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Err(HostsError::Address(text.to_owned()));
        }
        if name == "*" {
            return Err(HostsError::Wide(text.to_owned()));
        }
        let name = name.strip_suffix('.').unwrap_or(&name);
        let (domain, is_below) = match name.strip_prefix("*.") {
            Some(domain) => (domain, true),
            None => (name, false),
        };
        if domain.len() > LONGEST_NAME || !domain.split('.').all(is_label) {
            return Err(form());
        }
        // What is below a name is within the certificate's limits as well.
        if !domain.contains('.') {
            return Err(HostsError::Wide(text.to_owned()));
        }
        Ok(Self {
            domain: domain.to_owned(),
            is_below,
        })
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_below { "*." } else { "" };
        write!(f, "{star}{}", self.domain)
    }
}

impl Hosts {
    /// The name that all of them are or end with.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Whether a host, in lower case, is one of them.
    pub(crate) fn has(&self, host: &str) -> bool {
        match self.is_below {
            true => host != self.domain && is_within(host, &self.domain),
            false => host == self.domain,
        }
    }
}

/// Whether a name is a domain or below it, RFC 5280 §4.2.1.10.
pub(crate) fn is_within(name: &str, domain: &str) -> bool {
    let rest = name.strip_suffix(domain);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_label(label: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    (1..=LONGEST_LABEL).contains(&label.len()) && label.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_itself_and_a_star_what_is_below() {
        let one: Hosts = "Files.Example.org.".parse().unwrap();
        assert_eq!(one.to_string(), "files.example.org");
        assert!(one.has("files.example.org"));
        assert!(!one.has("a.files.example.org") && !one.has("example.org"));
        let below: Hosts = "*.example.org".parse().unwrap();
        assert_eq!(
            (below.domain(), below.to_string().as_str()),
            ("example.org", "*.example.org")
        );
        assert!(below.has("files.example.org") && below.has("a.b.example.org"));
        for other in ["example.org", "badexample.org", "example.org.evil.net"] {
            assert!(!below.has(other), "{other}");
        }
    }

    #[test]
    fn what_would_be_everything_is_refused() {
        let error = |text: &str| text.parse::<Hosts>().unwrap_err();
        for wide in ["*", "org", "*.org", "localhost", "org."] {
            assert_eq!(error(wide), HostsError::Wide(wide.to_owned()), "{wide}");
        }
        for address in ["192.0.2.1", "2001:db8::1", "[2001:db8::1]"] {
            assert_eq!(error(address), HostsError::Address(address.to_owned()));
        }
        for wrong in [
            "",
            ".example.org",
            "a*.example.org",
            "*.*.org",
            "a..org",
            "a b.org",
            "exämple.org",
            "https://example.org",
            "example.org:443",
            "example.org/x",
        ] {
            assert_eq!(error(wrong), HostsError::Form(wrong.to_owned()), "{wrong}");
        }
        assert!(format!("{}.org", "a".repeat(64)).parse::<Hosts>().is_err());
    }
}
