//! Days, as far as budgets need them: the Gregorian calendar in UTC.

use std::fmt;

/// A day, counted from 1970-01-01 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixDay(pub i64);

/// Year, month and day of the month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) year: i64,
    pub(crate) month: u8,
    pub(crate) day: u8,
}

impl UnixDay {
    /// The day that a time in seconds since 1970-01-01 UTC falls on.
    #[must_use]
    pub const fn at(unix_seconds: i64) -> Self {
        Self(unix_seconds.div_euclid(86_400))
    }

    /// The same in years, months and days. Months are counted from March, so that the leap day
    /// comes last, and years in eras of 400, after which the calendar repeats.
    pub(crate) const fn date(self) -> Date {
        let days = self.0.saturating_add(719_468);
        let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = (of_year - (153 * from_march + 2) / 5 + 1) as u8;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        } as u8;
        let year = year_of_era + era * 400 + (month <= 2) as i64;
        Date { year, month, day }
    }

    /// The last `day` of a month at or before this one; months without it begin on their last day.
    pub(crate) fn month_from(self, day: u8) -> Self {
        let mut first = self;
        // A month has at most 31 days, so this ends.
        while !first.begins_month(day) {
            first = Self(first.0 - 1);
        }
        first
    }

    fn begins_month(self, day: u8) -> bool {
        let date = self.date();
        let is_last = Self(self.0 + 1).date().day == 1;
        date.day == day || is_last && date.day < day
    }
}

impl fmt::Display for UnixDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Date { year, month, day } = self.date();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (951_782_400, "2000-02-29"),
            (1_795_219_200, "2026-11-21"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(UnixDay::at(seconds).to_string(), date);
        }
        // Every day follows the one before.
        let mut before = UnixDay(-800_000).date();
        for day in -799_999..800_000 {
            let date = UnixDay(day).date();
            let next_day = date.day == before.day + 1 && date.month == before.month;
            assert!(next_day || date.day == 1 && before.day >= 28, "{day}");
            before = date;
        }
    }

    #[test]
    fn months_may_begin_on_any_day() {
        let of = |text: &str| {
            let mut days = (20_000..22_000).map(UnixDay);
            days.find(|day| day.to_string() == text).expect("in range")
        };
        for (today, from, first) in [
            ("2026-11-21", 1, "2026-11-01"),
            ("2026-11-21", 21, "2026-11-21"),
            ("2026-11-21", 22, "2026-10-22"),
            ("2027-03-01", 31, "2027-02-28"),
            ("2028-03-30", 30, "2028-03-30"),
            ("2028-03-01", 30, "2028-02-29"),
        ] {
            assert_eq!(
                of(today).month_from(from).to_string(),
                first,
                "{today} {from}"
            );
        }
    }
}
