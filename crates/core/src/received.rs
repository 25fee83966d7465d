//! Which packets of one path have arrived, and when to say so [P-5.2].
//!
//! Owns the replay window and the acknowledgements. A packet older than the window counts as
//! seen: it is dropped, and its sender repeats what it carried.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

use tabane_base::{Duration, Instant};

use crate::config::MAX_ACK_DELAY;
use crate::crypto::PathPhase;
use crate::id::{PacketNumber, PathId};
use crate::ranges::RangeSet;
use crate::wire::{MAX_ACK_RANGES, MAX_ACK_TIMES, emit_ack, emit_shed};

/// Gaps remembered for telling replays from late packets. One entry is some 50 bytes; at 1 % loss
/// the window is 25,000 packets long.
const MAX_RANGES: usize = 256;
/// Packets far behind the newest that acknowledgements have besides the newest ranges, each in so
/// many, lest its number be in none: where packets overtake one another by far.
const MAX_BEHIND: usize = MAX_ACK_RANGES / 2;
const BEHIND_TOLD: u8 = 3;
/// Packets acknowledged together unless the sender asks otherwise (RFC 9000 §13.2.2).
const DEFAULT_THRESHOLD: u64 = 2;
/// PINGs answered one by one: as many as a probe has.
const MAX_PINGS_ANSWERED: u64 = 8;
/// More would let a sender wait for a whole window.
const MAX_THRESHOLD: u64 = 64;

/// The packets received on one path.
#[derive(Debug)]
pub(crate) struct Received {
    ranges: RangeSet,
    /// Everything below counts as received.
    floor: PacketNumber,
    largest: Option<(PacketNumber, Instant)>,
    /// For finding the key of the next.
    key_phase: PathPhase,
    /// Came when the newest ranges of an acknowledgement would not have them, with how many had
    /// them since.
    behind: VecDeque<(PacketNumber, u8)>,
    /// Times of the packets since the last acknowledgement, oldest first.
    times: VecDeque<Instant>,
    /// Ack-eliciting packets not yet acknowledged.
    unacked: u64,
    /// PING frames not yet acknowledged.
    pings: u64,
    due_at: Option<Instant>,
    emitted_at: Option<Instant>,
    /// When the latest came that asks for an acknowledgement.
    asked_at: Option<Instant>,
    /// Thrown away for want of memory, the newest of them.
    shed: RangeSet,
    /// When the last was, until that is told.
    shed_at: Option<Instant>,
    threshold: u64,
    max_delay: Duration,
}

impl Received {
    pub(crate) fn new() -> Self {
        Self {
            ranges: RangeSet::default(),
            floor: PacketNumber::default(),
            largest: None,
            key_phase: PathPhase::default(),
            behind: VecDeque::new(),
            times: VecDeque::with_capacity(MAX_ACK_TIMES + 1),
            unacked: 0,
            pings: 0,
            due_at: None,
            emitted_at: None,
            asked_at: None,
            shed: RangeSet::default(),
            shed_at: None,
            threshold: DEFAULT_THRESHOLD,
            max_delay: MAX_ACK_DELAY,
        }
    }

    pub(crate) fn largest(&self) -> Option<PacketNumber> {
        self.largest.map(|(pn, _)| pn)
    }

    pub(crate) const fn key_phase(&self) -> PathPhase {
        self.key_phase
    }

    pub(crate) const fn set_key_phase(&mut self, phase: PathPhase) {
        self.key_phase = phase;
    }

    pub(crate) fn is_replayed(&self, pn: PacketNumber) -> bool {
        let is_newest = self.largest().is_none_or(|largest| pn > largest);
        !is_newest && (pn < self.floor || self.ranges.contains(pn.0))
    }

