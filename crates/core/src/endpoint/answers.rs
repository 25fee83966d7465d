//! Answers that need no session: what waits to leave, and how many there may be.
//!
//! Whoever forges an address has them sent to somebody else, so there is a limit for all together.
//! What an answer says, and that it is no larger than what asks for it, is the endpoint's affair.

use std::collections::VecDeque;

use tabane_base::{Duration, Instant};

use crate::id::FourTuple;
use crate::transmit::TransmitBatch;

/// Answers per [`ANSWER_WINDOW`]: enough for every client of a restarted relay to learn of it
/// within seconds, too few to be of use against third parties.
const MAX_ANSWERS: u32 = 1_000;
const ANSWER_WINDOW: Duration = Duration::from_secs(1);

/// The answers of one endpoint.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: VecDeque<(FourTuple, Vec<u8>)>,
    /// When the window began.
    since: Instant,
    /// Within the window, those asked for in vain included.
    asked_for: u32,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            since: Instant::EPOCH,
            asked_for: 0,
        }
    }
}

impl Answers {
    /// Whether one more may be made; it counts as made.
    pub(super) fn may_answer(&mut self, now: Instant) -> bool {
        if now.since(self.since) >= ANSWER_WINDOW {
            (self.since, self.asked_for) = (now, 0);
        }
        self.asked_for = self.asked_for.saturating_add(1);
        self.asked_for <= MAX_ANSWERS
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
