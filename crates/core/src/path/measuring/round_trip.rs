//! The round trip of the path alone: there and back over the same link.
//!
//! Acknowledgements return by the fastest path, so that the round trips that recovery needs are
//! those of two links. A challenge is answered where it came in (RFC 9000 §8.2.2). Owns when one is
//! sent for this and what the answers told; nothing that decides anything uses it: it is for people
//! to see.

use tabane_base::{Duration, Instant};

use crate::path::Path;
use crate::rtt::{INITIAL_RTT, RttEstimator};

/// Questions are at least so far apart, and an answer that takes longer is not waited for.
const INTERVAL: Duration = Duration::from_secs(1);
/// A question's packet has at least so many bytes: shorter ones are challenges that had no room to
/// be full, which are answered in full.
pub(crate) const QUESTION_SIZE: usize = 128;
/// A path that carried nothing for so long is left at rest: a question would wake a radio.
const BUSY_FOR: Duration = Duration::from_secs(2);

/// What is asked and known.
#[derive(Debug)]
pub(super) struct RoundTrip {
    asked: Option<([u8; 8], Instant)>,
    is_due: bool,
    /// When it last carried something for the application: talk of the ends among themselves is
    /// no use of the path, and would go on for ever by itself.
    used_at: Option<Instant>,
    times: RttEstimator,
}

impl RoundTrip {
    pub(super) fn new() -> Self {
        Self {
            asked: None,
            is_due: false,
            used_at: None,
            times: RttEstimator::new(INITIAL_RTT),
        }
    }

    pub(super) fn on_sample(&mut self, now: Instant, sample: Duration) {
        self.times.update(now, sample, Duration::ZERO);
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// The latest, and the least of late.
    pub(super) fn known(&self) -> Option<(Duration, Duration)> {
        let times = &self.times;
        times.is_measured().then(|| (times.latest(), times.min()))
    }
}

impl Path {
    /// Something for the application leaves or has come.
    pub(crate) fn on_used(&mut self, now: Instant) {
        self.measuring.round_trip.used_at = Some(now);
    }

    /// Has the round trip measured, if it is time and the path is in use. `true` where that makes
    /// something to send.
    pub(crate) fn measure_round_trip(&mut self, now: Instant) -> bool {
        let was_asked_at = self.measuring.round_trip.asked.map(|(_, at)| at);
        let is_time = was_asked_at.is_none_or(|at| at + INTERVAL <= now);
        let used_at = self.measuring.round_trip.used_at;
        let is_busy = used_at.is_some_and(|at| at + BUSY_FOR >= now);
        let may_ask = self.is_active() && self.address.is_validated();
        self.measuring.round_trip.is_due |= is_time && is_busy && may_ask;
        self.measuring.round_trip.is_due
    }

    /// Whether a question is due; `data` is what it asks.
    pub(crate) fn take_round_trip(
        &mut self,
        now: Instant,
        data: impl FnOnce() -> [u8; 8],
    ) -> Option<[u8; 8]> {
        if !std::mem::take(&mut self.measuring.round_trip.is_due) {
            return None;
        }
        let data = data();
        self.measuring.round_trip.asked = Some((data, now));
        Some(data)
    }

    /// An answer to a question of [`Self::take_round_trip`], perhaps.
    pub(in crate::path) fn on_round_trip_answer(&mut self, now: Instant, data: [u8; 8]) {
        if let Some((asked, at)) = self.measuring.round_trip.asked
            && asked == data
        {
            self.measuring.round_trip.on_sample(now, now.since(at));
        }
    }
}
