//! Silences: a path that had much to deliver delivered nothing for a while, and then goes on.
//!
//! A handover, a radio link that repeats below us, a machine that was not run. What was under way
//! waited, so its round trips and the rate over them tell of the silence and not of the path: they
//! are left out, and what was believed before is the best guess for afterwards. If it is wrong,
//! what leaves afterwards shows it a round trip later.
//!
//! A link that has become slow looks like many silences. So one alone is left out, and no longer
//! than two round trips: when the next comes before what waited has been delivered, or that takes
//! longer, everything counts.

use tabane_base::{Duration, Instant, scale};

use crate::congestion::AckEvent;

/// So much longer than the round trip and so many usual gaps between acknowledgements is a silence.
const GAP: Duration = Duration::from_millis(50);
const GAPS: u32 = 4;
/// What waited is delivered within so many round trips and a gap.
const DRAIN_RTTS: u32 = 2;
/// Gaps are smoothed over this time.
const MEMORY: Duration = Duration::from_millis(1_000);

/// The silences of one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// When something was last heard, or began to be waited for.
    heard_at: Instant,
    /// What left before this waited in the latest silence.
    over_at: Option<Instant>,
    /// The usual gap: each counts for as long as it is.
    usual: Duration,
}

impl Silence {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            heard_at: now,
            over_at: None,
            usual: Duration::ZERO,
        }
    }

    /// Something is waited for from now on.
    pub(super) fn on_restart(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Takes an acknowledgement in: whether it tells of the path, and not of a silence.
    pub(super) fn on_ack(&mut self, event: &AckEvent<'_>, rtt: Duration) -> bool {
        let is_silence = self.is_silent(event.now, rtt);
        let gap = event.now.since(self.heard_at);
        self.heard_at = event.now;
        let weight = (gap.as_secs_f64() / MEMORY.as_secs_f64()).min(1.0);
        self.usual = scale(self.usual, 1.0 - weight).saturating_add(scale(gap, weight));
        let waited = |at: &Instant| {
            event.largest_acked_sent_at < *at && event.now <= *at + rtt * DRAIN_RTTS + GAP
        };
        self.over_at = match (self.over_at.filter(waited), is_silence) {
            (None, true) => Some(event.now),
            (Some(_), true) => None,
            (over_at, false) => over_at,
        };
        self.over_at.is_none()
    }

    /// Whether a silence explains the loss of what was `sent_at`, and no congestion.
    pub(super) fn explains(&self, now: Instant, sent_at: Instant, rtt: Duration) -> bool {
        match self.over_at {
            Some(over_at) => sent_at < over_at,
            None => self.is_silent(now, rtt),
        }
    }

    fn is_silent(&self, now: Instant, rtt: Duration) -> bool {
        now.since(self.heard_at) > rtt + GAP.max(self.usual * GAPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::RateSample;
    use crate::rtt::RttEstimator;

    const RTT: Duration = Duration::from_millis(60);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Whether an acknowledgement at `now` of what left at `sent` tells of the path.
    fn tells(silence: &mut Silence, now: u64, sent: u64) -> bool {
        let event = AckEvent {
            now: at(now),
            sample: &RateSample::default(),
            rtt: &RttEstimator::default(),
            trip: None,
            way_back: None,
            in_flight_after: tabane_base::Bytes::ZERO,
            largest_acked_sent_at: at(sent),
        };
        silence.on_ack(&event, RTT)
    }

    #[test]
    fn what_waited_in_a_silence_is_left_out_and_lost_by_it() {
        let mut silence = Silence::new(at(0));
        assert!((60..500).all(|now| tells(&mut silence, now, now - 60)));
        assert!(!silence.explains(at(600), at(540), RTT));
        assert!(silence.explains(at(800), at(500), RTT), "nothing came");
        assert!((800..850).all(|now| !tells(&mut silence, now, now - 350)));
        assert!(silence.explains(at(850), at(700), RTT));
        assert!(!silence.explains(at(850), at(801), RTT), "left afterwards");
        assert!(tells(&mut silence, 861, 801));
    }

    #[test]
    fn a_link_that_has_become_slow_is_not_silent() {
        let mut silence = Silence::new(at(0));
        assert!((60..500).all(|now| tells(&mut silence, now, now - 60)));
        assert!(!tells(&mut silence, 700, 441));
        let told = (1..10).map(|n| tells(&mut silence, 700 + 200 * n, 441 + n));
        assert!(told.into_iter().all(|told| told), "it brings one in 200 ms");
    }

    #[test]
    fn idleness_and_bursts_are_no_silence() {
        let mut silence = Silence::new(at(0));
        assert!((1..20).all(|n| tells(&mut silence, 60 + 40 * n, 40 * n)));
        silence.on_restart(at(5_000));
        assert!(tells(&mut silence, 5_060, 5_000));
    }
}
