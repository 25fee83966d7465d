//! The search for another relay while the present one is silent or goes down.
//!
//! Owns when the others are tried again. Pure: asked with the time, it sends nothing.

use tokio::time::Instant;

use super::backoff::{Backoff, LONGEST};

/// Whether another relay is looked for, and when next.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// `None` while there is no need.
    next_at: Option<Instant>,
    backoff: Backoff,
}

impl Search {
    /// Begins or ends with the need; true if that has changed.
    pub(super) fn turn(&mut self, now: Instant, is_needed: bool) -> bool {
        if is_needed == self.is_on() {
            return false;
        }
        self.next_at = is_needed.then_some(now);
        self.backoff = Backoff::default();
        true
    }

    /// No other relay answered.
    pub(super) fn on_failed(&mut self, now: Instant) {
        self.next_at = Some(now + self.backoff.next(LONGEST));
    }

    /// There are other links: what failed may work now.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.is_on() {
            self.next_at = Some(now);
            self.backoff = Backoff::default();
        }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.next_at.is_some()
    }

    /// When the others are to be tried; `None` while there is no need.
    pub(super) const fn next_at(&self) -> Option<Instant> {
        self.next_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_search_is_at_once_then_ever_rarer_and_at_once_again_with_other_links() {
        let begin = Instant::now();
        let mut search = Search::default();
        search.renew(begin);
        assert_eq!(search.next_at(), None, "nothing to look for");
        assert!(search.turn(begin, true));
        assert!(!search.turn(begin + LONGEST, true), "it is on already");
        assert_eq!(search.next_at(), Some(begin));

        let mut waits = Vec::new();
        for _ in 0..10 {
            search.on_failed(begin);
            waits.extend(search.next_at().map(|at| at - begin));
        }
        assert_eq!(waits[..3], [100, 200, 400].map(Duration::from_millis));
        assert_eq!(waits[9], LONGEST);

        search.renew(begin);
        assert_eq!(search.next_at(), Some(begin));
        search.on_failed(begin);
        assert_eq!(search.next_at(), Some(begin + waits[0]));
        assert!(search.turn(begin, false) && !search.is_on());
    }
}
