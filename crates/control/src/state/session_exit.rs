//! Addresses of the relay's that a session's connections leave by.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Where a session's connections leave the relay, whose user was granted addresses for that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SessionExit {
    /// The user.
    pub user: String,
    /// By these, one of each family at the most.
    pub addresses: Vec<IpAddr>,
    /// Granted, of a family of which the relay's host has none: what goes by that is refused.
    pub missing: Vec<String>,
    /// The user's connections, flows and pings that were refused for that.
    pub refused: u64,
}
