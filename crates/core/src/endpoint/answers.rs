//! Answers that need no session: what waits to leave, and how many there may be.
//!
//! Whoever forges an address has them sent to somebody else, so there is a limit for each kind that
//! is not far smaller than what asks for it. None for Retries, which have a twentieth of an
//! Initial: a flood of anything must not keep a newcomer from being asked for its proof. What an
//! answer says is the endpoint's affair.

use std::collections::VecDeque;

use tabane_base::{Duration, Instant};

use crate::id::FourTuple;
use crate::transmit::TransmitBatch;

/// Answers of a kind per [`WINDOW`]: enough for every client of a restarted relay to learn of it
/// within seconds, too few to be of use against third parties.
const MAX_ANSWERS: u32 = 1_000;
const WINDOW: Duration = Duration::from_secs(1);

/// The answers of one endpoint.
#[derive(Debug)]
pub(super) struct Answers {
    /// Of each kind in a window.
    most: u32,
    waiting: VecDeque<(FourTuple, Vec<u8>)>,
    resets: Window,
    others: Window,
}

/// How often something has happened in the present second.
#[derive(Debug)]
pub(super) struct Window {
    since: Instant,
    count: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            since: Instant::EPOCH,
            count: 0,
        }
    }
}

impl Window {
    pub(super) fn count(&mut self, now: Instant) -> u32 {
        if now.since(self.since) >= WINDOW {
            (self.since, self.count) = (now, 0);
        }
        self.count
    }

    /// It happens once more; how often by now.
    pub(super) fn add(&mut self, now: Instant) -> u32 {
        self.count = self.count(now).saturating_add(1);
        self.count
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self::among(1)
    }
}

impl Answers {
    /// The part of one of so many workers.
    pub(super) fn among(workers: u8) -> Self {
        Self {
            most: MAX_ANSWERS / u32::from(workers),
            waiting: VecDeque::new(),
            resets: Window::default(),
            others: Window::default(),
        }
    }

    /// Whether one more stateless reset may be made; it counts as made.
    pub(super) fn may_reset(&mut self, now: Instant) -> bool {
        self.resets.add(now) <= self.most
    }

    /// Whether one more question who is here, or which versions are spoken, may be answered; it
    /// counts as answered.
    pub(super) fn may_answer(&mut self, now: Instant) -> bool {
        self.others.add(now) <= self.most
    }

    /// One is made, and waits to leave.
    pub(super) fn push(&mut self, to: FourTuple, answer: Vec<u8>) {
        self.waiting.push_back((to, answer));
    }

    /// Appends what waits. `false` when there is nothing.
    pub(super) fn poll_transmit(&mut self, batch: &mut TransmitBatch) -> bool {
        let any = !self.waiting.is_empty();
        for (to, answer) in self.waiting.drain(..) {
            let start = batch.buf.len();
            batch.buf.extend_from_slice(&answer);
            batch.finish(to, start);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_without_end_gets_so_many_answers_a_second() {
        let mut answers = Answers::default();
        let mut made = |now| (0..5_000).filter(|_| answers.may_answer(now)).count();
        assert_eq!(made(Instant::from_millis(10_000)), MAX_ANSWERS as usize);
        assert_eq!(made(Instant::from_millis(10_999)), 0);
        assert_eq!(made(Instant::from_millis(11_000)), MAX_ANSWERS as usize);
    }
}
