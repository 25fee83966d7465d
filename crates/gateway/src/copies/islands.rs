//! Runs of copies beyond the first hole, as they are reported to the server.

use std::collections::BTreeMap;

/// From the first byte of each to one past its last, in positions that do not wrap.
#[derive(Debug, Default)]
pub(super) struct Islands(BTreeMap<u64, u64>);

impl Islands {
    /// There is a copy of `start..end` as well, of which there was none.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        let before = self.0.range(..start).next_back();
        let start = match before {
            Some((first, last)) if *last == start => *first,
            _ => start,
        };
        let end = self.0.remove(&end).unwrap_or(end);
        self.0.insert(start, end);
    }

    /// There is no hole below.
    pub(super) fn join_below(&mut self, contiguous: u64) {
        while let Some(first) = self.0.first_entry()
            && *first.key() < contiguous
        {
            first.remove();
        }
    }

    /// All, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(start, end)| (*start, *end))
    }
}
