//! Packets of one path that are on their way: acknowledgement, loss, probe timeouts (RFC 9002).
//!
//! Owns what was sent and not yet settled. Which path a lost frame travels on next is not its
//! business: lost packets are handed back with their contents.

mod flight;
mod reordering;
mod sent;

use std::collections::BTreeMap;

use tabane_base::{Bytes, Duration, Instant};

use self::flight::Flight;
use self::reordering::Reordering;
pub(crate) use self::sent::{SentFrame, SentFrames, SentPacket};
use crate::close::Violation;
use crate::id::PacketNumber;
use crate::rtt::{GRANULARITY, RttEstimator};
use crate::wire::AckFrame;

/// How far behind the newest acknowledged packet one must be to count as lost (RFC 9002 §6.1.1).
const PACKET_THRESHOLD: u64 = 3;
/// Lost packets remembered in case their acknowledgement comes after all.
const MAX_REMEMBERED: usize = 4_096;
/// Packets under way beyond those of the window, after which answers and keep-alives are not
/// followed; and bytes that a packet of the window has at least.
const MAX_UNWINDOWED: u64 = 64;
const LEAST_WINDOWED: u64 = 100;
/// Probe timeouts double up to this factor, so that a path that comes back is noticed.
const MAX_BACKOFF_SHIFT: u32 = 6;
/// No probe sooner than this after the last packet: on a busy machine the other end may well be
/// kept off its processor for so long, and a false alarm repeats a whole window.
const MIN_PTO: Duration = Duration::from_millis(30);

/// A packet whose fate is known.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) pn: PacketNumber,
    pub(crate) packet: SentPacket,
    /// It had been declared lost before.
    pub(crate) was_lost: bool,
}

/// The packets in flight on one path.
#[derive(Debug)]
pub(crate) struct Recovery {
    flight: Flight,
    /// Declared lost, not acknowledged since.
    lost: BTreeMap<PacketNumber, SentPacket>,
    largest_acked: Option<PacketNumber>,
    /// When what asks for an answer last left.
    last_eliciting_at: Instant,
    loss_at: Option<Instant>,
    pto_count: u32,
    reordering: Reordering,
}

