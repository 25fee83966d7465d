//! Silences: a path that had much to deliver delivered nothing for a while, and then goes on.
//!
//! A handover, a radio link that repeats below us, a machine that was not run. What was under way
//! waited, so its round trips and the rate over them tell of the silence and not of the path: they
//! are left out, and what was believed before is the best guess for afterwards. If it is wrong,
//! what leaves afterwards shows it a round trip later.
//!
//! A link that has become slow looks like many silences. So one alone is left out: when the next
//! comes before what waited has been delivered, everything counts.

use tabane_base::{Duration, Instant, scale};

use crate::congestion::AckEvent;

/// So much longer than the round trip and so many usual gaps between acknowledgements is a silence.
const GAP: Duration = Duration::from_millis(50);
const GAPS: u32 = 4;
/// Gaps are smoothed over this time.
const MEMORY: Duration = Duration::from_millis(1_000);

/// The silences of one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// When something was last heard, or began to be waited for.
    heard_at: Instant,
    /// What left before this waited in the latest silence.
    over_at: Option<Instant>,
    /// The usual gap: each counts for as long as it is.
    usual: Duration,
}

impl Silence {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            heard_at: now,
            over_at: None,
            usual: Duration::ZERO,
        }
    }

    /// Something is waited for from now on.
    pub(super) fn on_restart(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Takes an acknowledgement in: whether it tells of the path, and not of a silence.
    pub(super) fn on_ack(&mut self, event: &AckEvent<'_>, rtt: Duration) -> bool {
        let is_silence = self.is_silent(event.now, rtt);
        let gap = event.now.since(self.heard_at);
        self.heard_at = event.now;
        let weight = (gap.as_secs_f64() / MEMORY.as_secs_f64()).min(1.0);
        self.usual = scale(self.usual, 1.0 - weight).saturating_add(scale(gap, weight));
        let waited = |at: &Instant| event.largest_acked_sent_at < *at;
        self.over_at = match (self.over_at.filter(waited), is_silence) {
            (None, true) => Some(event.now),
            (Some(_), true) => None,
            (over_at, false) => over_at,
        };
        self.over_at.is_none()
    }

    /// Whether a silence explains the loss of what was `sent_at`, and no congestion.
    pub(super) fn explains(&self, now: Instant, sent_at: Instant, rtt: Duration) -> bool {
        match self.over_at {
            Some(over_at) => sent_at < over_at,
            None => self.is_silent(now, rtt),
        }
    }

    fn is_silent(&self, now: Instant, rtt: Duration) -> bool {
        now.since(self.heard_at) > rtt + GAP.max(self.usual * GAPS)
    }
}
