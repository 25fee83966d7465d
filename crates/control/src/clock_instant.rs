//! When something was, in a form that stays true when the wall clock is set.
//!
//! Machines without a clock of their own boot in a year of the past and are set right later. What
//! was noted by the wall clock before that would be years old from then on.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A difference from which on the wall clock was set. Less is two clocks read one after the other,
/// and one that is steered; all that is told by the offset goes with it, so ages stay exact.
const SET_MS: u64 = 1_000;

/// The wall clock's offset, as this process tells times.
static OFFSET: Offset = Offset(AtomicI64::new(0));

/// A point in time: milliseconds since boot, suspension included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockInstant(i64);

impl ClockInstant {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self(now.tv_sec * 1_000 + now.tv_nsec / 1_000_000)
    }

    /// Milliseconds from 1970 (UTC) to this, by the wall clock as it is now; 0 for what was before.
    /// Two such times are as far apart as the moments were, unless the clock was set in between.
    #[must_use]
    pub fn unix_millis(self) -> u64 {
        let wall = i64::try_from(unix_millis(SystemTime::now())).unwrap_or(i64::MAX);
        OFFSET.follow(wall.saturating_sub(Self::now().0));
        OFFSET.unix_millis(self)
    }
}

/// How far the wall clock is ahead of the time since boot, in milliseconds.
struct Offset(AtomicI64);

impl Offset {
    /// It is `offset_ms` now.
    fn follow(&self, offset_ms: i64) {
        if self.0.load(Ordering::Relaxed).abs_diff(offset_ms) > SET_MS {
            self.0.store(offset_ms, Ordering::Relaxed);
        }
    }

    fn unix_millis(&self, at: ClockInstant) -> u64 {
        let wall = at.0.saturating_add(self.0.load(Ordering::Relaxed));
        u64::try_from(wall).unwrap_or(0)
    }
}

/// Milliseconds from 1970 (UTC) to `at`; 0 for what was before.
fn unix_millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    #[test]
    fn what_was_before_the_clock_was_set_keeps_its_age() {
        let offset = Offset(AtomicI64::new(0));
        let (started, now) = (ClockInstant(20_000), ClockInstant(80_000));
        let age = || offset.unix_millis(now) - offset.unix_millis(started);
        offset.follow(1_000 * DAY_MS);
        assert_eq!(offset.unix_millis(started), 86_400_020_000);
        assert_eq!(age(), 60_000);
        offset.follow(1_046 * DAY_MS);
        assert_eq!(offset.unix_millis(started), 1_046 * 86_400_000 + 20_000);
        assert_eq!(age(), 60_000);
        // Back, too; before 1970 there is nothing.
        offset.follow(2 * DAY_MS);
        assert_eq!(age(), 60_000);
        offset.follow(-DAY_MS);
        assert_eq!(offset.unix_millis(now), 0);
    }

    #[test]
    fn a_moment_has_one_time_while_the_clock_goes_steadily() {
        let offset = Offset(AtomicI64::new(0));
        offset.follow(DAY_MS);
        let told = offset.unix_millis(ClockInstant(1));
        for drift in [1, -1, 700, 0] {
            offset.follow(DAY_MS + drift);
            assert_eq!(offset.unix_millis(ClockInstant(1)), told);
        }
    }

    #[test]
    fn now_is_the_wall_clocks_now() {
        let told = ClockInstant::now().unix_millis();
        assert!(told.abs_diff(unix_millis(SystemTime::now())) <= 2 * SET_MS);
    }
}
