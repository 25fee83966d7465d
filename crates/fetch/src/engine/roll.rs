//! The links that one transfer was told of, and what each has brought it.
//!
//! Owns that a transfer hears of a change once, and that a link which has gone stays in the
//! account. What a link has come to for everybody is its own affair.

use std::collections::BTreeMap;

use tabane_base::{Bytes, Instant};
use tabane_ranges::{LinkId, LinkLimits, Transfer};

use crate::job::LinkProgress;
use crate::links::Links;

/// A link as the transfer knows it.
struct Entry {
    name: String,
    facts: LinkLimits,
    /// Bytes that came over it.
    carried: u64,
}

/// All links of one transfer.
#[derive(Default)]
pub(super) struct Roll {
    entries: BTreeMap<LinkId, Entry>,
}

impl Roll {
    /// Tells `transfer` what has changed of the links.
    pub(super) fn follow(&mut self, now: Instant, links: &Links, transfer: &mut Transfer) {
        let there = links.all();
        let is_there = |id: &LinkId| there.iter().any(|link| link.id == *id);
        for id in self.entries.keys().filter(|id| !is_there(id)) {
            transfer.handle_link_gone(now, *id);
        }
        for link in there {
            let facts = link.facts.borrow().clone();
            let known = self.entries.get(&link.id);
            if known.is_none_or(|known| known.facts != facts) {
                transfer.handle_link(now, link.id, facts.clone());
                let entry = Entry {
                    name: link.name.clone(),
                    facts,
                    carried: known.map_or(0, |known| known.carried),
                };
                self.entries.insert(link.id, entry);
            }
        }
    }

    /// So many bytes more came over a link.
    pub(super) fn on_data(&mut self, id: LinkId, bytes: usize) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.carried += bytes as u64;
        }
    }

    /// The link's name; empty for one that the transfer was never told of.
    pub(super) fn name(&self, id: LinkId) -> &str {
        self.entries.get(&id).map_or("", |entry| &entry.name)
    }

    /// A line for each link.
    pub(super) fn progress(
        &self,
        now: Instant,
        links: &Links,
        transfer: &Transfer,
    ) -> Vec<LinkProgress> {
        let line = |(id, entry): (&LinkId, &Entry)| LinkProgress {
            name: entry.name.clone(),
            carried: entry.carried,
            rate: transfer.rate(now, *id),
            requests: transfer.requests(*id),
            is_gone: links.find(*id).is_none(),
        };
        self.entries.iter().map(line).collect()
    }

    /// What was learnt of links is of use to the next fetch.
    pub(super) fn remember(&self, now: Instant, links: &Links, transfer: &Transfer) {
        for (id, entry) in &self.entries {
            if let Some(link) = links.find(*id) {
                link.remember(transfer.rate(now, *id), Bytes::new(entry.carried));
            }
        }
    }
}
