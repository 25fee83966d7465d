//! Hosts behind a client.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A host behind a client that is its router, and what it has had carried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LanHost {
    /// Its address. None: hosts of which there were too many, together.
    pub address: Option<IpAddr>,
    /// Its network card's, where the kernel knows that.
    pub hardware: Option<String>,
    /// Connections and UDP flows carried now.
    pub connections: u64,
    /// So far, those that were left out of the tunnel included.
    pub connections_so_far: u64,
    /// Carried into the tunnel, without what the tunnel adds.
    pub sent_bytes: u64,
    /// Carried out of it.
    pub received_bytes: u64,
}
