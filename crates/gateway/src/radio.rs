//! How the link to the mobile host does for one flow: round trips, and the timers they set.

use tabane_base::{Duration, Instant};

use crate::allowance::STANDING;

/// No timer of ours runs out earlier, however short the round trips: the link delays for a second
/// where it is bad, and what comes late must not be sent twice.
const TIMEOUT_MIN: Duration = Duration::from_millis(1_500);
/// Before the first round trip is known.
const TIMEOUT_INITIAL: Duration = Duration::from_secs(3);
/// A timer that ran out waits twice as long the next time, up to this.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// How long the longest round trip is remembered.
const LONGEST_KEPT: Duration = Duration::from_secs(60);
/// How long all round trips must have been long before that is the link's nature.
const RECENT: Duration = Duration::from_secs(30);

/// What a Linux sender's retransmission timer never falls below.
const SENDER_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// Round trips of one kind (RFC 6298 §2), with their extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
    shortest: Option<Duration>,
    /// The shortest of the last [`RECENT`], in two halves, and when the newer one began.
    recent: [Option<Duration>; 2],
    recent_since: Instant,
    longest: Duration,
    longest_at: Instant,
}

impl RoundTrip {
    pub(crate) fn sample(&mut self, now: Instant, sample: Duration) {
        let least = |before: Option<Duration>| Some(before.map_or(sample, |b| b.min(sample)));
        self.shortest = least(self.shortest);
        if now - self.recent_since > RECENT / 2 {
            (self.recent, self.recent_since) = ([None, self.recent[0]], now);
        }
        self.recent[0] = least(self.recent[0]);
        if sample >= self.longest || now - self.longest_at > LONGEST_KEPT {
            (self.longest, self.longest_at) = (sample, now);
        }
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(sample), sample / 2),
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.shortest
    }

    /// What the link takes when nothing waits in its queue: the shortest, unless all of [`RECENT`]
    /// were longer than any queue of ours makes them.
    pub(crate) fn base(&self) -> Duration {
        let shortest = self.shortest.unwrap_or_default();
        match self.recent {
            [Some(a), Some(b)] if a.min(b) > shortest + STANDING * 5 / 4 => a.min(b),
            _ => shortest,
        }
    }

    /// The longest of the last minute.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Round trips are much longer than they might be: something waits in a queue.
    pub(crate) fn is_long(&self) -> bool {
        let (now, least) = (self.smoothed, self.shortest);
        now.zip(least)
            .is_some_and(|(now, least)| 2 * now > 3 * least)
    }

    /// When a copy is sent again without any sign of its loss: after two round trips at least.
    pub(crate) fn timeout(&self, backoff: u32) -> Duration {
        let base = self.smoothed.map_or(TIMEOUT_INITIAL, |smoothed| {
            (2 * smoothed)
                .max(smoothed + 4 * self.variation)
                .max(self.longest * 3 / 2)
                .max(TIMEOUT_MIN)
        });
        let most = TIMEOUT_MAX.max(2 * self.smoothed.unwrap_or_default());
        base.saturating_mul(1 << backoff.min(8)).min(most)
    }

    /// When the timer of a sender would run out whose round trip is this one and `rest` together.
    pub(crate) fn senders_timeout(&self, rest: &Self) -> Duration {
        let part = |trip: &Self| trip.smoothed.unwrap_or_default() + 4 * trip.variation;
        (part(self) + part(rest)).max(SENDER_TIMEOUT_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_timer_waits_two_round_trips_and_remembers_the_longest() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.timeout(0), TIMEOUT_INITIAL);
        for n in 0..50 {
            trip.sample(Instant::from_millis(n * 100), ms(100));
        }
        assert_eq!(trip.timeout(0), TIMEOUT_MIN);
        assert_eq!(trip.senders_timeout(&RoundTrip::default()), ms(200));
        trip.sample(Instant::from_millis(5_000), ms(2_000));
        for n in 0..50 {
            trip.sample(Instant::from_millis(5_000 + n * 100), ms(100));
        }
        assert_eq!(trip.timeout(0), ms(3_000));
        assert_eq!(trip.timeout(1), ms(6_000));
        assert_eq!(trip.timeout(9), TIMEOUT_MAX);
        trip.sample(Instant::from_millis(70_000), ms(900));
        assert_eq!(trip.timeout(0), TIMEOUT_MIN);
    }

    #[test]
    fn a_link_that_takes_long_for_good_is_taken_at_its_word_but_no_queue_is() {
        let mut trip = RoundTrip::default();
        let sample = |trip: &mut RoundTrip, from: u64, span: Duration| {
            for n in 0..100 {
                trip.sample(Instant::from_millis(from + n * 500), span);
            }
        };
        sample(&mut trip, 0, ms(50));
        sample(&mut trip, 50_000, ms(50) + STANDING);
        assert_eq!(trip.base(), ms(50));
        sample(&mut trip, 100_000, ms(2_000));
        assert_eq!(trip.base(), ms(2_000));
        sample(&mut trip, 150_000, ms(50));
        assert_eq!(trip.base(), ms(50));
    }
}
