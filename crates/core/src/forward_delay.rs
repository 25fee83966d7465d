//! One-way delay of a path, as far as it can be known without a common clock.
//!
//! The receiver's time minus ours is the delay plus an unknown offset of the clocks; the offset is
//! the same for all paths of a session, so differences between paths are true (R-M/TCP's OWTT,
//! design/transport.md). Halving the round trip instead held up to 2.6 times more in the
//! resequencer.

use tabane_base::{Duration, Instant};

use crate::rtt::WindowedMin;

/// Weight of a new sample: one eighth, as for the round-trip time (RFC 6298).
const GAIN_SHIFT: u32 = 3;

/// Smoothed forward delay plus clock offset, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ForwardDelay {
    latest: Option<i64>,
    smoothed: Option<i64>,
    least: Option<i64>,
    /// From an arrival at the peer to its acknowledgement here, minus the clocks' offset.
    back: WindowedMin<i64>,
    /// What left before is by clocks as they were.
    since: Instant,
}

impl ForwardDelay {
    /// A packet sent at `sent_at` by our clock arrived at `arrived_at` by the peer's; its round
    /// trip took `rtt`, the shortest takes `shortest`. `false` when one of the clocks has leapt
    /// meanwhile: one-way times lie between nothing and a round trip, so this one cannot be longer
    /// than usual by more than its own, nor shorter than the least by more than the shortest. What
    /// left before a leap was noticed may have arrived before it, too, and says nothing.
    pub(crate) fn on_sample(
        &mut self,
        sent_at: Instant,
        arrived_at: Instant,
        (rtt, shortest): (Duration, Duration),
    ) -> bool {
        if sent_at < self.since {
            return true;
        }
        let sample = arrived_at.nanos_from(sent_at);
        let above = sample.saturating_sub(self.smoothed.unwrap_or(sample));
        let below = self.least.unwrap_or(sample).saturating_sub(sample);
        if is_longer(above, rtt) || is_longer(below, shortest) {
            return false;
        }
        self.latest = Some(sample);
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
        self.smoothed = Some(self.smoothed.map_or(sample, |smoothed| {
            smoothed.saturating_add(sample.saturating_sub(smoothed) >> GAIN_SHIFT)
        }));
        true
    }

    /// The path came back or moved: its past says nothing.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            since: self.since,
            ..Self::default()
        };
    }

    /// One of the clocks has leapt before `now`: one-way times begin anew with what leaves now.
    pub(crate) fn on_clock_leap(&mut self, now: Instant) {
        self.reset();
        self.since = now;
    }

    /// When an acknowledgement of what arrived at `arrived_at` by the peer's clock would have come,
    /// had neither the peer nor a queue on the way back held it.
    pub(crate) fn unheld(&mut self, now: Instant, arrived_at: Instant) -> Instant {
        let back = now.nanos_from(arrived_at);
        self.back.update(now, back);
        let held = back.saturating_sub(self.back.get().unwrap_or(back));
        now - Duration::from_nanos(held.unsigned_abs())
    }

    /// What is left of a round trip of `rtt` for the way back: as nanoseconds, minus the clocks'
    /// offset.
    pub(crate) fn reverse(&self, rtt: Duration) -> Option<i64> {
        let rtt = i64::try_from(rtt.as_nanos()).unwrap_or(i64::MAX);
        self.smoothed.map(|forward| rtt.saturating_sub(forward))
    }

    /// As [`Self::reverse`], of the latest packet alone, whose round trip took `rtt`.
    pub(crate) fn way_back(&self, rtt: Duration) -> Option<i64> {
        let rtt = i64::try_from(rtt.as_nanos()).unwrap_or(i64::MAX);
        self.latest.map(|forward| rtt.saturating_sub(forward))
    }

    /// The latest forward time plus `reverse`, as [`Self::reverse`] gives it or a mean of such:
    /// the clocks' offset cancels (R-M/TCP, eq. 1). And the least forward time with the same.
    pub(crate) fn trip(&self, reverse: i64) -> Option<Trip> {
        let with = |forward: i64| {
            let nanos = forward.saturating_add(reverse);
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
        };
        Some(Trip {
            latest: with(self.latest?),
            least: with(self.least?),
        })
    }

    /// Nanoseconds, comparable between paths of one session only.
    pub(crate) const fn relative(&self) -> Option<i64> {
        self.smoothed
    }
}

/// Round trips of R-M/TCP, by the way back as it is now: what they differ by is of the way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trip {
    pub(crate) latest: Duration,
    pub(crate) least: Duration,
}

fn is_longer(nanos: i64, span: Duration) -> bool {
    nanos > 0 && Duration::from_nanos(nanos.unsigned_abs()) > span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_held_an_acknowledgement_is_known_by_the_quickest() {
        let mut path = ForwardDelay::default();
        // The peer's clock is 1 s ahead, ways back take 20, 70 and 25 ms.
        for (arrived, back) in [(100, 20), (110, 70), (190, 25)] {
            let came = Instant::from_millis(arrived + back);
            let unheld = path.unheld(came, Instant::from_millis(arrived + 1_000));
            assert_eq!(unheld, Instant::from_millis(arrived + 20));
        }
    }

    #[test]
    fn clocks_need_not_agree_for_the_trip_over_this_path_and_the_mean_way_back() {
        let millis = Duration::from_millis;
        // The peer's clock is 1 s ahead. Ways there take 10 and 30 ms, ways back 20 and 50 ms.
        let mut paths = [ForwardDelay::default(); 2];
        let arrivals = [1_010, 1_030].map(Instant::from_millis);
        for (path, arrived_at) in paths.iter_mut().zip(arrivals) {
            assert_eq!(path.trip(0), None);
            assert!(path.on_sample(Instant::EPOCH, arrived_at, (millis(80), millis(30))));
        }
        let back = [paths[0].reverse(millis(30)), paths[1].reverse(millis(80))];
        let mean = back.into_iter().flatten().sum::<i64>() / 2;
        let trip = |latest, least| Some(Trip { latest, least });
        let [near, far] = [millis(10 + 35), millis(30 + 35)];
        assert_eq!(paths[0].trip(mean), trip(near, near));
        assert_eq!(paths[1].trip(mean), trip(far, far));
        assert_eq!(
            paths[0].trip(i64::MIN),
            trip(Duration::ZERO, Duration::ZERO)
        );
        // A queue of 5 ms there; another one on the way back is none.
        let late = Instant::from_millis(1_015);
        assert!(paths[0].on_sample(Instant::EPOCH, late, (millis(80), millis(30))));
        let later = paths[0].trip(mean + 20_000_000);
        assert_eq!(later, trip(near + millis(25), near + millis(20)));
    }

    #[test]
    fn what_no_way_can_differ_by_is_a_leap_of_a_clock_and_begins_anew() {
        let rtt = (Duration::from_millis(80), Duration::from_millis(40));
        let at = |millis: u64| Instant::from_millis(10_000 + millis);
        for leapt in [at(500), Instant::from_millis(9_900), Instant::NEVER] {
            let mut path = ForwardDelay::default();
            assert!(path.on_sample(at(0), at(10), rtt));
            assert!(path.on_sample(at(0), at(90), rtt), "a full queue");
            assert!(!path.on_sample(at(0), leapt, rtt), "{leapt}");
            path.on_clock_leap(at(100));
            assert!(path.on_sample(at(99), at(109), rtt), "by the old clock");
            assert_eq!(path.relative(), None);
            assert!(path.on_sample(at(100), leapt, rtt));
            assert_eq!(path.relative(), Some(leapt.nanos_from(at(100))));
        }
    }
}
