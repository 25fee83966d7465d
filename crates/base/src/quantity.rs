//! Quantities as people write them: "50mbit", "10ms", "200kB".
//!
//! Read exactly, in whole numbers; a value that its unit cannot hold is refused, not rounded.

use crate::{Bytes, Duration, Rate};

/// Something written as a number with a unit.
pub trait Quantity: Sized {
    /// What an error says was expected.
    const EXPECTED: &'static str;

    /// Reads the whole of `text`; `None` where it is nothing of the kind.
    fn parse(text: &str) -> Option<Self>;
}

impl Quantity for Rate {
    const EXPECTED: &'static str = "a rate such as \"50mbit\" (bit, kbit, mbit, gbit)";
    fn parse(text: &str) -> Option<Self> {
        let units = [
            ("gbit", 1_000_000_000),
            ("mbit", 1_000_000),
            ("kbit", 1_000),
            ("bit", 1),
        ];
        scaled_number(text, &units).map(Self::from_bps)
    }
}

impl Quantity for Duration {
    const EXPECTED: &'static str = "a time such as \"10ms\" (ns, us, ms, s, min)";
    fn parse(text: &str) -> Option<Self> {
        let units = [
            ("ns", 1),
            ("us", 1_000),
            ("ms", 1_000_000),
            ("min", 60_000_000_000),
            ("s", 1_000_000_000),
        ];
        scaled_number(text, &units).map(Self::from_nanos)
    }
}

impl Quantity for Bytes {
    const EXPECTED: &'static str = "a size such as \"200kB\" (B, kB, MB, GB)";
    fn parse(text: &str) -> Option<Self> {
        let units = [
            ("GB", 1_000_000_000),
            ("MB", 1_000_000),
            ("kB", 1_000),
            ("B", 1),
        ];
        scaled_number(text, &units).map(Self::new)
    }
}

/// `text` as a decimal number times the unit it ends in, if that is a whole number.
#[must_use]
pub fn scaled_number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim_end(), *unit)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    if number.contains('.') && fraction.is_empty() {
        return None;
    }
    let divisor = 10_u128.pow(fraction.len() as u32);
    let mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let value = mantissa.checked_mul(u128::from(unit))?;
    (value % divisor == 0)
        .then(|| u64::try_from(value / divisor).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact() {
        assert_eq!(Rate::parse("50mbit"), Some(Rate::from_mbps(50)));
        assert_eq!(Rate::parse("5.5 mbit"), Some(Rate::from_bps(5_500_000)));
        assert_eq!(Rate::parse("64kbit"), Some(Rate::from_bps(64_000)));
        assert_eq!(Duration::parse("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(Duration::parse("2min"), Some(Duration::from_secs(120)));
        assert_eq!(Bytes::parse("200kB"), Some(Bytes::kilo(200)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for text in [
            "", "mbit", "50", "50mbits", "-1mbit", "1.mbit", ".5mbit", "0.5bit", "1e3bit",
        ] {
            assert_eq!(Rate::parse(text), None, "{text}");
        }
        assert_eq!(Rate::parse("99999999999999999999gbit"), None);
    }
}
