//! `config.toml`: what the user wants without saying it each time. Flags win over it.

use serde::Deserialize;
use tabane_core::{ControllerKind, SchedulerKind};

use crate::pool_range::PoolRange;
use crate::prefix::{DirectPrefix, RouteDomain, RoutePrefix};
use crate::span::Span;

/// Every setting; most have a flag of the same name.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The relay that is preferred when several are known.
    pub relay: Option<String>,
    /// The interfaces to use; empty means all usable ones.
    pub links: Vec<String>,
    /// Destinations left to each command's own network.
    pub direct: Vec<DirectPrefix>,
    /// How packets are spread over links.
    #[serde(deserialize_with = "by_name")]
    pub scheduler: Option<SchedulerKind>,
    /// How fast each link is used.
    #[serde(deserialize_with = "by_name")]
    pub congestion: Option<ControllerKind>,
    /// Whether destinations are asked if they speak tabane, and believed who they are.
    pub trust_first_use: bool,
    /// What is asked for over links that fail, to find login pages: a URL that answers 204, or off.
    /// Has no flag.
    pub portal_probe: Option<String>,
    /// The addresses that `tabane relay` gives to clients.
    pub relay_pool: Vec<PoolRange>,
    /// What `tabane up` does.
    pub up: UpSettings,
}

/// The table `[up]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpSettings {
    /// Carry private ranges and connected networks as well.
    pub all: bool,
    /// The interfaces with hosts behind them that are carried, too.
    pub lan: Vec<String>,
    /// The networks behind this machine that others of its group are led to.
    pub route: Vec<RoutePrefix>,
    /// Domains whose names others ask for there.
    pub route_domain: Vec<RouteDomain>,
    /// Hosts there see this machine's address in the place of others'.
    pub snat: bool,
    /// Whether pings are carried.
    pub ping: Option<bool>,
    /// Nothing goes without the relay.
    pub strict: bool,
    /// How long connections wait for a relay that does not answer.
    pub wait: Option<Span>,
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
