//! The way back: what it adds to round trips is nobody's queue.
//!
//! Acknowledgements take whatever path is fastest at the moment, and a path's round trip is longer
//! or shorter with each change by as much as those paths differ. As in R-M/TCP (eq. 1), only the
//! forward way tells of this path's queue: round trips are reckoned as if all had come back the way
//! that was usual of late, and the shortest one moves along when the usual way does.

use tabane_base::{Duration, Instant};

use super::{Phase, Tabane};
use crate::congestion::AckEvent;
use crate::congestion::model::shifted;

/// The usual way back has changed when the shortest of a span differs by this, and by this part of
/// the shortest round trip. Less is the clocks' drift, or noise: it is followed by one part in so
/// many each span.
const JUMP: Duration = Duration::from_millis(4);
const JUMP_PART: u32 = 16;
const DRIFT_PART: i64 = 32;
/// After a change it is likely to change again for so long.
const PACED: Duration = Duration::from_millis(300);

impl Tabane {
    /// The round trip of an acknowledgement, had it come back the usual way.
    pub(super) fn usual_trip(&mut self, event: &AckEvent<'_>) -> Option<Duration> {
        let rtt = event.sample.rtt?;
        if let Some(found) = event.way_back {
            self.way_there = self.way_there.min(nanos(rtt).saturating_sub(found));
        }
        match (self.way_back, event.way_back) {
            (Some(usual), Some(found)) => Some(shifted(rtt, usual.saturating_sub(found))),
            (None, Some(found)) => {
                // What was seen before may have come back another way.
                self.way_back = Some(found);
                self.take_length(event.now, rtt);
                Some(rtt)
            }
            (_, None) => Some(rtt),
        }
    }

    /// How much sooner than usual acknowledgements come at present.
    pub(super) fn sooner(&self) -> Duration {
        let ways = self.way_back.zip(self.sense.way_back());
        let nanos = ways.map_or(0, |(usual, found)| usual.saturating_sub(found));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// A span ended: its shortest way back is the usual one from here on.
    pub(super) fn follow_way_back(&mut self, now: Instant) {
        let (Some(usual), Some(found)) = (self.way_back, self.sense.way_back()) else {
            return;
        };
        let shift = found.saturating_sub(usual);
        let span = Duration::from_nanos(shift.unsigned_abs());
        if span < JUMP.max(self.min_rtt() / JUMP_PART) {
            self.way_back = Some(usual + shift / DRIFT_PART);
            return;
        }
        self.way_back = Some(found);
        self.paced_until = now + PACED;
        let length = self.model.min_rtt().unwrap_or_default();
        // What queues for the way back may come little by little, and go at once.
        let least = self.way_there.saturating_add(found);
        let least = Duration::from_nanos(u64::try_from(least).unwrap_or(0));
        self.take_length(now, shifted(length, shift).max(least));
        self.sense.shift(shift);
        self.model.shift_rounds(shift);
        let amount = self.rate.amount_in(span);
        match &mut self.phase {
            Phase::Dip(dip) => dip.shift(shift),
            Phase::Ramp(ramp) => ramp.shift(shift),
            Phase::Startup(startup) => startup.shift(shift),
            Phase::Steady if shift > 0 => self.cwnd += amount,
            // Else what comes back sooner would queue on its way there.
            Phase::Steady => self.cwnd -= amount,
            _ => {}
        }
    }
}

fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Algorithm as _;
    use crate::delivery::RateSample;
    use crate::rtt::RttEstimator;
    use tabane_base::{Bytes, Instant, Rate, Seed};

    const MTU: Bytes = Bytes::new(1_500);

    /// Packet `number` of one in a millisecond is acknowledged, of 30 in flight, after these ways.
    fn acknowledge(path: &mut Tabane, number: u64, there: Duration, back: Duration) {
        let now = Instant::from_millis(100 + number);
        let sample = RateSample {
            newly_acked: MTU,
            total_delivered: Bytes::new(MTU.get() * number),
            prior_delivered: Bytes::new(MTU.get() * number.saturating_sub(30)),
            rtt: Some(there + back),
            rate: Some(Rate::from_mbps(12)),
            tx_in_flight: Bytes::new(MTU.get() * 30),
            ..RateSample::default()
        };
        path.on_ack(&AckEvent {
            now,
            sample: &sample,
            trip: None,
            way_back: i64::try_from(back.as_nanos()).ok(),
            rtt: &RttEstimator::default(),
            in_flight_after: Bytes::new(MTU.get() * 30),
            largest_acked_sent_at: now - there - back,
        });
    }

    /// Acknowledgements that all come late for a while, and then early again: what delay comes with
    /// sending was added to the shortest round trip at each turn, and queued.
    #[test]
    fn ways_back_that_come_and_go_leave_the_path_as_long_as_it_was() {
        let mut path = Tabane::new(MTU, Instant::EPOCH, Seed(1).rng("path"));
        for number in 1..4_000_u64 {
            // Then delay that comes with sending, and a queue.
            let there = Duration::from_millis(if number < 10 { 20 } else { 60 });
            let back = Duration::from_millis(if number / 200 % 2 == 0 { 10 } else { 20 });
            acknowledge(&mut path, number, there, back);
            path.load = Duration::from_millis(7);
        }
        let length = path.model.min_rtt().expect("measured");
        assert!(length <= Duration::from_millis(20 + 20), "{length:?}");
    }

    /// The other direction's queue grows little by little, and is gone at once: with each turn the
    /// path was believed to be shorter, down to nothing, and four packets were in flight.
    #[test]
    fn ways_back_that_grow_slowly_and_end_at_once_leave_the_path_as_long_as_it_was() {
        let there = Duration::from_millis(20);
        let mut path = Tabane::new(MTU, Instant::EPOCH, Seed(1).rng("path"));
        for number in 1..24_000_u64 {
            let back = Duration::from_micros(10_000 + number % 6_000);
            acknowledge(&mut path, number, there, back);
        }
        let length = path.model.min_rtt().expect("measured");
        assert!(length >= Duration::from_millis(20 + 10), "{length:?}");
    }

    #[test]
    fn spans_are_shifted_both_ways_and_end_at_nothing() {
        let span = Duration::from_millis(3);
        assert_eq!(shifted(span, 2_000_000), Duration::from_millis(5));
        assert_eq!(shifted(span, -2_000_000), Duration::from_millis(1));
        assert_eq!(shifted(span, i64::MIN), Duration::ZERO);
        assert_eq!(shifted(Duration::MAX, 1), Duration::MAX);
    }
}
