//! When the front of one queue is dropped: CoDel (RFC 8289).
//!
//! A queue that has stood for longer than its target over a whole interval loses its first, then
//! ever more of them, until it is short again. Owns the control law; the queue and the clock are
//! the outbox's.

use tabane_base::{Duration, Instant};

/// CoDel's target as a part of its interval, and of the limit: a standing queue may be so long.
const TARGET_PART: u32 = 6;

/// CoDel's control of one queue (RFC 8289 §5).
#[derive(Debug, Default)]
pub(super) struct Codel {
    /// When the queue will have been too long for an interval.
    above_until: Option<Instant>,
    /// While dropping: when the next one is due.
    drop_at: Option<Instant>,
    drops: u32,
}

impl Codel {
    /// Whether the datagram at the front, which has `waited`, is to be dropped.
    pub(super) fn drops_now(
        &mut self,
        now: Instant,
        waited: Duration,
        is_last: bool,
        interval: Duration,
    ) -> bool {
        if is_last || waited < interval / TARGET_PART {
            self.above_until = None;
            self.drop_at = None;
            return false;
        }
        let Some(until) = self.above_until else {
            self.above_until = Some(now + interval);
            return false;
        };
        match self.drop_at {
            None if until <= now => {
                // Soon after the last time, it goes on where it had been.
                self.drops = (self.drops / 2).max(1);
                self.drop_at = Some(now + self.pause(interval));
                true
            }
            Some(at) if at <= now => {
                self.drops = self.drops.saturating_add(1);
                self.drop_at = Some(at + self.pause(interval));
                true
            }
            None | Some(_) => false,
        }
    }

    /// The control law: an interval over the square root of how many were dropped.
    fn pause(&self, interval: Duration) -> Duration {
        interval.div_f64(f64::from(self.drops.max(1)).sqrt())
    }
}
