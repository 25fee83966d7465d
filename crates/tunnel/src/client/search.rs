//! The search for another relay while the present one is silent or goes down.
//!
//! Owns when the others are tried again, and how long the one that answers waits for the present
//! one: after an outage of the links both may answer, and a change would cut what is open. Pure:
//! asked with the time, it sends nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::{Backoff, LONGEST};

/// How long one that answers waits: two round trips of a far link. What is new waits meanwhile, and
/// must be carried 2 s after a relay's end, most of which is needed to find out that it is silent.
const GRACE: Duration = Duration::from_millis(600);

/// Whether another relay is looked for, and when next. `T` is one that has answered.
#[derive(Debug)]
pub(super) struct Search<T> {
    /// `None` while there is no need.
    next_at: Option<Instant>,
    backoff: Backoff,
    /// One that has answered, and until when it waits.
    spare: Option<(Instant, T)>,
}

impl<T> Default for Search<T> {
    fn default() -> Self {
        Self {
            next_at: None,
            backoff: Backoff::default(),
            spare: None,
        }
    }
}

impl<T> Search<T> {
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

    /// Another relay has answered: the present one has a last chance to.
    pub(super) fn hold(&mut self, now: Instant, spare: T) {
        let until = now + GRACE;
        self.spare = Some((until, spare));
        self.next_at = Some(until);
    }

    /// The one that has answered, if the present one has had its chance.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<T> {
        let (_, spare) = self.spare.take_if(|(until, _)| *until <= now)?;
        Some(spare)
    }

    /// The one that has answered, and is not needed.
    pub(super) fn take_spare(&mut self) -> Option<T> {
        Some(self.spare.take()?.1)
    }

    /// There are other links: what failed may work now.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.is_on() && self.spare.is_none() {
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

    #[test]
    fn a_search_is_at_once_then_ever_rarer_and_at_once_again_with_other_links() {
        let begin = Instant::now();
        let mut search = Search::<()>::default();
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
    #[test]
    fn one_that_answers_waits_once_and_is_asked_again_where_it_is_gone() {
        let begin = Instant::now();
        let mut search = Search::default();
        search.turn(begin, true);
        search.hold(begin, 'a');
        let until = begin + GRACE;
        assert_eq!(search.next_at(), Some(until), "nobody else is asked before");
        search.renew(begin);
        assert_eq!(search.next_at(), Some(until), "nor for other links' sake");
        assert_eq!(search.overdue(until - Duration::from_nanos(1)), None);
        assert_eq!(search.overdue(until), Some('a'));
        assert_eq!(search.overdue(until), None, "it is taken once");
        // It may have gone meanwhile: the others are asked at once.
        assert!(search.is_on() && search.next_at() <= Some(until));

        search.hold(until, 'b');
        assert!(search.turn(until, false), "the present one is back");
        assert_eq!(search.take_spare(), Some('b'));
        assert_eq!(search.overdue(until + GRACE), None);
    }
}
