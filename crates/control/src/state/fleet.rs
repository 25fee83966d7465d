//! A fleet of relays, as one of them or their owner sees it.

use serde::{Deserialize, Serialize};

/// A fleet at one moment, by what its etcd said last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fleet {
    /// Its key.
    pub key: String,
    /// At one of its relays: which of them this is.
    #[serde(default)]
    pub own: Option<String>,
    /// Counts its lists of relays.
    pub epoch: u64,
    /// Etcd's version and revision.
    pub etcd: String,
    /// Why etcd is away, while it is: known clients are served, new ones wait.
    #[serde(default)]
    pub away: Option<String>,
    /// Users, tokens and clients.
    pub users: u64,
    /// Tokens that still admit.
    pub tokens: u64,
    /// Clients that were admitted.
    pub clients: u64,
    /// Every relay, those that ask to be let in included.
    pub relays: Vec<FleetRelay>,
    /// Keys of values that are not understood.
    pub odd: Vec<String>,
}

/// One relay of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FleetRelay {
    /// What it is called.
    pub name: String,
    /// How it stands.
    pub state: FleetRelayState,
    /// Where it stands.
    pub region: String,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Its key.
    pub key: String,
    /// Sessions that it has.
    pub sessions: u64,
    /// What it is meant for; 0: nobody has said.
    pub capacity: u32,
    /// Bytes carried since it started.
    pub carried_bytes: u64,
    /// Seconds since it started.
    pub up_s: Option<u64>,
    /// Its program's version.
    pub version: String,
    /// Seconds that its clock is behind etcd's.
    pub clock_behind_s: i64,
}

/// How a relay stands in its fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FleetRelayState {
    /// It serves.
    Up,
    /// It is on the list, and does not run.
    Down,
    /// It takes nobody new.
    Draining,
    /// It asks to be let in.
    Asks,
}

impl FleetRelayState {
    /// In one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Asks => "asks",
        }
    }
}
