//! One relay as a client remembers it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tabane_base::{Destination, Host};
use tabane_core::PublicKey;

use crate::join_string::{JoinString, Token};

/// A relay's entry: what its join string said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "RelayFile", into = "RelayFile")]
pub struct RelayEntry {
    /// Where it listens; at least one.
    pub addresses: Vec<Destination>,
    /// The key it must prove.
    pub key: PublicKey,
    /// The key of its fleet, if it is of one: further relays are those of the fleet's list.
    pub fleet: Option<PublicKey>,
    /// What admits a client that it does not know yet.
    pub token: Token,
}

/// The same as text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RelayFile {
    addresses: Vec<String>,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fleet: Option<String>,
    token: String,
}

impl RelayEntry {
    /// Whether both are one relay, or relays of one fleet.
    pub(super) fn is_of_same(&self, other: &Self) -> bool {
        self.key == other.key || self.fleet.is_some() && self.fleet == other.fleet
    }
}

impl From<JoinString> for RelayEntry {
    fn from(join: JoinString) -> Self {
        Self {
            addresses: join.addresses,
            key: join.key,
            fleet: join.fleet,
            token: join.token,
        }
    }
}

impl From<RelayEntry> for RelayFile {
    fn from(entry: RelayEntry) -> Self {
        Self {
            addresses: entry.addresses.iter().map(Destination::to_string).collect(),
            key: entry.key.to_string(),
            fleet: entry.fleet.map(|fleet| fleet.to_string()),
            token: entry.token.as_str().to_owned(),
        }
    }
}

impl TryFrom<RelayFile> for RelayEntry {
    type Error = String;

    fn try_from(file: RelayFile) -> Result<Self, String> {
        let parse = |text: &String| {
            Destination::parse(text, None).map_err(|e| format!("addresses: '{text}': {e}"))
        };
        if file.addresses.is_empty() {
            return Err("addresses: at least one is needed".into());
        }
        Ok(Self {
            addresses: file.addresses.iter().map(parse).collect::<Result<_, _>>()?,
            key: file.key.parse().map_err(|e| format!("key: {e}"))?,
            fleet: file
                .fleet
                .map(|fleet| fleet.parse().map_err(|e| format!("fleet: {e}")))
                .transpose()?,
            token: file.token.parse().map_err(|e| format!("token: {e}"))?,
        })
    }
}

/// A relay's name: a file name on every system, and a word in a shell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelayName(String);

/// The longest name, so that `NAME.toml` fits everywhere.
const MAX_NAME: usize = 64;

impl RelayName {
    /// What a relay of the fleet that is called so is called here.
    #[must_use]
    pub fn of_fleet(&self, relay: &str) -> Self {
        Self(format!("{}.{relay}", self.0))
    }

    /// Whether that is what one of its relays is called, if this is a fleet's name.
    pub(super) fn has_member(&self, name: &str) -> bool {
        let behind = name.strip_prefix(self.as_str());
        behind.is_some_and(|behind| behind.len() > 1 && behind.starts_with('.'))
    }

    /// A name made of the relay's first address.
    pub fn from_host(host: &Host) -> Self {
        let text: String = host
            .to_string()
            .chars()
            .map(|c| if c == ':' { '-' } else { c })
            .take(MAX_NAME)
            .collect();
        match text.trim_start_matches(['-', '.']) {
            "" => Self("relay".to_owned()),
            name => Self(name.to_owned()),
        }
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RelayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let symbol = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if !begins_well || !text.chars().all(symbol) || text.len() > MAX_NAME {
            return Err(format!(
                "a name has 1 to {MAX_NAME} letters, digits, '-', '_' or '.', and begins with a \
                 letter or digit"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for RelayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
