//! How much data a link may carry in a day or a month.

use std::fmt;

use tabane_base::{Bytes, Quantity};

use crate::calendar::UnixDay;

/// After which time a budget begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// At midnight UTC.
    Day,
    /// On this day of each month, 1 to 31, or on its last where it is shorter.
    Month {
        /// The day.
        from: u8,
    },
}

impl Period {
    /// When the period that `today` is in began.
    #[must_use]
    pub fn begin(self, today: UnixDay) -> UnixDay {
        match self {
            Self::Day => today,
            Self::Month { from } => today.month_from(from),
        }
    }

    /// When the period after the one that `today` is in begins.
    #[must_use]
    pub fn next(self, today: UnixDay) -> UnixDay {
        let last = match self {
            Self::Day => today,
            Self::Month { from } => today.month_end(from),
        };
        UnixDay(last.0 + 1)
    }
}

/// An amount of data in both directions together, per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How much.
    pub amount: Bytes,
    /// In which time.
    pub period: Period,
}

impl Budget {
    pub(crate) const EXPECTED: &'static str =
        "an amount of data per day or month, such as \"5GB/month\" or \"500MB/day\"";

    /// Reads "5GB/month" or "500MB/day"; months begin on their first day.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (amount, period) = text.split_once('/')?;
        let period = match period.trim() {
            "day" => Period::Day,
            "month" => Period::Month { from: 1 },
            _ => return None,
        };
        Some(Self {
            amount: Bytes::parse(amount.trim())?,
            period,
        })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.period {
            Period::Day => write!(f, "{} per day", self.amount),
            Period::Month { from: 1 } => write!(f, "{} per month", self.amount),
            Period::Month { from } => write!(f, "{} per month from day {from}", self.amount),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_and_nonsense_is_not() {
        let five = Budget {
            amount: Bytes::mega(5_000),
            period: Period::Month { from: 1 },
        };
        assert_eq!(Budget::parse("5GB/month"), Some(five));
        assert_eq!(Budget::parse("5 GB / month"), Some(five));
        assert_eq!(
            Budget::parse("500MB/day").map(|b| b.period),
            Some(Period::Day)
        );
        for text in ["5GB", "5GB/week", "GB/day", "-1GB/day", "5/day", ""] {
            assert_eq!(Budget::parse(text), None, "{text}");
        }
    }
}