    /// Takes note of a packet that [`is_replayed`](Self::is_replayed) denied.
    ///
    /// # Panics
    /// Where it did not.
    pub(crate) fn on_received(&mut self, now: Instant, pn: PacketNumber, ack_eliciting: bool) {
        assert!(!self.is_replayed(pn), "a packet counts once");
        let expected = self.largest().map(PacketNumber::next).unwrap_or_default();
        self.ranges.insert(pn.0..pn.0 + 1);
        if self.ranges.len() > MAX_RANGES
            && let Some(oldest) = self.ranges.forget_first()
        {
            self.floor = self.floor.max(PacketNumber(oldest.end));
        }
        if pn >= expected {
            self.largest = Some((pn, now));
        } else if self.is_behind(pn) {
            self.behind.truncate(MAX_BEHIND - 1);
            self.behind.push_front((pn, 0));
        }
        if self.times.len() > MAX_ACK_TIMES {
            self.times.pop_front();
        }
        self.times.push_back(now);
        if ack_eliciting {
            self.asked_at = Some(now);
            self.unacked += 1;
            let due = if self.unacked >= self.threshold || pn != expected {
                now
            } else {
                now + self.max_delay
            };
            self.due_at = Some(self.due_at.map_or(due, |at| at.min(due)));
        }
    }

    fn is_behind(&self, pn: PacketNumber) -> bool {
        let mut newest = self.ranges.iter().rev();
        let last = newest.nth(MAX_ACK_RANGES - MAX_BEHIND - 1);
        last.is_some_and(|range| pn.0 < range.start)
    }

    /// A packet was thrown away for want of memory: its sender is told at once [P-6.8].
    pub(crate) fn on_shed(&mut self, now: Instant, pn: PacketNumber) {
        self.shed.insert(pn.0..pn.0 + 1);
        if self.shed.len() > MAX_ACK_RANGES {
            self.shed.forget_first();
        }
        self.shed_at = Some(now);
        self.due_at = Some(now);
    }

    /// The sender knows better how often it needs to hear [P-5.4].
    pub(crate) fn set_frequency(&mut self, threshold: u64, max_delay: Duration) {
        self.threshold = threshold.clamp(1, MAX_THRESHOLD);
        self.max_delay = max_delay.clamp(Duration::from_micros(100), MAX_ACK_DELAY);
    }

    /// A PING came. Where more than one waits, the sender is probing a path that seems silent, and
    /// each is answered for itself: answers are lost in bursts of so many packets as well [P-5.2].
    pub(crate) fn on_ping(&mut self, now: Instant) {
        self.pings = (self.pings + 1).min(MAX_PINGS_ANSWERED);
        if self.pings > 1 {
            self.due_at = Some(now);
        }
    }

    /// Has the next acknowledgement leave at once.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.due_at = Some(now);
    }

    /// When the acknowledgement must leave; `None` when nothing waits for one.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// When the latest packet came that asks for an acknowledgement.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        self.asked_at
    }

    /// When the latest acknowledgement was sent, if nothing was ever shed here: what repeats it may
    /// come before the report, and would tell as lost what was shed.
    pub(crate) fn emitted_at(&self) -> Option<Instant> {
        self.emitted_at
    }

    /// Appends the acknowledgement and considers it sent.
    pub(crate) fn emit(&mut self, now: Instant, path: PathId, out: &mut Vec<u8>) {
        self.pings = self.pings.saturating_sub(1);
        self.due_at = (self.pings > 0).then_some(now);
        self.emitted_at = self.shed.is_empty().then_some(now);
        if let Some(at) = self.shed_at.take() {
            // Before the acknowledgement, whose gaps would count as losses.
            let (ranges, count) = newest(self.shed.iter().rev());
            emit_shed(path, now.since(at), at, &ranges[..count], out);
        }
        let Some((_, largest_at)) = self.largest else {
            return;
        };
        let (ranges, count) = match self.behind.is_empty() {
            true => newest(self.ranges.iter().rev()),
            false => self.newest_and_behind(),
        };
        let mut times = [Duration::ZERO; MAX_ACK_TIMES];
        let mut timed = 0;
        for (slot, at) in times.iter_mut().zip(self.times.iter().rev().skip(1)) {
            *slot = largest_at.since(*at);
            timed += 1;
        }
        let delay = now.since(largest_at);
        emit_ack(
            path,
            delay,
            largest_at,
            &ranges[..count],
            &times[..timed],
            out,
        );
        self.times.clear();
        self.unacked = 0;
    }

    /// The newest ranges and those of packets behind them.
    #[cold]
    fn newest_and_behind(&mut self) -> ([RangeInclusive<u64>; MAX_ACK_RANGES], usize) {
        let always = MAX_ACK_RANGES - self.behind.len();
        let is_told = |range: &Range<u64>| self.behind.iter().any(|(pn, _)| range.contains(&pn.0));
        let first = self.ranges.iter().rev().take(always);
        let rest = self.ranges.iter().rev().skip(always).filter(is_told);
        let ranges = newest(first.chain(rest));
        self.behind.iter_mut().for_each(|(_, told)| *told += 1);
        self.behind.retain(|(_, told)| *told < BEHIND_TOLD);
        ranges
    }
}

