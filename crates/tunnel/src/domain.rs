//! A domain of the DNS: a name, and all names below it.

use std::fmt;
use std::str::FromStr;

use crate::target::{HostName, NameError};

/// A name and what is below it, in small letters and without dots at its ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain(HostName);

impl Domain {
    /// Whether a name, in small letters, is this one or below it.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        let above = name.strip_suffix(self.0.as_str());
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    }

    /// Whether there are names in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other.as_str()) || other.covers(self.as_str())
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The one that is written just so.
    pub(crate) fn in_small_letters(name: &HostName) -> Option<Self> {
        let domain = Self::try_from(name).ok()?;
        (domain.as_str() == name.as_str()).then_some(domain)
    }

    pub(crate) fn name(&self) -> &HostName {
        &self.0
    }
}

impl TryFrom<&HostName> for Domain {
    type Error = NameError;

    /// Addresses are none, nor is what has an empty part.
    fn try_from(name: &HostName) -> Result<Self, NameError> {
        let name = name.as_str().to_ascii_lowercase();
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        match is_address || name.split('.').any(str::is_empty) {
            true => Err(NameError::Character),
            false => HostName::new(&name).map(Self),
        }
    }
}

impl FromStr for Domain {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::try_from(&HostName::new(text)?)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(text: &str) -> Domain {
        text.parse().unwrap()
    }

    #[test]
    fn a_domain_is_its_name_and_what_is_below_it() {
        let own = domain("Lan-B.example");
        assert_eq!(own.to_string(), "lan-b.example");
        for (name, is_covered) in [
            ("lan-b.example", true),
            ("nas.lan-b.example", true),
            ("a.b.lan-b.example", true),
            ("alan-b.example", false),
            ("example", false),
            ("lan-b.example.org", false),
            ("", false),
        ] {
            assert_eq!(own.covers(name), is_covered, "{name}");
        }
        for (other, overlaps) in [
            ("example", true),
            ("x.lan-b.example", true),
            ("lan-a.example", false),
        ] {
            assert_eq!(own.overlaps(&domain(other)), overlaps, "{other}");
            assert_eq!(domain(other).overlaps(&own), overlaps, "{other}");
        }
        for bad in ["", ".", "a..b", ".a", "a.", "192.0.2.1", "a b"] {
            assert!(bad.parse::<Domain>().is_err(), "{bad}");
        }
    }
}
