//! Rates, volumes and spans of time as users write them: `50Mbit/s`, `100GB/month`, `24h`.
//!
//! Kilo is 1,000. What is read prints back as it would be written, in the largest unit that is
//! exact.

use std::fmt;
use std::str::FromStr;

use tabane_base::{Bytes, Duration, Rate};

/// Below this a stream waits longer than a second for each packet.
const LEAST_RATE: u64 = 16_000;

/// A rate, in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateText(pub Rate);

/// How much may pass in a day or a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volume {
    /// How much.
    pub bytes: Bytes,
    /// In which time.
    pub per: Period,
}

/// When counting begins anew, by the calendar in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// From midnight to midnight.
    Day,
    /// From the first to the last.
    Month,
}

/// A span of time; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime(pub Option<Duration>);

/// A limit to set, or `none` to lift it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting<T>(pub Option<T>);

const BITS: [(&str, u64); 4] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];
const BYTES: [(&str, u64); 5] = [
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("b", 1),
];
const SECONDS: [(&str, u64); 5] = [
    ("d", 86_400),
    ("h", 3_600),
    ("min", 60),
    ("m", 60),
    ("s", 1),
];

/// `text`, in lower case, as a number times the unit that it ends in; whole, and not zero.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim_end(), *unit)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_cut = whole.is_empty() || (number.contains('.') && fraction.is_empty());
    if is_cut || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let value = format!("{whole}{fraction}")
        .parse::<u128>()
        .ok()?
        .checked_mul(unit.into())?;
    let value = (value % divisor == 0).then(|| u64::try_from(value / divisor).ok())?;
    value.filter(|value| *value > 0)
}

/// The largest unit that `value` is a whole number of.
fn exact<'a>(value: u64, units: &[(&'a str, u64)]) -> (u64, &'a str) {
    let fits = units.iter().find(|(_, unit)| value.is_multiple_of(*unit));
    fits.map_or((value, ""), |(name, unit)| (value / unit, name))
}

impl FromStr for RateText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let bare = lower.strip_suffix("/s").unwrap_or(&lower);
        scaled(bare, &BITS)
            .filter(|bps| *bps >= LEAST_RATE)
            .map(|bps| Self(Rate::from_bps(bps)))
            .ok_or_else(|| {
                format!("'{text}' is no rate; write it like 50Mbit/s, at least 16kbit/s")
            })
    }
}

impl fmt::Display for RateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = exact(self.0.as_bps(), &BITS);
        let unit = match unit {
            "gbit" => "Gbit",
            "mbit" => "Mbit",
            unit => unit,
        };
        write!(f, "{number}{unit}/s")
    }
}

impl FromStr for Volume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let lower = text.to_ascii_lowercase();
            let (bytes, per) = lower.split_once('/')?;
            let per = match per {
                "day" => Period::Day,
                "month" => Period::Month,
                _ => return None,
            };
            let bytes = Bytes::new(scaled(bytes, &BYTES)?);
            Some(Self { bytes, per })
        };
        parse()
            .ok_or_else(|| format!("'{text}' is no volume; write it like 100GB/month or 2.5GB/day"))
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", bytes_text(self.bytes), self.per)
    }
}

/// `100GB`, exactly.
pub fn bytes_text(bytes: Bytes) -> String {
    let (number, unit) = exact(bytes.get(), &BYTES);
    let unit = match unit {
        "kb" => "kB".to_owned(),
        unit => unit.to_ascii_uppercase(),
    };
    format!("{number}{unit}")
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "day",
            Self::Month => "month",
        })
    }
}

impl Period {
    /// The name of the period that a moment is in: `2026-11` or `2026-11-21`. Later ones of a kind
    /// sort later.
    pub fn name_at(self, unix_seconds: u64) -> String {
        let (year, month, day) = civil(unix_seconds / 86_400);
        match self {
            Self::Day => format!("{year:04}-{month:02}-{day:02}"),
            Self::Month => format!("{year:04}-{month:02}"),
        }
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years begin in
/// March here, so that leap days come last.
fn civil(days: u64) -> (u64, u64, u64) {
    /// Days from 0000-03-01 to 1970-01-01, and in 400 years.
    const EPOCH: u64 = 719_468;
    const ERA: u64 = 146_097;
    let days = days.saturating_add(EPOCH);
    let (era, day_of_era) = (days / ERA, days % ERA);
    let leap_days = day_of_era / 1_460 + day_of_era / 146_096;
    let year_of_era = (day_of_era + day_of_era / 36_524 - leap_days) / 365;
    let first_day = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
    let day_of_year = day_of_era - first_day;
    // Months from March on have 31, 30, 31, 30, 31, 31, … days: 153 in five.
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

impl FromStr for Lifetime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        scaled(&text.to_ascii_lowercase(), &SECONDS)
            .map(|seconds| Self(Some(Duration::from_secs(seconds))))
            .ok_or_else(|| {
                format!("'{text}' is no span of time; write it like 90s, 30min, 1h or 7d")
            })
    }
}

impl<T: FromStr> FromStr for Setting<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text {
            "none" => Ok(Self(None)),
            text => text.parse().map(Some).map(Self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_print_as_they_are_read() {
        for text in ["50Mbit/s", "1Gbit/s", "2500kbit/s", "16001bit/s"] {
            assert_eq!(text.parse::<RateText>().unwrap().to_string(), text);
        }
        for text in [
            "100GB/month",
            "2500MB/day",
            "1TB/month",
            "999B/day",
            "7kB/day",
        ] {
            assert_eq!(text.parse::<Volume>().unwrap().to_string(), text);
        }
        assert_eq!("50mbit".parse(), "50Mbit/s".parse::<RateText>());
        assert_eq!("2.5gb/day".parse(), "2500MB/day".parse::<Volume>());
        assert_eq!(
            "90min".parse(),
            Ok(Lifetime(Some(Duration::from_secs(5_400))))
        );
        assert_eq!("never".parse(), Ok(Lifetime(None)));
        assert_eq!("none".parse::<Setting<RateText>>(), Ok(Setting(None)));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", "50", "0Mbit/s", "1kbit/s", "-1Mbit", "1.Mbit", "fast", "50MB/s",
        ] {
            assert!(text.parse::<RateText>().is_err(), "{text}");
        }
        for text in [
            "100GB",
            "100GB/week",
            "0B/day",
            "/day",
            "99999999TB/day",
            "0.5B/day",
        ] {
            assert!(text.parse::<Volume>().is_err(), "{text}");
        }
        for text in ["", "1", "0s", "-1h", "1w", "Never"] {
            assert!(text.parse::<Lifetime>().is_err(), "{text}");
        }
    }

    #[test]
    fn periods_follow_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_761_599, "2026-12-31"),
            (1_798_761_600, "2027-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(Period::Day.name_at(seconds), day);
            assert_eq!(Period::Month.name_at(seconds), day[..7]);
        }
        assert!(
            Period::Day.name_at(u64::MAX) > Period::Day.name_at(0),
            "no overflow"
        );
    }
}
