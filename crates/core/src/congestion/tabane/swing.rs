//! How much a path's rate swings, and what is to be kept in flight because of it.
//!
//! A radio link's rate doubles and halves several times a second, sooner than news of it can
//! arrive. A short queue then leaves the link idle at each upswing. Where that is so, and only
//! there, what the path lately carried at best is kept in flight in part, and the target grows.
//!
//! The measure is how far the rate climbs per second, as a logarithm. On steady links, beside
//! others of ours too, it stays below 0.2; on recorded cellular links it is 0.3 to 1.3
//! (median 0.5 to 1.1). A long climb counts as a doubling at most: that is somebody leaving.

use tabane_base::{Duration, Instant, Rate};

/// What is seen fades within this time.
const MEMORY: Duration = Duration::from_secs(4);
/// Climbs of less are noise; more of one climb does not count.
const CLIMB_MIN: f64 = 1.1;
const CLIMB_MAX: f64 = 2.0;
/// Below this, nothing is kept; above it, the more the steeper, up to [`HOLD_MAX`].
const USUAL: f64 = 0.25;
const HOLD_PER_SWING: f64 = 6.0;
/// On wandering links by seed 2.5 made packets wait a third longer for 0.7 % of the rate; 4.0
/// carried no more than that, and 0.8 carried 2 % less.
pub(super) const HOLD_MAX: f64 = 1.2;

/// The swing of one path's rate.
#[derive(Clone, Debug)]
pub(super) struct Swing {
    /// Climbed per second, as a logarithm.
    per_second: f64,
    updated_at: Instant,
    /// The lowest rate since it last fell, the highest since then, and how much of the climb
    /// between them is counted.
    low: Rate,
    high: Rate,
    counted: f64,
}

impl Swing {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            per_second: 0.0,
            updated_at: now,
            low: Rate::ZERO,
            high: Rate::ZERO,
            counted: 0.0,
        }
    }

    /// The rate is known for the first time: having got there was no swing.
    pub(super) fn begin(&mut self, rate: Rate) {
        self.low = rate;
        self.high = rate;
    }

    pub(super) fn update(&mut self, now: Instant, rate: Rate) {
        let memory = MEMORY.as_secs_f64();
        let age = now.since(self.updated_at).as_secs_f64() / memory;
        self.per_second *= (-age).exp();
        self.updated_at = now;
        if rate.scaled(CLIMB_MIN) < self.high {
            self.low = rate;
            self.high = rate;
            self.counted = 0.0;
        }
        self.low = self.low.min(rate);
        self.high = self.high.max(rate);
        let climb = self.high.as_bps() as f64 / self.low.as_bps().max(1) as f64;
        if climb > CLIMB_MIN {
            let climbed = climb.min(CLIMB_MAX).ln();
            self.per_second += (climbed - self.counted).max(0.0) / memory;
            self.counted = self.counted.max(climbed);
        }
    }

    /// How many times the difference between the highest and the present rate is kept in flight.
    pub(super) fn hold(&self) -> f64 {
        ((self.per_second - USUAL) * HOLD_PER_SWING).clamp(0.0, HOLD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hold after rates of so many Mbit/s, 100 ms each.
    fn hold_after(rates: impl Iterator<Item = u64>) -> f64 {
        let mut swing = Swing::new(Instant::EPOCH);
        swing.begin(Rate::from_mbps(10));
        let mut now = Instant::EPOCH;
        for mbps in rates {
            now += Duration::from_millis(100);
            swing.update(now, Rate::from_mbps(mbps));
        }
        swing.hold()
    }

    #[test]
    fn only_what_swings_all_the_time_is_held() {
        assert_eq!(
            hold_after([10, 11, 10, 11].into_iter().cycle().take(100)),
            0.0
        );
        // Shares that change hands once.
        assert_eq!(
            hold_after((1..100).map(|i| if i < 50 { 2 } else { 20 })),
            0.0
        );
        let radio = hold_after([10, 4, 8, 12, 3, 6].into_iter().cycle().take(100));
        assert_eq!(radio, HOLD_MAX);
        let steady_again = [10, 4, 8, 12].into_iter().cycle().take(100);
        assert_eq!(
            hold_after(steady_again.chain(std::iter::repeat_n(10, 200))),
            0.0
        );
    }
}
