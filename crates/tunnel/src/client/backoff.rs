//! Waits that double, so that a relay that is dead is not knocked at by all its clients all the
//! time, and one that restarts is found within a second.

use tabane_base::Duration;

/// The first wait: a restarting relay may be back already.
const FIRST: Duration = Duration::from_millis(100);
/// The longest while nothing answers.
pub(super) const LONGEST: Duration = Duration::from_secs(5);
/// The longest while the relay says that it is going down: another is about to take its place.
pub(super) const LONGEST_RESTARTING: Duration = Duration::from_secs(1);

/// How long to wait before the next try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// The wait before the next try; the one after it is twice as long, `longest` at the most.
    pub(super) fn next(&mut self, longest: Duration) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(longest);
        wait
    }
}
