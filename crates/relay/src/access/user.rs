//! A user of the relay as its access list has it: a name, and what its devices together may have.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tabane_tunnel::{
    DestinationRule, Destinations, DomainGrant, ExitAddress, Grants, GroupName, HostGrant,
    PortGrant, RouteGrant, UserLimits,
};

use super::as_text;
use tabane_store::quantity::{RateText, Volume};

/// The most a name may have; it stands in lists and in the log.
const MAX_NAME: usize = 64;

/// A user's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserName(String);

impl Borrow<str> for UserName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// One user. A limit that is not there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEntry {
    /// What the user is called.
    #[serde(with = "as_text")]
    pub name: UserName,
    /// Seconds since 1970.
    pub created_at: u64,
    /// To the user.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate_down: Option<RateText>,
    /// From the user.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate_up: Option<RateText>,
    /// How much in a day or month, both ways.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub volume: Option<Volume>,
    /// Sessions at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Streams at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// The only destinations, where there are any.
    #[serde(default, with = "as_text::list", skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<DestinationRule>,
    /// Destinations that are refused.
    #[serde(default, with = "as_text::list", skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<DestinationRule>,
    /// Ports of the relay that may lead to the user's devices.
    #[serde(default, with = "as_text::list", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortGrant>,
    /// Names, at ports that others may share.
    #[serde(default, with = "as_text::list", skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostGrant>,
    /// Networks behind the user's devices that others of its group may be led to.
    #[serde(default, with = "as_text::list", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteGrant>,
    /// By which of the relay's addresses its connections leave.
    #[serde(default, with = "as_text::list", skip_serializing_if = "Vec::is_empty")]
    pub exit_addresses: Vec<ExitAddress>,
    /// Domains whose names others of its group may ask for there.
    #[serde(default, with = "as_text::list", skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainGrant>,
    /// With whom it shares such networks; without one, its own devices.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub group: Option<GroupName>,
    /// Whether private addresses may be reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
}

impl UserEntry {
    /// A user without limits.
    pub fn new(name: UserName, now: u64) -> Self {
        Self {
            name,
            created_at: now,
            rate_down: None,
            rate_up: None,
            volume: None,
            sessions: None,
            streams: None,
            allow: Vec::new(),
            deny: Vec::new(),
            ports: Vec::new(),
            hosts: Vec::new(),
            routes: Vec::new(),
            exit_addresses: Vec::new(),
            domains: Vec::new(),
            group: None,
            private: false,
        }
    }

    /// As the running relay has them.
    pub fn limits(&self) -> UserLimits {
        let count = |limit: Option<u32>| limit.map(|limit| limit as usize);
        UserLimits {
            rate_down: self.rate_down.map(|rate| rate.0),
            rate_up: self.rate_up.map(|rate| rate.0),
            volume: self.volume.map(|volume| volume.bytes),
            ask_from: None,
            sessions: count(self.sessions),
            streams: count(self.streams),
            destinations: Destinations {
                allow: self.allow.clone(),
                deny: self.deny.clone(),
                private: self.private,
            },
            grants: Grants {
                ports: self.ports.clone(),
                hosts: self.hosts.clone(),
                routes: self.routes.clone(),
                domains: self.domains.clone(),
                group: self.group.clone(),
                exits: self.exit_addresses.clone(),
            },
        }
    }
}

impl UserName {
    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for UserName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        let is_name = text.len() <= MAX_NAME
            && text.chars().all(fits)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !is_name {
            return Err(format!(
                "'{text}' is no name for a user; use letters, digits and -_.@, at most {MAX_NAME}"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["ann", "Ann-2", "a.b_c@example.net"] {
            assert_eq!(name.parse::<UserName>().unwrap().to_string(), name);
        }
        for name in ["", "-a", ".a", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert!(name.parse::<UserName>().is_err(), "{name:?}");
        }
    }
}
