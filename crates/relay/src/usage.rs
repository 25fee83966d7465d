//! What users have used of their volumes, kept over restarts in `usage.toml`.
//!
//! Only the running relay writes it. The file is replaced whole, so it is never half a file; a
//! crash loses what passed since it was last written. Time going backwards never gives volume back.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tabane_base::Bytes;

use crate::access::{UserEntry, UserName};
use tabane_store::{atomic_file, read_toml};

/// The counters of all users with a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsageCounters {
    #[serde(rename = "user")]
    counters: Vec<Counter>,
}

/// One user's counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counter {
    name: String,
    /// The day or month that is counted.
    period: String,
    bytes: u64,
}

impl UsageCounters {
    /// What `user` has used in the period that `now` (seconds since 1970) is in.
    pub fn of(&self, user: &UserEntry, now: u64) -> Bytes {
        let counter = self.counter(&user.name);
        match counter {
            Some(counter) if !self.is_over(user, now) => Bytes::new(counter.bytes),
            Some(_) | None => Bytes::ZERO,
        }
    }

    /// Whether what is counted for `user` belongs to a day or month before `now`. A clock that was
    /// set back does not begin anew: what was counted stays counted.
    pub fn is_over(&self, user: &UserEntry, now: u64) -> bool {
        match (self.counter(&user.name), user.volume) {
            (Some(counter), Some(volume)) => {
                let period = volume.per.name_at(now);
                counter.period.len() != period.len() || counter.period < period
            }
            _ => false,
        }
    }

    /// Notes what `user` has used by `now`.
    pub fn set(&mut self, user: &UserEntry, bytes: Bytes, now: u64) {
        let Some(volume) = user.volume else {
            return;
        };
        let mut period = volume.per.name_at(now);
        if let Some(counter) = self.counter(&user.name)
            && !self.is_over(user, now)
        {
            period.clone_from(&counter.period);
        }
        let counter = Counter {
            name: user.name.to_string(),
            period,
            bytes: bytes.get(),
        };
        match self
            .counters
            .iter_mut()
            .find(|other| other.name == counter.name)
        {
            Some(other) => *other = counter,
            None => self.counters.push(counter),
        }
    }

    /// Adds what one relay of a fleet has counted; only what is of the latest period counts.
    #[cfg(feature = "fleet")]
    pub(crate) fn add(&mut self, name: &str, period: &str, bytes: Bytes) {
        match self.counters.iter_mut().find(|other| other.name == name) {
            Some(known) if known.period == period => {
                known.bytes = known.bytes.saturating_add(bytes.get());
            }
            Some(known) if known.period.as_str() > period => {}
            known => {
                let counter = Counter {
                    name: name.to_owned(),
                    period: period.to_owned(),
                    bytes: bytes.get(),
                };
                match known {
                    Some(known) => *known = counter,
                    None => self.counters.push(counter),
                }
            }
        }
    }

    /// Forgets users that are no more.
    pub fn retain(&mut self, is_user: impl Fn(&str) -> bool) {
        self.counters.retain(|counter| is_user(&counter.name));
    }

    fn counter(&self, name: &UserName) -> Option<&Counter> {
        let name = name.as_str();
        self.counters.iter().find(|counter| counter.name == name)
    }
}

/// `usage.toml` in a relay's state directory.
#[derive(Debug, Clone)]
pub struct UsageFile {
    path: PathBuf,
}

impl UsageFile {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("usage.toml"),
        }
    }

    /// The counters as they were last written.
    pub fn read(&self) -> Result<UsageCounters> {
        read_toml(&self.path).map(Option::unwrap_or_default)
    }

    pub(crate) fn write(&self, usage: &UsageCounters) -> Result<()> {
        let text = toml::to_string(usage).context("cannot write the counters as TOML")?;
        atomic_file::replace(&self.path, text.as_bytes(), atomic_file::SECRET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_store::Scratch;

    const DAY: u64 = 86_400;

    fn user(volume: &str) -> UserEntry {
        UserEntry {
            volume: Some(volume.parse().unwrap()),
            ..UserEntry::new("ann".parse().unwrap(), 0)
        }
    }

    #[test]
    fn a_new_period_begins_at_nothing_and_an_old_one_does_not_come_back() {
        let scratch = Scratch::make();
        let file = UsageFile::new(scratch.path());
        let ann = user("1GB/day");
        let mut usage = file.read().unwrap();
        assert_eq!(usage.of(&ann, 10 * DAY), Bytes::ZERO);
        usage.set(&ann, Bytes::new(77), 10 * DAY);
        file.write(&usage).unwrap();
        let mut usage = file.read().unwrap();
        assert_eq!(usage.of(&ann, 11 * DAY - 1), Bytes::new(77));
        assert_eq!(usage.of(&ann, 11 * DAY), Bytes::ZERO);
        assert_eq!(
            usage.of(&ann, 9 * DAY),
            Bytes::new(77),
            "the clock was set back"
        );
        assert_eq!(
            usage.of(&user("1GB/month"), 10 * DAY),
            Bytes::ZERO,
            "counted by the day"
        );
        usage.set(&ann, Bytes::new(78), 9 * DAY);
        assert_eq!(
            usage.of(&ann, 10 * DAY),
            Bytes::new(78),
            "and put right again"
        );
        assert_eq!(usage.of(&ann, 11 * DAY), Bytes::ZERO);
        usage.retain(|name| name != "ann");
        assert_eq!(usage, UsageCounters::default());
    }

    #[test]
    fn a_damaged_file_is_named() {
        let scratch = Scratch::make();
        let path = scratch.path().join("usage.toml");
        std::fs::write(&path, "[[user]]\nname = \"ann\"\nperiod = 5\n").unwrap();
        let error = format!("{:#}", UsageFile::new(scratch.path()).read().unwrap_err());
        assert!(error.contains("usage.toml:3"), "{error}");
    }
}
