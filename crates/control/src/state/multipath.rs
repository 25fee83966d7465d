//! What goes by several links without a relay, as it is told.

use serde::{Deserialize, Serialize};

/// Connections that go without a relay, and by several links all the same: their servers speak
/// multipath TCP (RFC 8684).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Multipath {
    /// The links that such a connection may have, where no rule says otherwise; none where they are
    /// fewer than two.
    pub links: Vec<String>,
    /// Now.
    pub connections: u64,
    /// So far.
    pub connections_so_far: u64,
    /// Why there is none.
    pub problem: Option<String>,
}
