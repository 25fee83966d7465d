//! Whether an address answers: challenges and their answers (RFC 9000 §8.2, §9.4).

use tabane_base::{Duration, Instant};

use super::round_trip::QUESTION_SIZE;
use super::{Challenge, Path, Response, State};
use crate::id::FourTuple;
use crate::mtu::BASE_SIZE;

/// The first challenge is repeated after this, then ever later; a path over the slowest satellite
/// answers within it.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(300);
/// Challenges are never further apart: a link that begins to work is noticed soon.
const CHALLENGE_INTERVAL_MAX: Duration = Duration::from_secs(3);
/// A path that has not answered for so long is reported, though the challenges go on.
const CHALLENGE_PATIENCE: u32 = 4;

impl Path {
    /// Asks `tuple` to prove itself, unless it is being asked already.
    pub(crate) fn challenge(&mut self, now: Instant, tuple: FourTuple, data: [u8; 8]) {
        if self
            .challenge
            .is_none_or(|challenge| challenge.tuple != tuple)
        {
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
    pub(crate) fn on_question(
        &mut self,
        now: Instant,
        data: [u8; 8],
        from: FourTuple,
        size: usize,
    ) {
        self.round_trip.on_talk(now);
        self.response = Some(Response {
            data,
            to: from,
            is_full: !(QUESTION_SIZE..BASE_SIZE.into()).contains(&size),
        });
    }

    /// A challenge was answered. `true` when the path may be used from now on.
    pub(crate) fn on_response(&mut self, now: Instant, data: [u8; 8]) -> bool {
        self.round_trip.on_talk(now);
        self.on_round_trip_answer(now, data);
        let Some(challenge) = self.challenge.take_if(|challenge| challenge.data == data) else {
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
            self.state = State::Active;
            return true;
        }
        false
    }
}
