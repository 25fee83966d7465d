//! A link that fades at once: what it had carried it may carry again at any moment.
//!
//! A train in a cutting, a phone behind a wall: from one moment to the next there is a third or
//! less, and seconds later all of it again. The steps of `steady` take a second or two to come
//! back there, being made for shares that others leave. Others do not take a share like that:
//! whoever comes doubles once in a round trip, and what is left to us falls by less than a half in
//! each. So falls are told apart here, and after one the first room leads to start-up.

use std::array;

use tabane_base::{Duration, Instant, Rate};

/// A fall to less than this part, from two spans to the next two, is no newcomer's.
const FALL: f64 = 2.0;
/// Less than this part of the best is worth a start-up.
const FALLEN: f64 = 3.0;
/// It may come back for so long, and what was best fades in the same time.
const SPAN: Duration = Duration::from_secs(20);
/// After a start-up, which may be in vain, there is none for so long.
const PAUSE: Duration = Duration::from_millis(500);
/// Spans looked at.
const SPANS: usize = 4;

/// What is remembered of a link before it faded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fade {
    /// What the latest spans carried, the oldest first.
    carried: [Rate; SPANS],
    /// The highest rate, less what time takes of it.
    best: Rate,
    best_at: Instant,
    until: Instant,
    /// When the next start-up may begin.
    next: Instant,
}

impl Fade {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            carried: [Rate::ZERO; SPANS],
            best: Rate::ZERO,
            best_at: now,
            until: now,
            next: now,
        }
    }

    /// A span is over that carried `rate`.
    pub(super) fn on_span(&mut self, now: Instant, carried: Rate) {
        self.carried = array::from_fn(|at| *self.carried.get(at + 1).unwrap_or(&carried));
        let [a, b, c, d] = self.carried;
        if a.min(b) > c.max(d).scaled(FALL) {
            self.until = now + SPAN;
        }
    }

    /// The path is believed to carry `rate`.
    pub(super) fn on_rate(&mut self, now: Instant, rate: Rate) {
        let age = now.since(self.best_at).as_secs_f64() / SPAN.as_secs_f64();
        self.best_at = now;
        self.best = self.best.scaled((-age).exp()).max(rate);
    }

    /// Whether a start-up is due on a path that carries `rate`, and has room; then it is taken to
    /// begin.
    pub(super) fn asks_for_startup(&mut self, now: Instant, rate: Rate) -> bool {
        let may_come_back = now < self.until && self.best > rate.scaled(FALLEN);
        let is_due = may_come_back && now >= self.next;
        if is_due {
            self.next = now + PAUSE;
        }
        is_due
    }
}
