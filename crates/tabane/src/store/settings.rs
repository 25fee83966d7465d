//! `config.toml`: what the user wants without saying it each time. Flags win over it.

use serde::Deserialize;
use tabane_core::{ControllerKind, SchedulerKind};

use crate::prefix::DirectPrefix;
use crate::relay_exit::PoolRange;
use crate::span::Span;

/// Every setting; each has a flag of the same name.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// The relay that is preferred when several are known.
    pub(crate) relay: Option<String>,
    /// The interfaces to use; empty means all usable ones.
    pub(crate) links: Vec<String>,
    /// Destinations left to each command's own network.
    pub(crate) direct: Vec<DirectPrefix>,
    /// How packets are spread over links.
    #[serde(deserialize_with = "by_name")]
    pub(crate) scheduler: Option<SchedulerKind>,
    /// How fast each link is used.
    #[serde(deserialize_with = "by_name")]
    pub(crate) congestion: Option<ControllerKind>,
    /// Whether destinations are asked if they speak tabane, and believed who they are.
    pub(crate) trust_first_use: bool,
    /// The addresses that `tabane relay` gives to clients.
    pub(crate) relay_pool: Vec<PoolRange>,
    /// What `tabane up` does.
    pub(crate) up: UpSettings,
}

/// The table `[up]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpSettings {
    /// Carry private ranges and connected networks as well.
    pub(crate) all: bool,
    /// The interfaces with hosts behind them that are carried, too.
    pub(crate) lan: Vec<String>,
    /// Whether pings are carried.
    pub(crate) ping: Option<bool>,
    /// How long connections wait for a relay that does not answer.
    pub(crate) wait: Option<Span>,
}

/// A value given by its name, as on the command line.
fn by_name<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let name = String::deserialize(deserializer)?;
    name.parse().map(Some).map_err(serde::de::Error::custom)
}
