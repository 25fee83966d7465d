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

    /// Reads a day as it is displayed, "2026-11-21".
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '-').map(|part| part.parse::<u16>().ok());
        let (year, month, of_month) = (parts.next()??, parts.next()??, parts.next()??);
        let (month, of_month) = (i64::from(month), i64::from(of_month));
        // The reverse of `date`, which shows whether there is such a day.
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + of_month - 1;
        let year = i64::from(year) - i64::from(month <= 2);
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        Some(Self(days - 719_468)).filter(|day| day.to_string() == text)
    }

    /// The last day at or after this one before a month from `day` on begins.
    pub(crate) fn month_end(self, day: u8) -> Self {
        let mut next = Self(self.0 + 1);
        // As above.
        while !next.begins_month(day) {
            next = Self(next.0 + 1);
        }
        Self(next.0 - 1)
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
            assert_eq!(UnixDay::parse(date), Some(UnixDay::at(seconds)));
        }
        for text in [
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-1-01",
            "2026-01",
            "x",
            "",
        ] {
            assert_eq!(UnixDay::parse(text), None, "{text}");
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
            let next = UnixDay(of(today).month_end(from).0 + 1);
            assert!(next > of(today), "{today} {from}");
            assert_eq!(UnixDay(next.0 - 1).month_from(from).to_string(), first);
            assert_eq!(next.month_from(from), next, "{today} {from}");
        }
    }
}
