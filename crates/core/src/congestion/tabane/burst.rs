//! Links that let nothing pass for long, and then much at once.
//!
//! What waits for such a moment is no queue that could be shorter: it passes then, or a turn later.
//! Owns how much passed in each of the latest moments. Less is never kept in flight.

use tabane_base::{Bytes, Duration, Instant, scale};

use crate::congestion::AckEvent;

/// Acknowledgements so close together are of one moment: their own way back takes time.
const MOMENT: Duration = Duration::from_millis(20);
/// Moments are apart by this at least, and by more than the shortest round trip: a small window
/// that left at once comes back as far apart.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_RTTS: f64 = 1.25;
/// Another is waited for so many times as long as for the latest.
const PATIENCE: u32 = 3;

/// What passed at once.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    heard_at: Instant,
    /// The present moment, and what passed in it.
    began_at: Instant,
    passed: Bytes,
    /// What passed in the one before, and until when that counts.
    before: Bytes,
    until: Instant,
}

impl Burst {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            heard_at: now,
            began_at: now,
            passed: Bytes::ZERO,
            before: Bytes::ZERO,
            until: now,
        }
    }

    /// Something is waited for from now on.
    pub(super) fn on_restart(&mut self, now: Instant) {
        self.heard_at = now;
    }

    pub(super) fn on_ack(&mut self, event: &AckEvent<'_>, min_rtt: Duration) {
        let pause = event.now.since(self.heard_at);
        self.heard_at = event.now;
        if pause > PAUSE.max(scale(min_rtt, PAUSE_RTTS)) {
            self.before = self.passed;
            (self.passed, self.began_at) = (Bytes::ZERO, event.now);
            self.until = event.now + pause * PATIENCE;
        }
        if event.now.since(self.began_at) <= MOMENT {
            self.passed += event.sample.newly_acked;
        } else if event.now.since(self.began_at) <= PAUSE {
            // It goes on passing.
            self.passed = Bytes::ZERO;
        }
    }

    /// What passes at once, as far as the two latest moments tell.
    pub(super) fn usual(&self, now: Instant) -> Bytes {
        match now < self.until {
            true => self.before.min(self.passed),
            false => Bytes::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::RateSample;
    use crate::rtt::RttEstimator;

    const RTT: Duration = Duration::from_millis(60);

    /// So many bytes are acknowledged; what is believed to pass at once then.
    fn usual(burst: &mut Burst, now_ms: u64, bytes: u64) -> u64 {
        let now = Instant::from_millis(now_ms);
        let sample = RateSample {
            newly_acked: Bytes::new(bytes),
            ..RateSample::default()
        };
        let event = AckEvent {
            now,
            sample: &sample,
            rtt: &RttEstimator::default(),
            trip: None,
            way_back: None,
            in_flight_after: Bytes::ZERO,
            largest_acked_sent_at: now,
        };
        burst.on_ack(&event, RTT);
        burst.usual(now).get()
    }

    #[test]
    fn what_passed_twice_at_once_is_usual_until_it_stays_away() {
        let mut burst = Burst::new(Instant::EPOCH);
        assert_eq!(usual(&mut burst, 1_000, 500), 0);
        assert_eq!(usual(&mut burst, 1_001, 500), 0);
        assert_eq!(usual(&mut burst, 2_000, 600), 600);
        assert_eq!(usual(&mut burst, 2_001, 600), 1_000);
        assert_eq!(burst.usual(Instant::from_millis(4_900)).get(), 1_000);
        assert_eq!(burst.usual(Instant::from_millis(5_001)).get(), 0);
    }

    #[test]
    fn a_link_that_goes_on_after_an_outage_is_not_one_of_them() {
        let mut burst = Burst::new(Instant::EPOCH);
        for outage in 0..5 {
            let begin = 1_000 * outage;
            assert!((0..800).all(|ms| usual(&mut burst, begin + ms, 1_000) <= 21_000));
            assert_eq!(usual(&mut burst, begin + 801, 1_000), 0);
        }
    }
}
