//! What one user of links has told of what they carry.
//!
//! Whoever uses links knows each one's total since it began; what is new of it counts, where the
//! table in force has a budget for the link.

use std::collections::BTreeMap;

use tabane_base::{Bytes, Duration};

use super::Uplinks;
use crate::table::Table;

/// How often what links carry is counted: a fast link goes beyond its budget by no more than it
/// carries in this time.
pub const COUNT_INTERVAL: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<String, Bytes>);

impl Tally {
    /// The link's own total begins at nothing again.
    pub fn restart(&mut self, link: &str) {
        self.0.remove(link);
    }

    /// Tells `uplinks` of what links have carried under `table`: `totals` are each one's since it
    /// began. To be called every [`COUNT_INTERVAL`], and before another table is put in force.
    pub fn count(
        &mut self,
        uplinks: &Uplinks,
        table: &Table,
        totals: impl IntoIterator<Item = (String, Bytes)>,
    ) {
        for (link, total) in totals {
            let before = self.0.get(&link).copied();
            let fresh = total - before.unwrap_or(Bytes::ZERO);
            if table.has_budget(&link) && fresh > Bytes::ZERO {
                uplinks.count(&link, fresh);
            }
            self.0.insert(link, total);
        }
    }
}
