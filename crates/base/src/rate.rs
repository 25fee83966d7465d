//! Data rates, in bits per second.

use std::fmt;

use crate::{Bytes, Duration};

/// A data rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Nothing passes.
    pub const ZERO: Self = Self(0);
    /// No limit.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` bits per second.
    #[must_use]
    pub const fn from_bps(n: u64) -> Self {
        Self(n)
    }

    /// `n` million bits per second.
    #[must_use]
    pub const fn from_mbps(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// The rate at which `amount` passes in `span`; `Rate::MAX` for an empty span.
    #[must_use]
    pub fn of(amount: Bytes, span: Duration) -> Self {
        let nanos = span.as_nanos();
        if nanos == 0 {
            return Self::MAX;
        }
        let bps = u128::from(amount.bits()) * 1_000_000_000 / nanos;
        Self(u64::try_from(bps).unwrap_or(u64::MAX))
    }

    /// Bits per second.
    #[must_use]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Million bits per second, for tables.
    #[must_use]
    pub fn as_mbps_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// How long `amount` takes at this rate; `Duration::MAX` at rate zero.
    #[must_use]
    #[inline]
    pub fn time_for(self, amount: Bytes) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = u128::from(amount.bits()) * 1_000_000_000 / u128::from(self.0);
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// How much passes in `span` (bandwidth × delay), rounded down.
    #[must_use]
    pub fn amount_in(self, span: Duration) -> Bytes {
        let bytes = u128::from(self.0)
            .saturating_mul(span.as_nanos())
            .div_euclid(8_000_000_000);
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// This rate × `gain`.
    #[must_use]
    pub fn scaled(self, gain: f64) -> Self {
        Self((self.0 as f64 * gain) as u64)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} kbit/s", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} Mbit/s", self.0 as f64 / 1e6),
            1_000_000_000.. => write!(f, "{:.2} Gbit/s", self.0 as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_packet_at_12_mbit_lasts_a_millisecond() {
        let rate = Rate::from_mbps(12);
        assert_eq!(rate.time_for(Bytes::new(1500)), Duration::from_millis(1));
        assert_eq!(rate.amount_in(Duration::from_millis(1)), Bytes::new(1500));
        assert_eq!(Rate::of(Bytes::new(1500), Duration::from_millis(1)), rate);
    }

    #[test]
    fn extremes_do_not_panic() {
        assert_eq!(Rate::ZERO.time_for(Bytes::MAX), Duration::MAX);
        assert_eq!(Rate::of(Bytes::MAX, Duration::ZERO), Rate::MAX);
        assert!(Rate::MAX.amount_in(Duration::MAX) > Bytes::ZERO);
    }
}
