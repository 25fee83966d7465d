//! A stream whose reader stands still is held: its sender keeps the rest until the reader goes on.
//!
//! Without that, what a few stalled readers were granted fills the session's memory, and what does
//! not fit is sent in vain, again and again, at everybody's cost. Owns, at the receiver, when a
//! stream is held and what was last said of it [P-6.9].

use tabane_base::{Duration, Instant};

/// A reader stands still who has taken nothing of what is there for so long: far longer than a
/// turn of the engine, after which programs read.
const STANDS_STILL: Duration = Duration::from_millis(20);
/// The same of one that has said that it cannot take more: that is no matter of its turn.
const STAYS_BLOCKED: Duration = Duration::from_millis(5);

/// The receiver's side of one stream.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// How often the sender was told; odd: it holds.
    number: u64,
    /// The reader has taken nothing since, although something is there.
    waits_since: Option<Instant>,
    /// It has said since that it cannot take more.
    is_blocked: bool,
    /// Beyond this nothing is taken.
    at: u64,
    /// Unread when it began.
    unread: usize,
}

impl Hold {
    pub(crate) const fn is_on(&self) -> bool {
        self.number % 2 == 1
    }

    /// What the sender is to be told: a number that counts, and the offset to stop at.
    pub(crate) fn state(&self) -> (u64, Option<u64>) {
        (self.number, self.is_on().then_some(self.at))
    }

    /// There is something to read.
    pub(crate) fn on_readable(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    pub(crate) fn reader_stands_still(&self, now: Instant) -> bool {
        let patience = match self.is_blocked {
            true => STAYS_BLOCKED,
            false => STANDS_STILL,
        };
        let since = self.waits_since;
        since.is_some_and(|since| now.since(since) > patience)
    }

    /// The reader cannot take more.
    pub(crate) const fn on_blocked(&mut self) {
        self.is_blocked = true;
    }

    /// Holds a stream that is not held, of which all before `at` is here and `unread` bytes wait.
    pub(crate) fn begin(&mut self, at: u64, unread: usize) {
        self.number += 1;
        (self.at, self.unread) = (at, unread);
    }

    /// The reader has taken something, and `unread` bytes are left. `true` when the sender may go
    /// on, because half of what waited is gone.
    pub(crate) fn on_read(&mut self, now: Instant, unread: usize) -> bool {
        self.waits_since = (unread > 0).then_some(now);
        self.is_blocked = false;
        let ends = self.is_on() && unread <= self.unread / 2;
        self.number += u64::from(ends);
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_who_stands_still_is_told_from_one_who_is_slow() {
        let at = Instant::from_millis;
        let mut hold = Hold::default();
        hold.on_readable(at(0));
        hold.on_readable(at(19));
        assert!(!hold.reader_stands_still(at(20)));
        hold.on_blocked();
        assert!(hold.reader_stands_still(at(6)), "it has said so");
        assert!(!hold.on_read(at(20), 500));
        assert!(!hold.reader_stands_still(at(40)));
        assert!(hold.reader_stands_still(at(41)));
        hold.begin(1_000, 500);
        assert_eq!(hold.state(), (1, Some(1_000)));
        assert!(!hold.on_read(at(50), 251));
        assert!(hold.on_read(at(50), 250));
        assert_eq!(hold.state(), (2, None));
        assert!(!hold.on_read(at(60), 0));
        assert!(!hold.reader_stands_still(at(9_000)), "nothing is there");
    }
}
