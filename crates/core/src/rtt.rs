//! Round-trip times of one path (RFC 9002 §5).
//!
//! Owns the latest, smoothed and minimal round-trip time and its variation. The minimum forgets:
//! it is kept over a sliding window, because a route can become longer for good. What the numbers
//! are used for (timers, windows, arrival estimates) is left to others.

use tabane_base::{Duration, Instant};

/// The round-trip time assumed before anything is measured, for the first probe timeout. RFC 9002
/// §6.2.2 says 333 ms; a path of ours opens beside others, where a repeated probe costs little
/// and a second of silence is felt.
pub(crate) const INITIAL_RTT: Duration = Duration::from_millis(100);

/// RFC 9002 §6.1.2: the granularity assumed of the sender's timers.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// How long a minimal round-trip time is believed without being seen again.
pub(crate) const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);

/// Estimates of a path's round-trip time.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    initial: Duration,
    latest: Duration,
    /// `None` until the first sample.
    smoothed: Option<Duration>,
    variation: Duration,
    min: WindowedMin<Duration>,
    doubted: Option<Doubted>,
}

/// What doubtful samples have changed, until one bears them out or not.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    /// As it was before them.
    smoothed: Option<Duration>,
    /// As it was before them.
    variation: Duration,
    longest: Duration,
}

impl Default for RttEstimator {
    fn default() -> Self {
        Self::new(INITIAL_RTT)
    }
}

impl RttEstimator {
    /// Nothing measured yet; `initial` is assumed until then.
    #[must_use]
    pub(crate) fn new(initial: Duration) -> Self {
        Self {
            initial,
            latest: initial,
            smoothed: None,
            variation: initial / 2,
            min: WindowedMin::default(),
            doubted: None,
        }
    }

    /// Takes a sample: the time from sending a packet to its acknowledgement, of which the peer
    /// says it withheld the acknowledgement for `ack_delay` (already capped by the caller to what
    /// the peer promised).
    pub(crate) fn update(&mut self, now: Instant, sample: Duration, ack_delay: Duration) {
        self.settle_doubt(sample);
        self.doubted = None;
        self.take(now, sample, ack_delay);
    }

    /// The same of a packet that may have waited for a peer that stood still, or for a link that
    /// was not there: once a sample is less than half as long, it counts for nothing but the
    /// minimum.
    pub(crate) fn update_doubtful(&mut self, now: Instant, sample: Duration, ack_delay: Duration) {
        self.settle_doubt(sample);
        let doubted = self.doubted.get_or_insert(Doubted {
            smoothed: self.smoothed,
            variation: self.variation,
            longest: Duration::ZERO,
        });
        doubted.longest = doubted.longest.max(sample);
        self.take(now, sample, ack_delay);
    }

    fn settle_doubt(&mut self, sample: Duration) {
        if let Some(doubted) = self.doubted.take_if(|doubted| sample < doubted.longest / 2) {
            (self.smoothed, self.variation) = (doubted.smoothed, doubted.variation);
        }
    }

    fn take(&mut self, now: Instant, sample: Duration, ack_delay: Duration) {
        self.latest = sample;
        self.min.update(now, sample);
        // RFC 9002 §5.3: never below the minimum, lest a lying delay make the path look shorter.
        let adjusted = if sample >= self.min() + ack_delay {
            sample - ack_delay
        } else {
            sample
        };
        match self.smoothed {
            None => {
                self.smoothed = Some(adjusted);
                self.variation = adjusted / 2;
            }
            Some(smoothed) => {
                let deviation = smoothed.abs_diff(adjusted);
                self.variation = (self.variation * 3 + deviation) / 4;
                self.smoothed = Some((smoothed * 7 + adjusted) / 8);
            }
        }
    }

    /// Forgets everything: the path leads elsewhere.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.initial);
    }

    /// Whether anything has been measured.
    #[must_use]
    pub(crate) fn is_measured(&self) -> bool {
        self.smoothed.is_some()
    }

    /// The latest sample, or the initial assumption.
    #[must_use]
    pub(crate) fn latest(&self) -> Duration {
        self.latest
    }

    /// The smoothed round-trip time without the peer's delays, or the initial assumption.
    #[must_use]
    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(self.initial)
    }

    /// Mean deviation of the samples.
    #[must_use]
    pub(crate) fn variation(&self) -> Duration {
        self.variation
    }

    /// The smallest sample of the last [`MIN_RTT_WINDOW`], or the initial assumption.
    #[must_use]
    pub(crate) fn min(&self) -> Duration {
        self.min.get().unwrap_or(self.initial)
    }

    /// The probe timeout before back-off and without the peer's largest delay (RFC 9002 §6.2.1).
    #[must_use]
    pub(crate) fn pto_base(&self) -> Duration {
        self.smoothed() + (self.variation * 4).max(GRANULARITY)
    }
}