/// The first of `ranges`, which come newest first, as frames have them, and how many these are.
fn newest(
    ranges: impl Iterator<Item = Range<u64>>,
) -> ([RangeInclusive<u64>; MAX_ACK_RANGES], usize) {
    let mut told = [const { 0..=0 }; MAX_ACK_RANGES];
    let mut count = 0;
    for (slot, range) in told.iter_mut().zip(ranges) {
        *slot = RangeInclusive::new(range.start, range.end - 1);
        count += 1;
    }
    (told, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Cursor, Frame, parse_frame};
    use tabane_base::Seed;

    fn ack(received: &mut Received, now: Instant) -> crate::wire::AckFrame {
        let mut out = Vec::new();
        received.emit(now, PathId(1), &mut out);
        let Ok(Frame::Ack(ack)) = parse_frame(&mut Cursor::new(&out)) else {
            panic!("no ACK in {out:?}");
        };
        ack
    }

    #[test]
    fn a_gap_is_reported_at_once_and_order_only_after_the_threshold() {
        let mut received = Received::new();
        let at = Instant::from_millis;
        received.on_received(at(1), PacketNumber(0), true);
        assert_eq!(received.due_at(), Some(at(1) + MAX_ACK_DELAY));
        received.on_received(at(2), PacketNumber(1), true);
        assert_eq!(received.due_at(), Some(at(2)));
        let frame = ack(&mut received, at(2));
        assert_eq!(
            (frame.ranges, frame.times),
            (vec![0..=1], vec![Duration::from_millis(1)])
        );
        assert_eq!(received.due_at(), None);
        received.on_received(at(3), PacketNumber(5), true);
        assert_eq!(received.due_at(), Some(at(3)));
        assert_eq!(ack(&mut received, at(4)).ranges, [5..=5, 0..=1]);
    }

    #[test]
    fn every_packet_is_acknowledged_however_far_others_overtook_it() {
        for seed in 0..20 {
            let mut rng = Seed(seed).rng("overtaken");
            let mut order: Vec<u64> = (0..2_000).collect();
            order.sort_by_cached_key(|pn| pn + rng.below(200));
            let mut received = Received::new();
            let mut acked = RangeSet::default();
            for pn in order {
                received.on_received(Instant::EPOCH, PacketNumber(pn), true);
                for range in ack(&mut received, Instant::EPOCH).ranges {
                    acked.insert(*range.start()..range.end() + 1);
                }
                assert!(
                    acked.contains(pn),
                    "seed {seed}: {pn} in no acknowledgement"
                );
            }
        }
    }

    #[test]
    fn every_packet_is_taken_once_whatever_the_order() {
        for seed in 0..20 {
            let mut rng = Seed(seed).rng("received");
            let mut received = Received::new();
            let mut taken = std::collections::BTreeSet::new();
            for _ in 0..5_000 {
                let pn = PacketNumber(rng.below(3_000));
                if received.is_replayed(pn) {
                    continue;
                }
                assert!(taken.insert(pn), "seed {seed}: {pn:?} taken twice");
                received.on_received(Instant::EPOCH, pn, true);
            }
            assert!(received.ranges.len() <= MAX_RANGES, "seed {seed}");
        }
    }
}
