//! A part of the day, such as 22:00-06:00.

use std::fmt;

const DAY_MINUTES: u16 = 24 * 60;

/// From one minute of the day up to another, by the clock on the wall; past midnight where the
/// second is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u16,
    to: u16,
}

impl Hours {
    /// Reads `22:00-06:00`; `24:00` is the end of the day. `None` where it is no part of the day,
    /// or none of it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let (from, to) = (minute(from)?, minute(to)?);
        (from != to && from < DAY_MINUTES).then_some(Self { from, to })
    }

    /// Whether the minute that begins so long after midnight is within.
    #[must_use]
    pub const fn contains(self, minute: u16) -> bool {
        if self.from < self.to {
            self.from <= minute && minute < self.to
        } else {
            self.from <= minute || minute < self.to
        }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        let parts = (from / 60, from % 60, to / 60, to % 60);
        let (from_hour, from_minute, to_hour, to_minute) = parts;
        write!(
            f,
            "{from_hour:02}:{from_minute:02}-{to_hour:02}:{to_minute:02}"
        )
    }
}

/// `06:30`, after midnight.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    let digits = |text: &str, most: usize| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && (1..=most).contains(&text.len())).then(|| text.parse::<u16>().ok())?
    };
    let (hour, minute) = (digits(hour, 2)?, digits(minute, 2).filter(|it| *it < 60)?);
    let minutes = hour * 60 + minute;
    (minutes <= DAY_MINUTES).then_some(minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_night_goes_past_midnight() {
        let within = |text: &str, hour: u16, minute: u16| {
            let hours = Hours::parse(text).unwrap();
            hours.contains(hour * 60 + minute)
        };
        assert!(within("22:00-06:00", 23, 59) && within("22:00-06:00", 0, 0));
        assert!(within("22:00-06:00", 22, 0) && !within("22:00-06:00", 6, 0));
        assert!(within("8:30 - 12:00", 8, 30) && !within("8:30-12:00", 8, 29));
        assert!(within("00:00-24:00", 23, 59));
        assert_eq!(
            Hours::parse("8:5-24:00").unwrap().to_string(),
            "08:05-24:00"
        );
        for wrong in [
            "",
            "22-06",
            "22:00",
            "06:00-06:00",
            "25:00-06:00",
            "24:00-06:00",
        ] {
            assert_eq!(Hours::parse(wrong), None, "{wrong}");
        }
        for wrong in ["22:60-06:00", "22:000-06:00", "+2:00-06:00", "22:00-24:01"] {
            assert_eq!(Hours::parse(wrong), None, "{wrong}");
        }
    }
}