/// The minimum over [`MIN_RTT_WINDOW`], in constant space: the best sample and the two that would
/// follow it, each from a later part of the window (Kathleen Nichols' filter).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowedMin<T> {
    /// Best, second and third best, in order of time; `None` before the first sample.
    best: Option<[(Instant, T); 3]>,
}

impl<T: Copy + Ord> WindowedMin<T> {
    pub(crate) fn get(&self) -> Option<T> {
        self.best.map(|best| best[0].1)
    }

    pub(crate) fn update(&mut self, now: Instant, sample: T) {
        let new = (now, sample);
        let Some(best) = &mut self.best else {
            self.best = Some([new; 3]);
            return;
        };
        let third_is_old = now.since(best[2].0) > MIN_RTT_WINDOW;
        if sample <= best[0].1 || third_is_old {
            *best = [new; 3];
            return;
        }
        if sample <= best[1].1 {
            best[1] = new;
            best[2] = new;
        } else if sample <= best[2].1 {
            best[2] = new;
        }
        let age = now.since(best[0].0);
        if age > MIN_RTT_WINDOW {
            *best = [best[1], best[2], new];
            if now.since(best[0].0) > MIN_RTT_WINDOW {
                *best = [best[1], best[2], new];
            }
        } else if best[1].0 == best[0].0 && age > MIN_RTT_WINDOW / 4 {
            // A quarter of the window without a runner-up: take one from the present quarter.
            best[1] = new;
            best[2] = new;
        } else if best[2].0 == best[1].0 && age > MIN_RTT_WINDOW / 2 {
            best[2] = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_first_sample_sets_everything() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.pto_base(), ms(300));
        assert!(!rtt.is_measured());
        rtt.update(Instant::from_millis(1), ms(40), ms(5));
        assert_eq!(
            (rtt.smoothed(), rtt.variation(), rtt.min()),
            (ms(40), ms(20), ms(40))
        );
        rtt.update(Instant::from_millis(2), ms(53), ms(5));
        assert_eq!(rtt.smoothed(), ms(41), "the peer's delay is taken off");
        assert_eq!(rtt.latest(), ms(53));
        rtt.update(Instant::from_millis(3), ms(42), ms(5));
        assert!(
            rtt.smoothed() > ms(41),
            "taken off only down to the minimum"
        );
        rtt.reset();
        assert!(!rtt.is_measured());
    }

    #[test]
    fn doubtful_samples_count_only_if_the_next_one_bears_them_out() {
        let of = |samples: &[u64], doubtful: std::ops::Range<usize>| {
            let mut rtt = RttEstimator::default();
            for (index, sample) in samples.iter().enumerate() {
                let (now, sample) = (Instant::from_millis(1), ms(*sample));
                match doubtful.contains(&index) {
                    true => rtt.update_doubtful(now, sample, Duration::ZERO),
                    false => rtt.update(now, sample, Duration::ZERO),
                }
            }
            (rtt.smoothed(), rtt.variation())
        };
        assert_eq!(of(&[900, 20, 22], 0..1), of(&[20, 22], 0..0), "a new path");
        assert_eq!(
            of(&[20, 22, 900, 300, 23, 21], 2..5),
            of(&[20, 22, 23, 21], 0..0)
        );
        let longer = [20, 600, 590];
        assert_eq!(of(&longer, 1..2), of(&longer, 0..0), "longer now");
    }

    #[test]
    fn the_minimum_is_that_of_the_window() {
        // Against the plain definition, with samples that rise, fall and wobble.
        let mut rtt = RttEstimator::default();
        let mut all: Vec<(Instant, Duration)> = Vec::new();
        for step in 0..4_000_u64 {
            let now = Instant::from_millis(step * 20);
            let slow = if (1_000..2_500).contains(&step) {
                60
            } else {
                20
            };
            let sample = ms(slow + step * 7 % 13);
            all.push((now, sample));
            rtt.update(now, sample, Duration::ZERO);
            let exact = |window: Duration| {
                let recent = all.iter().filter(|(at, _)| now.since(*at) <= window);
                recent
                    .map(|(_, sample)| *sample)
                    .min()
                    .expect("the sample itself")
            };
            assert!(rtt.min() >= exact(MIN_RTT_WINDOW), "at {now}");
            // The filter may forget a quarter of its window too early, never too late.
            assert!(rtt.min() <= exact(MIN_RTT_WINDOW / 2), "at {now}");
        }
    }

    #[test]
    fn after_a_long_silence_only_the_present_counts() {
        let mut rtt = RttEstimator::default();
        rtt.update(Instant::from_millis(0), ms(10), Duration::ZERO);
        rtt.update(Instant::from_millis(60_000), ms(90), Duration::ZERO);
        assert_eq!(rtt.min(), ms(90));
    }
}
