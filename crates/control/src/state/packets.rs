//! What a session carries beside TCP and UDP.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// IP packets that are neither TCP nor UDP, counted since the client has had its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Packets {
    /// The client's addresses in the relay's pool; with none, pings alone are carried.
    pub addresses: Vec<IpAddr>,
    /// Packets towards the internet.
    pub sent: u64,
    /// Packets from there.
    pub received: u64,
    /// At a relay: packets that it did not pass on, by reason.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
}