impl Recovery {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            flight: Flight::default(),
            lost: BTreeMap::new(),
            largest_acked: None,
            last_eliciting_at: now,
            loss_at: None,
            pto_count: 0,
            reordering: Reordering::default(),
        }
    }

    pub(crate) const fn next_pn(&self) -> PacketNumber {
        self.flight.next()
    }

    pub(crate) const fn largest_acked(&self) -> Option<PacketNumber> {
        self.largest_acked
    }

    pub(crate) const fn in_flight(&self) -> Bytes {
        self.flight.bytes()
    }

    pub(crate) const fn last_eliciting_at(&self) -> Instant {
        self.last_eliciting_at
    }

    pub(crate) const fn pto_count(&self) -> u32 {
        self.pto_count
    }

    pub(crate) const fn has_eliciting_in_flight(&self) -> bool {
        self.flight.eliciting() > 0
    }

    /// Asks for more answers than windows alone let out: what is sent in answer to the peer need
    /// not be followed too.
    pub(crate) fn asks_enough(&self, cwnd: Bytes) -> bool {
        self.flight.eliciting() as u64 >= MAX_UNWINDOWED + cwnd.get() / LEAST_WINDOWED
    }

    /// The packet with the number [`next_pn`](Self::next_pn) leaves.
    pub(crate) fn on_sent(&mut self, packet: SentPacket) {
        if packet.ack_eliciting {
            self.last_eliciting_at = packet.sent_at;
        }
        self.flight.push(packet);
    }

    /// A packet leaves whose fate nobody asks for: an acknowledgement.
    pub(crate) fn on_untracked_sent(&mut self) {
        self.flight.skip();
    }

    /// Settles what `ack` acknowledges; each packet is handed to `settle` once.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        ack: &AckFrame,
        mut settle: impl FnMut(Settled),
    ) -> Result<(), Violation> {
        if ack.largest() >= self.next_pn() {
            return Err(Violation::AckedUnsent);
        }
        self.reordering.on_answer(now, self.largest_acked);
        self.largest_acked = self.largest_acked.max(Some(ack.largest()));
        for range in ack.ranges.iter().rev() {
            self.settle_late(now, range, &mut settle);
        }
        let reordering = &mut self.reordering;
        self.flight
            .acknowledge(ack.ranges.iter().rev(), |pn, packet| {
                reordering.on_settled(now, pn, packet.sent_at);
                settle(Settled {
                    pn,
                    packet,
                    was_lost: false,
                });
            });
        Ok(())
    }

    fn settle_late(
        &mut self,
        now: Instant,
        range: &std::ops::RangeInclusive<u64>,
        settle: &mut impl FnMut(Settled),
    ) {
        let numbers = PacketNumber(*range.start())..=PacketNumber(*range.end());
        while let Some((pn, _)) = self.lost.range(numbers.clone()).next() {
            let pn = *pn;
            let Some(packet) = self.lost.remove(&pn) else {
                return;
            };
            self.reordering.on_settled(now, pn, packet.sent_at);
            settle(Settled {
                pn,
                packet,
                was_lost: true,
            });
        }
    }

    /// An acknowledgement of something newly sent shows that the path is alive.
    pub(crate) fn on_alive(&mut self) {
        self.pto_count = 0;
    }

    /// Declares packets lost by number or time (RFC 9002 §6.1), where packets overtake one another
    /// by time alone (RFC 8985 §6.2), and appends them to `out`.
    pub(crate) fn detect_lost(&mut self, now: Instant, rtt: &RttEstimator, out: &mut Vec<Settled>) {
        self.loss_at = None;
        let Some(largest) = self.largest_acked else {
            return;
        };
        let delay = (rtt.smoothed().max(rtt.latest()) * 9 / 8).max(GRANULARITY);
        let reordering = self.reordering.longest(now);
        let most = rtt.smoothed() + rtt.pto_base();
        let delay = delay.max(reordering.map_or(Duration::ZERO, |longest| longest.min(most)));
        for place in 0..self.flight.places_to(largest) {
            let Some((pn, packet)) = self.flight.at(place) else {
                continue;
            };
            let by_number = reordering.is_none() && pn.0 + PACKET_THRESHOLD <= largest.0;
            if !by_number && packet.sent_at + delay > now {
                self.loss_at = Some(packet.sent_at + delay);
                break;
            }
            self.lose(place, out);
        }
        self.flight.trim();
    }

    /// Declares everything in flight lost, in the order it was sent, and appends it to `out`.
    pub(crate) fn lose_all(&mut self, out: &mut Vec<Settled>) {
        for place in 0..self.flight.places() {
            self.lose(place, out);
        }
        self.loss_at = None;
        self.flight.trim();
    }

    fn lose(&mut self, place: usize, out: &mut Vec<Settled>) {
        let Some((pn, packet)) = self.flight.take(place) else {
            return;
        };
        if !packet.in_flight {
            return;
        }
        if self.lost.len() >= MAX_REMEMBERED {
            self.lost.pop_first();
        }
        self.lost.insert(pn, packet.clone());
        out.push(Settled {
            pn,
            packet,
            was_lost: false,
        });
    }

    /// When a packet will count as lost by time.
    pub(crate) const fn loss_at(&self) -> Option<Instant> {
        self.loss_at
    }

    /// When the peer should have answered (RFC 9002 §6.2). The time doubles after so many `probes`.
    pub(crate) fn pto_at(
        &self,
        rtt: &RttEstimator,
        peer_ack_delay: Duration,
        probes: u32,
    ) -> Option<Instant> {
        if !self.has_eliciting_in_flight() {
            return None;
        }
        let base = (rtt.pto_base() + peer_ack_delay).max(MIN_PTO);
        let doubled = self.pto_count / probes;
        Some(self.last_eliciting_at + base * (1 << doubled.min(MAX_BACKOFF_SHIFT)))
    }

    /// When the oldest of what the peer should answer left.
    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        let mut sent = self.flight.iter();
        let oldest = sent.find(|packet| packet.in_flight && packet.ack_eliciting);
        oldest.map(|packet| packet.sent_at)
    }

    pub(crate) fn on_pto(&mut self) {
        self.pto_count += 1;
    }

    /// Packets in flight, oldest first, for repeating their contents elsewhere.
    pub(crate) fn in_flight_mut(&mut self) -> impl Iterator<Item = &mut SentPacket> {
        self.flight.iter_mut().filter(|packet| packet.in_flight)
    }

    /// The same from the first on that has not been repeated, and what is in flight before it.
    pub(crate) fn unrepeated_mut(&mut self) -> (Bytes, impl Iterator<Item = &mut SentPacket>) {
        let (before, rest) = self.flight.unrepeated_mut();
        (before, rest.filter(|packet| packet.in_flight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::SentState;
    use crate::id::PathId;

    fn packet(at_ms: u64) -> SentPacket {
        SentPacket {
            sent_at: Instant::from_millis(at_ms),
            size: 1_000,
            ack_eliciting: true,
            in_flight: true,
            reinjected: false,
            key_generation: 0,
            delivery: SentState::default(),
            frames: SentFrames::default(),
        }
    }

    fn ack(ranges: &[std::ops::RangeInclusive<u64>]) -> AckFrame {
        AckFrame {
            path: PathId(0),
            delay: Duration::ZERO,
            largest_at: Instant::EPOCH,
            ranges: ranges.to_vec(),
            times: Vec::new(),
        }
    }

    fn acked(
        recovery: &mut Recovery,
        at_ms: u64,
        ranges: &[std::ops::RangeInclusive<u64>],
    ) -> Vec<(u64, bool)> {
        let mut settled = Vec::new();
        let result = recovery.on_ack(Instant::from_millis(at_ms), &ack(ranges), |s| {
            settled.push((s.pn.0, s.was_lost));
        });
        assert_eq!(result, Ok(()));
        settled
    }

    #[test]
    fn three_later_packets_make_one_lost_and_a_late_ack_unmakes_it() {
        let mut recovery = Recovery::new(Instant::EPOCH);
        (0..6).for_each(|pn| recovery.on_sent(packet(pn)));
        assert_eq!(
            acked(&mut recovery, 9, &[1..=3]),
            [(1, false), (2, false), (3, false)]
        );
        let mut lost = Vec::new();
        let rtt = RttEstimator::new(Duration::from_millis(100));
        recovery.detect_lost(Instant::from_millis(10), &rtt, &mut lost);
        assert_eq!(lost.iter().map(|s| s.pn.0).collect::<Vec<_>>(), [0]);
        assert_eq!(recovery.in_flight(), Bytes::new(2_000));
        assert_eq!(acked(&mut recovery, 10, &[0..=3]), [(0, true)]);
        let late = recovery.reordering.longest(Instant::from_millis(10));
        assert_eq!(late, Some(Duration::from_millis(10)));
        assert_eq!(acked(&mut recovery, 10, &[0..=5]), [(4, false), (5, false)]);
        assert_eq!(recovery.in_flight(), Bytes::ZERO);
        assert!(!recovery.has_eliciting_in_flight());
    }

    #[test]
    fn where_packets_overtake_one_another_time_alone_makes_them_lost() {
        let mut recovery = Recovery::new(Instant::EPOCH);
        (0..20).for_each(|pn| recovery.on_sent(packet(pn)));
        acked(&mut recovery, 9, &[3..=9]);
        acked(&mut recovery, 10, &[0..=0, 2..=9]);
        let mut rtt = RttEstimator::new(Duration::from_millis(4));
        rtt.update(Instant::EPOCH, Duration::from_millis(4), Duration::ZERO);
        let mut lost = Vec::new();
        // The first took 10 ms to be answered, and the second left 1 ms later.
        recovery.detect_lost(Instant::from_millis(10), &rtt, &mut lost);
        assert!(lost.is_empty());
        assert_eq!(recovery.loss_at(), Some(Instant::from_millis(11)));
        recovery.detect_lost(Instant::from_millis(11), &rtt, &mut lost);
        assert_eq!(lost.iter().map(|s| s.pn.0).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn time_makes_a_packet_lost_without_three_later_ones() {
        let mut recovery = Recovery::new(Instant::EPOCH);
        (0..2).for_each(|pn| recovery.on_sent(packet(pn)));
        acked(&mut recovery, 10, &[1..=1]);
        let mut lost = Vec::new();
        let rtt = RttEstimator::new(Duration::from_millis(80));
        recovery.detect_lost(Instant::from_millis(50), &rtt, &mut lost);
        assert!(lost.is_empty());
        assert_eq!(recovery.loss_at(), Some(Instant::from_millis(90)));
        recovery.detect_lost(Instant::from_millis(90), &rtt, &mut lost);
        assert_eq!(lost.len(), 1);
    }

    /// A hostile peer (docs/security.md, H2).
    #[test]
    fn a_peer_that_acknowledges_nothing_or_in_crumbs_takes_no_memory() {
        let mut recovery = Recovery::new(Instant::EPOCH);
        recovery.on_sent(packet(0));
        (0..100_000).for_each(|_| recovery.on_untracked_sent());
        assert_eq!(recovery.flight.places(), 1);
        for pn in (2..100_000).step_by(2) {
            acked(&mut recovery, 10, &[pn..=pn]);
        }
        assert!(recovery.flight.acked() <= MAX_REMEMBERED);
        let last = recovery.next_pn().0;
        recovery.on_sent(packet(1));
        assert_eq!(acked(&mut recovery, 10, &[last..=last]), [(last, false)]);
        assert_eq!(acked(&mut recovery, 10, &[0..=0]), [(0, false)]);
        assert!(recovery.flight.places() == 0);
    }

    /// A hostile peer again: it sheds everything but one packet, which nothing declares lost.
    #[test]
    fn one_packet_that_is_never_settled_keeps_no_places_of_those_behind_it() {
        let mut recovery = Recovery::new(Instant::EPOCH);
        recovery.on_sent(packet(0));
        for pn in 1..100_000 {
            recovery.on_sent(packet(pn));
            acked(&mut recovery, pn, &[1..=pn]);
            assert!(recovery.flight.places() <= MAX_REMEMBERED + 1, "{pn}");
        }
        assert_eq!(acked(&mut recovery, 100_000, &[0..=99_999]), [(0, false)]);
        assert!(recovery.flight.places() == 0);
    }

    #[test]
    fn what_was_acknowledged_is_not_looked_at_again_whatever_else_was() {
        const FIRST: u64 = 20_000;
        let mut recovery = Recovery::new(Instant::EPOCH);
        (0..=FIRST).for_each(|pn| recovery.on_sent(packet(pn)));
        acked(&mut recovery, FIRST, &[1..=FIRST]);
        // Every other one of many: more ranges than are remembered.
        for pn in FIRST + 1..FIRST + 4 * MAX_REMEMBERED as u64 {
            recovery.on_sent(packet(pn));
            if pn % 2 == 0 {
                assert_eq!(acked(&mut recovery, pn, &[pn..=pn]), [(pn, false)]);
            }
        }
        let before = recovery.flight.looked_at;
        for _ in 0..1_000 {
            assert_eq!(acked(&mut recovery, 100_000, &[1..=FIRST]), []);
        }
        assert_eq!(recovery.flight.looked_at, before);
        let most = recovery.flight.eliciting() + MAX_REMEMBERED;
        assert!(recovery.flight.acked() <= 2 * most && recovery.flight.places() <= 2 * most);
        let rest = FIRST + 1..FIRST + 4 * MAX_REMEMBERED as u64;
        let odd: Vec<_> = rest
            .filter(|pn| pn % 2 == 1)
            .map(|pn| (pn, false))
            .collect();
        let last = recovery.next_pn().0 - 1;
        assert_eq!(acked(&mut recovery, 100_000, &[1..=last]), odd);
    }

    #[test]
    fn an_ack_of_nothing_sent_is_a_violation() {
        let mut recovery = Recovery::new(Instant::EPOCH);
        recovery.on_sent(packet(0));
        assert_eq!(
            recovery.on_ack(Instant::EPOCH, &ack(&[0..=1]), drop),
            Err(Violation::AckedUnsent)
        );
    }

    /// Answers that say nothing new, or one packet each, had all of it looked at again.
    #[test]
    fn what_has_been_repeated_is_not_looked_at_again_for_each_acknowledgement() {
        const PACKETS: u64 = 2_000;
        let mut recovery = Recovery::new(Instant::EPOCH);
        (0..PACKETS).for_each(|pn| recovery.on_sent(packet(pn)));
        let (_, all) = recovery.unrepeated_mut();
        all.for_each(|packet| packet.reinjected = true);
        let before = recovery.flight.looked_at;
        for pn in (0..1_000).rev() {
            acked(&mut recovery, PACKETS, &[pn..=pn]);
            acked(&mut recovery, PACKETS, &[pn..=pn]);
            let in_flight = recovery.in_flight();
            let (repeated, mut rest) = recovery.unrepeated_mut();
            assert!(rest.next().is_none());
            assert_eq!(repeated, in_flight);
        }
        recovery.on_sent(packet(PACKETS));
        let (repeated, rest) = recovery.unrepeated_mut();
        assert_eq!((repeated, rest.count()), (Bytes::kilo(1_000), 1));
        let looked_at = recovery.flight.looked_at - before;
        assert!(looked_at < 2 * PACKETS as usize, "{looked_at}");
    }

    /// Two at a time, as a nearly full window has it: the walk began with the oldest each time.
    #[test]
    fn what_has_been_repeated_is_not_looked_at_again_for_the_next_few() {
        const PACKETS: u64 = 2_000;
        let mut recovery = Recovery::new(Instant::EPOCH);
        (0..PACKETS).for_each(|pn| recovery.on_sent(packet(pn)));
        let holes: Vec<_> = (1..100).map(|n| n * 7..=n * 7).rev().collect();
        acked(&mut recovery, PACKETS, &holes);
        let repeat_two = |recovery: &mut Recovery| {
            let all: Vec<_> = recovery.in_flight_mut().map(|it| it.reinjected).collect();
            let first = all.iter().position(|it| !it)?;
            let (before, mut rest) = recovery.unrepeated_mut();
            assert_eq!(before, Bytes::kilo(first as u64), "as many as a walk finds");
            for packet in rest.by_ref().take(2) {
                assert!(!packet.reinjected);
                packet.reinjected = true;
            }
            assert_eq!(rest.count(), all.len().saturating_sub(first + 2));
            Some(())
        };
        let before = recovery.flight.looked_at;
        for _ in 0..200 {
            repeat_two(&mut recovery);
        }
        // Something repeated arrives after all: those that are left are looked at once more.
        acked(&mut recovery, PACKETS, std::slice::from_ref(&(0..=20)));
        while repeat_two(&mut recovery).is_some() {}
        let looked_at = recovery.flight.looked_at - before;
        assert!(looked_at < 2 * PACKETS as usize, "{looked_at}");
    }
}
