//! Whether the loop was run when it should have been.
//!
//! On a busy machine the kernel lets a thread wait for its turn for tens of milliseconds. What
//! nobody hears meanwhile lies in the sockets, or was never sent: it is no path's silence. Pure:
//! the time is an argument.

use tabane_base::{Duration, Instant};

/// So much later than it should be, the loop was not run: far more than a turn takes, far less than
/// a path is given to answer.
const LATE: Duration = Duration::from_millis(5);

/// Knows when the loop has to be there next.
#[derive(Debug, Default)]
pub(super) struct Attendance {
    /// The next turn is due; none where nothing is waited for.
    due: Option<Instant>,
    began_at: Instant,
}

impl Attendance {
    /// A turn begins; `true` where it should have begun long ago.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.began_at = now;
        self.due.take().is_some_and(|due| is_late(due, now))
    }

    /// The turn's work is done; `true` where it was interrupted for long, so that what it sent may
    /// have left later than it says. The next one is due at this time.
    pub(super) fn end(&mut self, now: Instant, due: Option<Instant>) -> bool {
        self.due = due;
        is_late(self.began_at, now)
    }
}

fn is_late(due: Instant, now: Instant) -> bool {
    now.since(due) > LATE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_who_is_not_there_when_due_or_stays_away_in_the_middle() {
        let at = Instant::from_millis;
        let mut attendance = Attendance::default();
        assert!(!attendance.begin(at(100)), "nothing was waited for");
        assert!(!attendance.end(at(101), Some(at(150))));
        assert!(!attendance.begin(at(120)), "woken early");
        assert!(!attendance.end(at(121), Some(at(150))));
        assert!(!attendance.begin(at(154)), "as timers are");
        assert!(!attendance.end(at(155), Some(at(160))));
        assert!(attendance.begin(at(190)));
        assert!(attendance.end(at(220), None), "interrupted");
        assert!(!attendance.begin(at(900)));
    }
}
