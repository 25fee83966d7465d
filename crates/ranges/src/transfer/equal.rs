//! The paper's way: an equal part by every link, once, whatever the links are like.
//!
//! What a link that went has left is divided once the others are done.

use tabane_base::Instant;

use super::{Method, Transfer};
use crate::span::ByteRange;

impl Transfer {
    /// Gives every link its part, once nothing else is on its way.
    pub(super) fn divide(&mut self, now: Instant) {
        if !self.live.values().all(|live| self.is_held(live)) {
            return;
        }
        let usable = self.usable(now);
        let gaps = self.unassigned();
        let total: u64 = gaps.iter().map(|gap| gap.len()).sum();
        if usable.is_empty() || total == 0 {
            return;
        }
        let part = total.div_ceil(usable.len() as u64);
        let mut takers = usable.into_iter();
        for gap in gaps {
            let mut start = gap.start;
            while start < gap.end {
                let Some(link) = takers.next() else {
                    return;
                };
                let end = start.saturating_add(part).min(gap.end);
                self.start(now, link, Method::Get, ByteRange { start, end });
                start = end;
            }
        }
    }
}
