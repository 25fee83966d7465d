//! A link that fades at once: what it had carried it may carry again at any moment.
//!
//! A train in a cutting, a phone behind a wall: from one moment to the next there is a third or
//! less, and seconds later all of it again. The steps of `steady` take a second or two to come
//! back there, being made for shares that others leave. Others do not take a share like that:
//! whoever comes doubles once in a round trip, and what is left to us falls by less than a half in
//! each. So falls are told apart here, and after one the first room leads to start-up.

use std::array;

use tabane_base::{Duration, Instant, Rate};

/// Two spans that carry less than the two before them by more than this factor: no newcomer does
/// that.
const FALL: f64 = 2.0;
/// A start-up is worth its queue where the best rate was more than so many times the present one.
const FALLEN: f64 = 3.0;
/// The link may come back for so long; within it the best rate is forgotten, to 1/e.
const SPAN: Duration = Duration::from_secs(20);
/// After a start-up, which may be in vain, there is none for so long, nor for this part of what
/// has passed since the fall: who has waited longer can wait longer.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_PART: u32 = 4;
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
    /// Until then it may come back.
    until: Instant,
    /// When it fell.
    fell_at: Instant,
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
            fell_at: now,
            next: now,
        }
    }

    /// A span is over that carried `rate`.
    pub(super) fn on_span(&mut self, now: Instant, carried: Rate) {
        self.carried = array::from_fn(|at| *self.carried.get(at + 1).unwrap_or(&carried));
        let [a, b, c, d] = self.carried;
        if a.min(b) > c.max(d).scaled(FALL) {
            self.until = now + SPAN;
            self.fell_at = now;
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
            self.next = now + PAUSE.max(now.since(self.fell_at) / PAUSE_PART);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN_MS: u64 = 10;

    /// A path of 20 Mbit/s for a second, then one that carries `kbps` in its spans; and now.
    fn after(kbps: impl Iterator<Item = u64>) -> (Fade, Instant) {
        let mut fade = Fade::new(Instant::EPOCH);
        let mut now = Instant::EPOCH;
        for kbps in std::iter::repeat_n(20_000, 100).chain(kbps) {
            now += Duration::from_millis(SPAN_MS);
            fade.on_span(now, Rate::from_bps(kbps * 1_000));
            fade.on_rate(now, Rate::from_bps(kbps * 1_000));
        }
        (fade, now)
    }

    #[test]
    fn what_fell_at_once_is_asked_for_again_and_again_for_a_while() {
        let (mut fade, now) = after([15_000, 2_000, 2_000, 2_000].into_iter());
        let rate = Rate::from_mbps(2);
        assert!(fade.asks_for_startup(now, rate));
        assert!(
            !fade.asks_for_startup(now + PAUSE / 2, rate),
            "one at a time"
        );
        assert!(fade.asks_for_startup(now + PAUSE, rate));
        let back = Rate::from_mbps(10);
        assert!(
            !fade.asks_for_startup(now + PAUSE * 2, back),
            "it came back"
        );
        assert!(
            !fade.asks_for_startup(now + SPAN, rate),
            "it stays as it is"
        );
    }

    /// A link that stays slow, as many do, has fewer and fewer queues for nothing.
    #[test]
    fn the_longer_it_lasts_the_more_seldom_it_is_asked_for() {
        let (mut fade, fell) = after([15_000, 2_000, 2_000, 2_000].into_iter());
        let rate = Rate::from_mbps(2);
        let later = fell + Duration::from_secs(8);
        assert!(fade.asks_for_startup(later, rate));
        assert!(!fade.asks_for_startup(later + Duration::from_millis(1_900), rate));
        assert!(fade.asks_for_startup(later + Duration::from_millis(2_100), rate));
    }

    /// In start-up a newcomer doubles in each round trip, of two spans: our share of the link falls
    /// to a twentieth by that.
    #[test]
    fn a_newcomer_s_doubling_is_no_fade() {
        let theirs = (0..14).map(|span| 0.1 * f64::from(span / 2).exp2());
        let ours = theirs.map(|theirs| (20_000.0 / (1.0 + theirs)) as u64);
        let (mut fade, now) = after(ours);
        assert!(!fade.asks_for_startup(now, Rate::from_mbps(2)));
    }
}
