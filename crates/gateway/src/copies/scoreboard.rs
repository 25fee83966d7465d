//! What the mobile host may be missing: the scoreboard of RFC 6675, kept in order.
//!
//! Owns which ranges it has not said to have, which of them are due to be sent again, and how much
//! is taken for lost, so that no acknowledgement is paid for by a walk over all copies. Ranges are
//! named by their first byte, in positions that do not wrap.

use std::collections::{BTreeMap, BTreeSet};

use tabane_base::Instant;

#[derive(Clone, Copy, Debug)]
struct Open {
    length: u32,
    /// When it was sent again, while it is one of those that wait for an answer to that.
    waits_since: Option<Instant>,
}

/// Ranges that the mobile host has not said to have.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    open: BTreeMap<u64, Open>,
    /// Those of them that were sent again of late.
    waiting: BTreeSet<(Instant, u64)>,
    /// The others.
    due: BTreeSet<u64>,
    /// What is due and begins before this is lost: enough behind it has arrived.
    lost_below: u64,
    open_bytes: u32,
    lost_bytes: u32,
}

impl Scoreboard {
    /// A range is on its way, and was sent again at that time.
    pub(super) fn insert(&mut self, at: u64, length: u32, resent_at: Option<Instant>) {
        let waits_since = resent_at;
        let open = Open {
            length,
            waits_since,
        };
        self.open.insert(at, open);
        self.open_bytes += length;
        if let Some(since) = waits_since {
            self.waiting.insert((since, at));
        } else {
            self.make_due(at, length);
        }
    }

    /// It is there, or has another place from here on.
    pub(super) fn remove(&mut self, at: u64) {
        let Some(open) = self.open.remove(&at) else {
            return;
        };
        self.open_bytes -= open.length;
        self.leave(at, open);
    }

    /// It is sent again.
    pub(super) fn resend(&mut self, now: Instant, at: u64) {
        let Some(open) = self.open.get_mut(&at) else {
            return;
        };
        let before = *open;
        open.waits_since = Some(now);
        self.leave(at, before);
        self.waiting.insert((now, at));
    }

    /// What was sent again earlier than this has waited long enough.
    pub(super) fn give_up_waiting(&mut self, resent_before: Instant) {
        while let Some((since, at)) = self.waiting.first().copied()
            && since < resent_before
        {
            self.waiting.pop_first();
            if let Some(open) = self.open.get_mut(&at) {
                open.waits_since = None;
                let length = open.length;
                self.make_due(at, length);
            }
        }
    }

    /// What is due and ends here, or before, is lost.
    pub(super) fn give_up_below(&mut self, limit: u64) {
        let from = self.lost_below;
        for at in self.due.range(from..) {
            let length = self.open.get(at).map_or(0, |open| open.length);
            let end = at + u64::from(length);
            if end > limit {
                break;
            }
            self.lost_bytes += length;
            self.lost_below = end;
        }
    }

    /// Nothing is lost, as far as is known.
    pub(super) const fn give_nothing_up(&mut self) {
        (self.lost_below, self.lost_bytes) = (0, 0);
    }

    /// All of `from..to` that the host has not said to have, with their lengths.
    pub(super) fn open_within(&self, from: u64, to: u64) -> Vec<(u64, u32)> {
        let within = self.open.range(from..to.max(from));
        within.map(|(at, open)| (*at, open.length)).collect()
    }

    /// All that it has not said to have, in order.
    pub(super) fn open(&self) -> impl Iterator<Item = u64> {
        self.open.keys().copied()
    }

    /// What is to be sent again, in order.
    pub(super) fn due(&self) -> impl Iterator<Item = u64> {
        self.due.iter().copied()
    }

    /// The same of what is lost.
    pub(super) fn lost(&self) -> impl Iterator<Item = u64> {
        self.due.range(..self.lost_below).copied()
    }

    /// Bytes that may be on their way: all that is neither there nor lost.
    pub(super) const fn on_the_way(&self) -> u32 {
        self.open_bytes - self.lost_bytes
    }

    fn make_due(&mut self, at: u64, length: u32) {
        self.due.insert(at);
        if at < self.lost_below {
            self.lost_bytes += length;
        }
    }

    fn leave(&mut self, at: u64, open: Open) {
        if let Some(since) = open.waits_since {
            self.waiting.remove(&(since, at));
        } else if self.due.remove(&at) && at < self.lost_below {
            self.lost_bytes -= open.length;
        }
    }
}
