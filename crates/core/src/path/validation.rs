//! Where a path leads, and whether that address answers: challenges and their answers (RFC 9000
//! §8.2, §9.4).
//!
//! Owns what may be sent there: little before it has proved itself, and never more than a byte
//! stream beneath takes. What a new address means for what was measured is the path's to say.

use tabane_base::{Bytes, Duration, Instant};

use super::{Path, QUESTION_SIZE, State};
use crate::id::FourTuple;
use crate::mtu::BASE_SIZE;

/// What may be sent to an address that has not proved itself, per byte from it (RFC 9000 §8.1).
const AMPLIFICATION: u64 = 3;
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

/// What answers a challenge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) data: [u8; 8],
    pub(crate) to: FourTuple,
    /// The challenge asked for packets of full size too.
    pub(crate) is_full: bool,
}

/// An address being asked to prove that it receives what we send there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Challenge {
    pub(crate) tuple: FourTuple,
    pub(crate) data: [u8; 8],
    due_at: Instant,
    sent_at: Instant,
    attempts: u32,
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Address {
    tuple: FourTuple,
    /// Whether `tuple` proved that it receives what we send.
    validated: bool,
    /// What may go there before it has.
    credit: Bytes,
    /// What the byte stream beneath takes; no limit where there is none.
    stream_room: Bytes,
    challenge: Option<Challenge>,
    /// An answer owed.
    response: Option<Response>,
    /// The path was opened by then, after its address had been asked several times.
    unanswered_until: Instant,
}

impl Address {
    pub(super) fn new(tuple: FourTuple) -> Self {
        Self {
            tuple,
            validated: false,
            credit: Bytes::ZERO,
            stream_room: Bytes::MAX,
            challenge: None,
            response: None,
            unanswered_until: Instant::default(),
        }
    }

    pub(super) const fn tuple(&self) -> FourTuple {
        self.tuple
    }

    /// Whether packets go there through a byte stream.
    pub(super) const fn is_ordered(&self) -> bool {
        self.tuple.socket.is_ordered()
    }

    pub(crate) const fn is_validated(&self) -> bool {
        self.validated
    }

    /// The handshake has shown that it answers.
    pub(super) const fn validate(&mut self) {
        self.validated = true;
    }

    /// An authentic packet of `size` bytes came from `tuple`.
    pub(super) fn on_received(&mut self, size: usize, tuple: FourTuple) {
        if !self.validated && tuple == self.tuple {
            self.credit += Bytes::new(size as u64 * AMPLIFICATION);
        }
    }

    pub(super) fn on_sent(&mut self, bytes: Bytes) {
        if self.is_ordered() {
            self.stream_room -= bytes;
        }
        if !self.validated {
            self.credit -= bytes;
        }
    }

    /// Bytes that may go there before it has proved itself.
    pub(crate) const fn amplification_room(&self) -> Bytes {
        match self.validated {
            true => Bytes::MAX,
            false => self.credit,
        }
    }

    pub(super) const fn stream_room(&self) -> Bytes {
        self.stream_room
    }

    /// The byte stream beneath takes so much more.
    pub(crate) const fn set_stream_room(&mut self, room: Bytes) {
        self.stream_room = room;
    }

    // What is asked.

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

    pub(crate) fn challenge_at(&self) -> Option<Instant> {
        self.challenge.map(|challenge| challenge.due_at)
    }

    /// The challenge that is due, which is sent now.
    pub(crate) fn take_challenge(&mut self, now: Instant) -> Option<Challenge> {
        let challenge = self.challenge.as_mut().filter(|it| it.due_at <= now)?;
        let due = *challenge;
        let wait = CHALLENGE_INTERVAL * (1 << challenge.attempts.min(4));
        challenge.attempts += 1;
        challenge.sent_at = now;
        challenge.due_at = now + wait.min(CHALLENGE_INTERVAL_MAX);
        Some(due)
    }

    pub(crate) const fn forget_challenge(&mut self) {
        self.challenge = None;
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

    /// A challenge came in a packet of `size` bytes: it is answered where it came from, in a packet
    /// as full as may be (RFC 9000 §8.2.2) unless it asks for the round trip alone.
    pub(crate) fn on_question(&mut self, data: [u8; 8], from: FourTuple, size: usize) {
        self.response = Some(Response {
            data,
            to: from,
            is_full: !(QUESTION_SIZE..BASE_SIZE.into()).contains(&size),
        });
    }

    pub(crate) fn take_response(&mut self) -> Option<Response> {
        self.response.take()
    }

    /// The challenge that this answers. It counts from the address that was asked only: who answers
    /// from elsewhere has shown nothing of that. The path leads there from now on.
    fn on_response(&mut self, from: FourTuple, data: [u8; 8]) -> Option<Challenge> {
        let is_answer = |challenge: &mut Challenge| {
            let asked = challenge.tuple;
            challenge.data == data && (asked.socket, asked.remote) == (from.socket, from.remote)
        };
        let challenge = self.challenge.take_if(is_answer)?;
        self.tuple = challenge.tuple;
        self.validated = true;
        Some(challenge)
    }

    /// Whether the answer to what left at `sent_at` may say how long the peer stood still or the
    /// link was away, and not how long an answer takes: it had to be asked again.
    pub(super) fn may_have_waited(&self, sent_at: Instant) -> bool {
        let is_asked_again = |challenge: &Challenge| challenge.attempts > 1;
        sent_at < self.unanswered_until
            || !self.validated && self.challenge.as_ref().is_some_and(is_asked_again)
    }
}

impl Path {
    /// Whether the path should be reported as not working; once.
    pub(crate) fn report_unanswered(&mut self) -> bool {
        let challenge = &self.address.challenge;
        let patient = challenge.is_none_or(|it| it.attempts < CHALLENGE_PATIENCE);
        !patient && self.life.report_unanswered()
    }

    /// A challenge was answered. `true` when the path may be used from now on.
    pub(crate) fn on_response(&mut self, now: Instant, from: FourTuple, data: [u8; 8]) -> bool {
        self.on_round_trip_answer(now, data);
        let host = self.address.tuple.remote.ip();
        let Some(challenge) = self.address.on_response(from, data) else {
            return false;
        };
        if challenge.tuple.remote.ip() != host {
            // Another port is a NAT's new mapping on the same link; another address may be
            // another link (RFC 9000 §9.4).
            self.restart(now);
        }
        // Which of several was answered is not known.
        if challenge.attempts == 1 {
            self.measuring.on_sample(now, now.since(challenge.sent_at));
        }
        if matches!(self.state(), State::Opening { .. }) {
            if challenge.attempts > 1 {
                self.address.unanswered_until = now;
            }
            self.life.begin(now);
            return true;
        }
        false
    }
}
