//! Round-trip times of a path: smoothed, minimal, and how much they vary.

use tabane_base::{Duration, Instant, scale};

use super::sliding::SlidingWindow;

/// Weight of a new difference in the jitter: one sixteenth, as in RFC 3550 §6.4.1.
const JITTER_SHIFT: u32 = 4;

/// Estimates of one path's round trip.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrip {
    alpha: f64,
    latest: Option<Duration>,
    smoothed: Duration,
    jitter: Duration,
    least: SlidingWindow<Option<Duration>>,
}

impl RoundTrip {
    /// `alpha` weighs the past in eq. 3; the minimum is kept over `window`.
    pub(crate) fn new(alpha: f64, window: Duration) -> Self {
        Self {
            alpha,
            latest: None,
            smoothed: Duration::ZERO,
            jitter: Duration::ZERO,
            least: SlidingWindow::new(window),
        }
    }

    /// A round trip took `latest`; since the sample before this, the least was `least`.
    pub(crate) fn on_sample(&mut self, now: Instant, latest: Duration, least: Duration) {
        match self.latest {
            None => self.smoothed = latest,
            Some(before) => {
                // SBAM eq. 3: SRTT = α·SRTT + (1−α)·RTT. RFC 9002 §5.3 has the same with α = 7/8.
                let past = scale(self.smoothed, self.alpha);
                self.smoothed = past.saturating_add(scale(latest, 1.0 - self.alpha));
                let difference = latest.abs_diff(before);
                let kept = self.jitter - self.jitter / (1 << JITTER_SHIFT);
                self.jitter = kept.saturating_add(difference / (1 << JITTER_SHIFT));
            }
        }
        self.latest = Some(latest);
        let slot = self.least.slot(now);
        *slot = Some(slot.map_or(least, |known| known.min(least)).min(latest));
    }

    pub(crate) const fn latest(&self) -> Option<Duration> {
        self.latest
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.latest.map(|_| self.smoothed)
    }

    /// Mean difference of successive samples.
    pub(crate) const fn jitter(&self) -> Duration {
        self.jitter
    }

    /// The least of the window; of a path that was not measured for longer, the last there was.
    pub(crate) fn least(&self, now: Instant) -> Option<Duration> {
        let least = self.least.values(now).flatten().min();
        least.or_else(|| self.smoothed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn smoothing_is_equation_three() {
        let mut rtt = RoundTrip::new(0.9, MS(10_000));
        let at = Instant::from_millis;
        rtt.on_sample(at(0), MS(100), MS(100));
        rtt.on_sample(at(10), MS(200), MS(200));
        let smoothed = rtt.smoothed().unwrap().as_secs_f64();
        assert!((smoothed - 0.110).abs() < 1e-9, "{smoothed}");
        rtt.on_sample(at(20), MS(10), MS(10));
        let smoothed = rtt.smoothed().unwrap().as_secs_f64();
        assert!((smoothed - (0.9 * 0.110 + 0.1 * 0.010)).abs() < 1e-9);
    }

    #[test]
    fn the_minimum_forgets_and_jitter_is_of_neighbours() {
        let mut rtt = RoundTrip::new(0.9, MS(10_000));
        rtt.on_sample(Instant::EPOCH, MS(20), MS(20));
        for second in 1..=20 {
            let now = Instant::from_millis(second * 1_000);
            rtt.on_sample(now, MS(50), MS(45));
            let expected = if second <= 10 { 20 } else { 45 };
            assert_eq!(rtt.least(now), Some(MS(expected)), "after {second} s");
        }
        assert!(rtt.jitter() < MS(1), "{:?}", rtt.jitter());
        for i in 0..200 {
            let odd = if i % 2 == 0 { 48 } else { 52 };
            rtt.on_sample(Instant::from_millis(20_000 + i), MS(odd), MS(odd));
        }
        assert!(rtt.jitter().abs_diff(MS(4)) < Duration::from_micros(10));
    }
}
