//! The rules by which ranges are given to links, by name.

use std::fmt;
use std::str::FromStr;

use tabane_base::{Bytes, Quantity};
use thiserror::Error;

/// How a file is divided among links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// Ours: the best link begins with the whole file; others take parts of about a second as long
    /// as they will have them sooner, and what comes late is asked for again elsewhere.
    #[default]
    Tabane,
    /// Web SHAKE's first procedure (§2.2.2): HEAD tells the length, then an equal part by every
    /// link.
    FirstHead,
    /// Web SHAKE's second (§2.3): the first request is for the first `threshold` bytes and tells
    /// the length; an equal part of the rest by every link.
    FirstPartial {
        /// What the first request asks for.
        threshold: Bytes,
    },
}

/// No rule bears this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no rule called {0:?}: there are tabane, f-h and f-p (f-p:20kB is for a threshold)")]
pub struct UnknownRule(String);

impl Rule {
    /// The threshold that the paper found best.
    pub const THRESHOLD: Bytes = Bytes::kilo(20);
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tabane => f.pad("tabane"),
            Self::FirstHead => f.pad("f-h"),
            Self::FirstPartial { threshold } => f.pad(&format!("f-p:{}B", threshold.get())),
        }
    }
}

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownRule(name.to_owned());
        match name.split_once(':') {
            None if name == "tabane" => Ok(Self::Tabane),
            None if name == "f-h" => Ok(Self::FirstHead),
            None if name == "f-p" => Ok(Self::FirstPartial {
                threshold: Self::THRESHOLD,
            }),
            Some(("f-p", amount)) => {
                let threshold = Bytes::parse(amount).ok_or_else(unknown)?;
                let is_some = threshold > Bytes::ZERO;
                is_some
                    .then_some(Self::FirstPartial { threshold })
                    .ok_or_else(unknown)
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["tabane", "f-h", "f-p", "f-p:10kB"] {
            let rule: Rule = name.parse().unwrap();
            assert_eq!(rule.to_string().parse(), Ok(rule), "{name}");
        }
        for wrong in ["", "f-x", "f-p:", "f-p:0B", "f-h:10kB"] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }
}
