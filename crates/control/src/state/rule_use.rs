//! What rules have been good for.

use serde::{Deserialize, Serialize};

/// What a rule of the policy is used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RuleUse {
    /// Its name; none: what no rule fits.
    pub rule: Option<String>,
    /// What becomes of it, in words.
    pub text: String,
    /// Connections and UDP flows carried now.
    pub connections: u64,
    /// So far, those that were left out of the tunnel included.
    pub connections_so_far: u64,
    /// Carried into the tunnel, without what the tunnel adds.
    pub sent_bytes: u64,
    /// Carried out of it.
    pub received_bytes: u64,
}
