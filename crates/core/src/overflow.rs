//! When paths of a later priority are needed, because the earlier ones cannot carry the demand.
//!
//! They can as long as everything leaves now and then. Where something has waited all the time for
//! [`PATIENCE`], the next priority joins; where little more is sent than the earlier ones alone
//! would carry, it leaves again. Which priorities there are, and which paths work, is the
//! caller's knowledge; that a priority without any working path falls out as well.

use tabane_base::{Bytes, Duration, Instant, Rate};

/// How long data may wait without a pause before another priority joins. A page that loads, or a
/// few seconds of video fetched ahead, fit the paths that are to be used.
const PATIENCE: Duration = Duration::from_secs(1);
/// What is sent is compared with what could be over this long.
const REVIEW: Duration = Duration::from_secs(2);
/// The last priority leaves when the others would be used no more than this.
const ENOUGH: f64 = 0.8;

/// What is known of the priorities when data is to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply {
    /// The first priority with a path that works.
    pub(crate) first: u8,
    /// The next after [`Overflow::level`] that has one.
    pub(crate) next: Option<u8>,
    /// The last before the level that has one.
    pub(crate) previous: Option<u8>,
    /// What all before the level carry.
    pub(crate) rate_before: Rate,
    /// Sent so far, over all paths.
    pub(crate) sent: Bytes,
}

/// Up to which priority paths are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overflow {
    level: u8,
    /// Since when something has been waiting without a pause.
    waiting_since: Option<Instant>,
    /// When the present review began, and what had been sent by then.
    review: (Instant, Bytes),
}

impl Overflow {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            level: 0,
            waiting_since: None,
            review: (now, Bytes::ZERO),
        }
    }

    /// Paths up to this priority are used.
    pub(crate) const fn level(&self) -> u8 {
        self.level
    }

    /// Everything has left.
    pub(crate) const fn on_empty(&mut self) {
        self.waiting_since = None;
    }

    /// Data is to be sent.
    pub(crate) fn update(&mut self, now: Instant, supply: &Supply) {
        if self.level < supply.first {
            self.level = supply.first;
            self.begin(now, supply.sent);
        }
        let waiting_since = *self.waiting_since.get_or_insert(now);
        if now.since(waiting_since) >= PATIENCE
            && let Some(next) = supply.next
        {
            self.level = next;
            self.begin(now, supply.sent);
            return;
        }
        let (began, sent_before) = self.review;
        let span = now.since(began);
        if span < REVIEW {
            return;
        }
        let sent = Rate::of(supply.sent - sent_before, span);
        if let Some(previous) = supply.previous
            && sent < supply.rate_before.scaled(ENOUGH)
        {
            self.level = previous;
        }
        self.begin(now, supply.sent);
    }

    fn begin(&mut self, now: Instant, sent: Bytes) {
        self.waiting_since = Some(now);
        self.review = (now, sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two priorities, the first of 10 Mbit/s; what is sent, in Mbit/s, while `demand` is. The
    /// level at the end of each second.
    fn levels(demand: impl Fn(u64) -> u64, seconds: u64) -> Vec<u8> {
        let mut overflow = Overflow::new(Instant::EPOCH);
        let mut sent = Bytes::ZERO;
        let mut levels = Vec::new();
        for ms in 0..seconds * 1_000 {
            let demand = demand(ms / 1_000);
            let carried = if overflow.level() == 0 { 10 } else { 30 };
            sent += Rate::from_mbps(demand.min(carried)).amount_in(Duration::from_millis(1));
            if demand < carried {
                overflow.on_empty();
            }
            let is_open = overflow.level() > 0;
            let supply = Supply {
                first: 0,
                next: (!is_open).then_some(1),
                previous: is_open.then_some(0),
                rate_before: Rate::from_mbps(if is_open { 10 } else { 0 }),
                sent,
            };
            overflow.update(Instant::from_millis(ms), &supply);
            if ms % 1_000 == 999 {
                levels.push(overflow.level());
            }
        }
        levels
    }

    #[test]
    fn what_fits_the_first_priority_stays_there() {
        assert!(levels(|_| 9, 20).iter().all(|level| *level == 0));
    }

    #[test]
    fn more_joins_after_a_second_and_leaves_when_it_is_not_needed() {
        let levels = levels(|second| if second < 10 { 25 } else { 5 }, 20);
        assert_eq!(levels[0], 0, "{levels:?}");
        assert!(levels[1..10].iter().all(|level| *level == 1), "{levels:?}");
        assert!(levels[15..].iter().all(|level| *level == 0), "{levels:?}");
    }

    #[test]
    fn without_its_first_priority_it_begins_at_the_next() {
        let mut overflow = Overflow::new(Instant::EPOCH);
        let supply = Supply {
            first: 3,
            next: None,
            previous: None,
            rate_before: Rate::ZERO,
            sent: Bytes::ZERO,
        };
        overflow.update(Instant::EPOCH, &supply);
        assert_eq!(overflow.level(), 3);
    }
}
