//! Whether an address answers: challenges and their answers (RFC 9000 §8.2, §9.4).

use tabane_base::{Bytes, Duration, Instant};

use super::round_trip::QUESTION_SIZE;
use super::{Challenge, Path, Response, State};
use crate::id::FourTuple;
use crate::mtu::BASE_SIZE;

/// The first challenge is repeated after this, then ever later; a path over the slowest satellite
/// answers within it.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(300);
/// Challenges are never further apart: a link that begins to work is noticed soon.
const CHALLENGE_INTERVAL_MAX: Duration = Duration::from_secs(3);
/// What a challenge has at the most where it is not padded.
const CHALLENGE_SIZE: Bytes = Bytes::new(64);
/// An address that a packet of the path came from is asked so often: each question is no larger
/// than that packet was, and there may be an answer to it.
const ASKED_ELSEWHERE: u32 = 2;
/// A path that has not answered for so long is reported, though the challenges go on.
const CHALLENGE_PATIENCE: u32 = 4;

impl Path {
    /// Something came from `tuple`, which is to prove itself; unless it is being asked already.
    pub(crate) fn challenge(&mut self, now: Instant, tuple: FourTuple, data: [u8; 8]) {
        let is_asked = |challenge: &Challenge| {
            challenge.tuple == tuple && challenge.attempts <= ASKED_ELSEWHERE
        };
        if !self.challenge.as_ref().is_some_and(is_asked) {
            self.challenge = Some(Challenge {
                tuple,
                data,
                due_at: now,
                sent_at: now,
                attempts: 0,
            });
        }
    }

    /// The challenge left; when to repeat it.
    pub(crate) fn on_challenge_sent(&mut self, now: Instant) {
        if let Some(challenge) = &mut self.challenge {
            let wait = CHALLENGE_INTERVAL * (1 << challenge.attempts.min(4));
            challenge.attempts += 1;
            challenge.sent_at = now;
            challenge.due_at = now + wait.min(CHALLENGE_INTERVAL_MAX);
        }
    }

    /// Whether one more challenge to `tuple` keeps to what came from there (RFC 9000 §8.1): who is
    /// there speaks again, and is asked again.
    pub(crate) fn may_challenge(&self, tuple: FourTuple) -> bool {
        let attempts = self.challenge.map_or(0, |challenge| challenge.attempts);
        match tuple == self.tuple {
            true => self.amplification_room() >= CHALLENGE_SIZE,
            false => attempts <= ASKED_ELSEWHERE,
        }
    }

    /// Whether the path should be reported as not working; once.
    pub(crate) fn report_unanswered(&mut self) -> bool {
        let patient = self
            .challenge
            .is_none_or(|c| c.attempts < CHALLENGE_PATIENCE);
        match &mut self.state {
            State::Opening { reported } if !patient && !*reported => {
                *reported = true;
                true
            }
            _ => false,
        }
    }

    /// A challenge came in a packet of `size` bytes: it is answered where it came from, in a packet
    /// as full as may be (RFC 9000 §8.2.2) unless it asks for the round trip alone.
    pub(crate) fn on_question(&mut self, data: [u8; 8], from: FourTuple, size: usize) {
        self.response = Some(Response {
            data,
            to: from,
            is_full: !(QUESTION_SIZE..BASE_SIZE.into()).contains(&size),
        });
    }

    /// A challenge was answered, from the address that was asked if it counts: who answers from
    /// elsewhere has shown nothing of that. `true` when the path may be used from now on.
    pub(crate) fn on_response(&mut self, now: Instant, from: FourTuple, data: [u8; 8]) -> bool {
        self.on_round_trip_answer(now, data);
        let is_answer = |challenge: &mut Challenge| {
            let asked = challenge.tuple;
            challenge.data == data && (asked.socket, asked.remote) == (from.socket, from.remote)
        };
        let Some(challenge) = self.challenge.take_if(is_answer) else {
            return false;
        };
        if challenge.tuple != self.tuple {
            let other_host = challenge.tuple.remote.ip() != self.tuple.remote.ip();
            self.tuple = challenge.tuple;
            if other_host {
                // Another port is a NAT's new mapping on the same link; another address may be
                // another link (RFC 9000 §9.4).
                self.restart(now);
            }
        }
        // Which of several was answered is not known.
        if challenge.attempts == 1 {
            self.round_trip.on_sample(now, now.since(challenge.sent_at));
        }
        self.validated = true;
        if matches!(self.state, State::Opening { .. }) {
            if challenge.attempts > 1 {
                self.unanswered_until = now;
            }
            self.state = State::Active;
            self.active_since = now;
            return true;
        }
        false
    }
}
