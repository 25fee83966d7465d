//! How far a path reorders, in time (RFC 8985 §6.2).
//!
//! Owns for how long answers were seen to take to packets that later ones had overtaken. When
//! packets count as lost by that is [`Recovery`](super::Recovery)'s business.

use tabane_base::{Duration, Instant};

use crate::id::PacketNumber;

/// What was seen is believed for one to two of these.
const SPAN: Duration = Duration::from_secs(5);

/// The longest that answers to overtaken packets took, in this span and the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reordering {
    answered_at: Instant,
    /// The largest that had been answered before that.
    overtook: Option<PacketNumber>,
    began: Instant,
    longest: Option<Duration>,
    before: Option<Duration>,
}

impl Reordering {
    /// An answer is about to be taken in; `largest` is what was answered before. What comes at one
    /// time is one answer: a SHED and the ACK behind it [P-6.8].
    pub(super) fn on_answer(&mut self, now: Instant, largest: Option<PacketNumber>) {
        if now > self.answered_at {
            (self.answered_at, self.overtook) = (now, largest);
        }
    }

    /// The answer has the packet `pn`, which left at `sent_at`.
    pub(super) fn on_settled(&mut self, now: Instant, pn: PacketNumber, sent_at: Instant) {
        if self.overtook.is_some_and(|largest| pn <= largest) {
            self.note(now, now.since(sent_at));
        }
    }

    #[cold]
    fn note(&mut self, now: Instant, took: Duration) {
        let age = now.since(self.began);
        if age >= SPAN {
            self.before = self.longest.take().filter(|_| age < SPAN * 2);
            self.began = now;
        }
        self.longest = self.longest.max(Some(took));
    }

    /// How long answers take at most; `None` where packets keep their order.
    pub(super) fn longest(&self, now: Instant) -> Option<Duration> {
        let longest = self.longest?;
        match now.since(self.began) {
            age if age < SPAN => Some(longest).max(self.before),
            age if age < SPAN * 2 => Some(longest),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_is_known_for_a_while_and_then_forgotten() {
        let at = Instant::from_millis;
        let mut reordering = Reordering::default();
        let overtaken = |reordering: &mut Reordering, now, sent_at| {
            reordering.on_answer(at(now), Some(PacketNumber(9)));
            reordering.on_settled(at(now), PacketNumber(8), at(sent_at));
            reordering.on_settled(at(now), PacketNumber(10), at(0));
        };
        assert_eq!(reordering.longest(at(1_000)), None);
        overtaken(&mut reordering, 60_000, 59_970);
        overtaken(&mut reordering, 61_000, 60_990);
        let longest = Some(Duration::from_millis(30));
        assert_eq!(reordering.longest(at(64_999)), longest);
        overtaken(&mut reordering, 66_000, 65_980);
        assert_eq!(reordering.longest(at(66_000)), longest);
        assert_eq!(
            reordering.longest(at(71_000)),
            Some(Duration::from_millis(20))
        );
        assert_eq!(reordering.longest(at(76_000)), None);
        overtaken(&mut reordering, 90_000, 89_999);
        assert_eq!(
            reordering.longest(at(90_000)),
            Some(Duration::from_millis(1))
        );
    }
}
