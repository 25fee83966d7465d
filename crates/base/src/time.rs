//! Points in time and spans of time, in nanoseconds, with no clock behind them.
//!
//! Our own `Instant` rather than the standard library's, so that tests start at zero, "never" is a
//! constant and traces can be written down. Nanoseconds, because at 10 Gbit/s a packet lasts
//! 1.2 µs; a `u64` of them lasts 584 years. All arithmetic saturates: the network must not be able
//! to make us panic by way of a timestamp.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A span of time, never negative.
pub type Duration = std::time::Duration;

/// Nanoseconds since an epoch the driver chooses (the start of the simulation or of the process).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The driver's epoch.
    pub const EPOCH: Self = Self(0);
    /// Later than everything: a timer that is not set.
    pub const NEVER: Self = Self(u64::MAX);

    /// `nanos` nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds after the epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `millis` milliseconds after the epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Seconds since the epoch, for plots and logs.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time from `earlier` to `self`; zero where `earlier` is the later one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Signed nanoseconds from `other` to `self`.
    #[must_use]
    pub const fn nanos_from(self, other: Self) -> i64 {
        self.0.wrapping_sub(other.0) as i64
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "{:.6}s", self.as_secs_f64())
    }
}

/// `span` × `factor`, saturating, for gains such as 9/8 or 2.77.
#[must_use]
pub fn scale(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::EPOCH - Duration::from_secs(1), Instant::EPOCH);
        assert_eq!(Instant::NEVER + Duration::from_secs(1), Instant::NEVER);
        assert_eq!(
            Instant::EPOCH.since(Instant::from_millis(1)),
            Duration::ZERO
        );
        assert_eq!(
            scale(Duration::from_millis(8), 9.0 / 8.0),
            Duration::from_millis(9)
        );
        assert_eq!(scale(Duration::MAX, 2.0), Duration::MAX);
    }
}
