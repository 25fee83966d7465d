//! The time of day, as files and messages have it: they outlive the process, which the clocks that
//! measure spans do not. It may jump, so nothing waits by it.

use std::time::{SystemTime, UNIX_EPOCH};

use tabane_policy::UnixDay;

/// Seconds since 1970 (UTC); 0 on a clock that stands before.
pub fn unix_seconds() -> u64 {
    since_1970(SystemTime::now()).as_secs()
}

/// The day it is (UTC).
pub fn today() -> UnixDay {
    day(SystemTime::now())
}

/// The day (UTC) that `at` is in.
pub fn day(at: SystemTime) -> UnixDay {
    UnixDay::at(i64::try_from(since_1970(at).as_secs()).unwrap_or(i64::MAX))
}

fn since_1970(at: SystemTime) -> std::time::Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}
