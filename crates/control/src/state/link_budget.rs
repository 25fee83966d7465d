//! What a link may carry until its period ends.

use serde::{Deserialize, Serialize};

/// A link's data budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinkBudget {
    /// What it may carry in a period, both ways.
    pub amount_bytes: u64,
    /// What it has carried in the present one.
    pub used_bytes: u64,
    /// The day (UTC) on which the next one begins: 2026-12-01.
    pub renews: String,
}

impl LinkBudget {
    /// Nothing is left of it.
    #[must_use]
    pub const fn is_spent(&self) -> bool {
        self.used_bytes >= self.amount_bytes
    }
}
