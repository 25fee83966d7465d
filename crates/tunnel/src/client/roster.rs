//! Which relay is tried when, among several in the user's order of preference.
//!
//! Owns the order, the refusals, the head start each relay has over the next, and the back-off.
//! Pure: asked with the time, it names relays by their place in the list and sends nothing.

use std::collections::VecDeque;

use tabane_base::Duration;
use tokio::time::Instant;

/// A relay's head start: over the slowest links in use an answer takes less than this.
const HEAD_START: Duration = Duration::from_millis(1_500);
/// Waits before a relay that is liked better is asked again: first and longest.
const FIRST_KNOCK: Duration = Duration::from_secs(2);
const LAST_KNOCK: Duration = Duration::from_secs(60);
/// How often it is looked whether a session is idle, while a better relay may be back.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// The relays a client knows.
#[derive(Debug)]
pub(super) struct Roster {
    /// By place: its owner does not want us, and will not.
    refused: Vec<bool>,
    current: Option<usize>,
    knocks: u32,
    knock_at: Option<Instant>,
}

impl Roster {
    pub(super) fn new(relays: usize) -> Self {
        Self {
            refused: vec![false; relays],
            current: None,
            knocks: 0,
            knock_at: None,
        }
    }

    pub(super) fn has_several(&self) -> bool {
        self.refused.len() > 1
    }

    /// The relay of the present session, or the last.
    pub(super) const fn current(&self) -> Option<usize> {
        self.current
    }

    /// Every relay that may let us in, the preferred first.
    pub(super) fn order(&self) -> Vec<usize> {
        let all = 0..self.refused.len();
        all.filter(|relay| !self.refused[*relay]).collect()
    }

    /// Those but the current one.
    pub(super) fn others(&self) -> Vec<usize> {
        let mut others = self.order();
        others.retain(|relay| Some(*relay) != self.current);
        others
    }

    /// Those liked better than the current one.
    pub(super) fn better(&self) -> Vec<usize> {
        let mut better = self.order();
        better.retain(|relay| self.current.is_some_and(|current| *relay < current));
        better
    }

    pub(super) fn on_refused(&mut self, relay: usize) {
        self.refused[relay] = true;
    }

    /// There is a session with `relay`.
    pub(super) fn on_session(&mut self, now: Instant, relay: usize) {
        self.current = Some(relay);
        self.knocks = 0;
        self.knock_at = (!self.better().is_empty()).then(|| now + FIRST_KNOCK);
    }

    /// When to ask better relays again; `None` where there is none.
    pub(super) const fn knock_at(&self) -> Option<Instant> {
        self.knock_at
    }

    /// The better relays did not answer.
    pub(super) fn on_knock_failed(&mut self, now: Instant) {
        self.knocks = (self.knocks + 1).min(16);
        let wait = (FIRST_KNOCK * 2_u32.saturating_pow(self.knocks)).min(LAST_KNOCK);
        self.knock_at = (!self.better().is_empty()).then(|| now + wait);
    }

    /// Links or addresses are others: what did not answer may do so now.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.knock_at.is_some() {
            self.knocks = 0;
            self.knock_at = Some(now);
        }
    }

    /// The present session is not to be disturbed now.
    pub(super) fn on_busy(&mut self, now: Instant) {
        self.knock_at = Some(now + IDLE_CHECK);
    }
}

/// One round of handshakes: each relay is tried while those before it still are.
#[derive(Debug)]
pub(super) struct Race {
    waiting: VecDeque<usize>,
    trying: Vec<usize>,
    next_at: Instant,
}

impl Race {
    pub(super) fn new(order: Vec<usize>, now: Instant) -> Self {
        Self {
            waiting: order.into(),
            trying: Vec::new(),
            next_at: now,
        }
    }

    /// The relay to try now.
    pub(super) fn next(&mut self, now: Instant) -> Option<usize> {
        if now < self.next_at {
            return None;
        }
        let relay = self.waiting.pop_front()?;
        self.trying.push(relay);
        self.next_at = now + HEAD_START;
        Some(relay)
    }

    /// When the next one is to be tried, where there is one.
    pub(super) fn next_at(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.next_at)
    }

    /// `relay` said no, or nothing at all: the next one need not wait for it.
    pub(super) fn on_failed(&mut self, now: Instant, relay: usize) {
        self.trying.retain(|other| *other != relay);
        self.next_at = now;
    }

    /// All have been tried in vain.
    pub(super) fn is_lost(&self) -> bool {
        self.waiting.is_empty() && self.trying.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_relay_has_a_head_start_unless_the_one_before_failed() {
        let begin = Instant::now();
        let mut race = Race::new(vec![0, 1, 2], begin);
        assert_eq!(race.next(begin), Some(0));
        assert_eq!(race.next(begin), None);
        assert_eq!(race.next_at(), Some(begin + HEAD_START));
        assert_eq!(race.next(begin + HEAD_START), Some(1));
        race.on_failed(begin + HEAD_START, 1);
        assert_eq!(race.next(begin + HEAD_START), Some(2));
        assert_eq!(race.next_at(), None);
        race.on_failed(begin + HEAD_START, 2);
        assert!(!race.is_lost(), "the first is still being tried");
        race.on_failed(begin + HEAD_START, 0);
        assert!(race.is_lost());
    }

    #[test]
    fn better_relays_are_asked_again_ever_more_slowly() {
        let mut now = Instant::now();
        let mut roster = Roster::new(3);
        roster.on_session(now, 0);
        assert_eq!(roster.knock_at(), None, "nothing is better than the first");
        assert_eq!(roster.others(), [1, 2]);
        roster.on_session(now, 2);
        assert_eq!(roster.better(), [0, 1]);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let at = roster.knock_at().unwrap();
            waits.push((at - now).as_secs());
            now = at;
            roster.on_knock_failed(now);
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
        roster.renew(now);
        assert_eq!(roster.knock_at(), Some(now));
        roster.on_session(now, 0);
        roster.renew(now);
        assert_eq!(roster.knock_at(), None, "there is nothing better to ask");
    }

    #[test]
    fn who_refused_is_not_asked_again() {
        let now = Instant::now();
        let mut roster = Roster::new(2);
        roster.on_refused(0);
        assert_eq!(roster.order(), [1]);
        roster.on_session(now, 1);
        assert_eq!(roster.knock_at(), None);
        roster.on_refused(1);
        assert!(roster.order().is_empty());
    }
}
