//! The packets of one path that wait for their fate, by number.
//!
//! Owns the numbers of a path, the places of those that wait, how much they are, and how little of
//! them is looked at for each acknowledgement, whatever the peer acknowledges. What settles a
//! packet is [`Recovery`](super::Recovery)'s business.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use tabane_base::Bytes;

use super::SentPacket;
use crate::id::PacketNumber;
use crate::ranges::RangeSet;

/// Where less than half as many wait, places and ranges of settled ones among those that wait,
/// which the peer may choose.
const MAX_SETTLED: usize = 4_096;

/// What is on its way and not settled.
#[derive(Debug, Default)]
pub(super) struct Flight {
    next: PacketNumber,
    /// The oldest first; `None` where a packet was settled, while there are not too many of them.
    /// Packets whose fate nobody asks for are not among them: a peer that acknowledges nothing
    /// must not make it grow.
    places: VecDeque<(PacketNumber, Option<SentPacket>)>,
    /// Of what is not older than the first of `places`, what need not be looked at again:
    /// acknowledged, or nobody asks for it.
    acked: RangeSet,
    bytes: Bytes,
    eliciting: usize,
    /// What was sent before this number has nothing left to repeat, and so much of it is under way.
    repeated: (PacketNumber, Bytes),
    /// Places that acknowledgements, and repeats before them, have had looked at.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

impl Flight {
    /// The number of the packet that leaves next.
    pub(super) const fn next(&self) -> PacketNumber {
        self.next
    }

    /// What counts against the window.
    pub(super) const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// How many ask for an answer.
    pub(super) const fn eliciting(&self) -> usize {
        self.eliciting
    }

    pub(super) fn push(&mut self, packet: SentPacket) {
        self.eliciting += usize::from(packet.ack_eliciting);
        if packet.in_flight {
            self.bytes += Bytes::new(packet.size.into());
        }
        self.places.push_back((self.next, Some(packet)));
        self.next = self.next.next();
    }

    /// A number is used for a packet whose fate nobody asks for.
    pub(super) fn skip(&mut self) {
        self.next = self.next.next();
    }

    /// How many places there are up to the packet `last`.
    pub(super) fn places_to(&self, last: PacketNumber) -> usize {
        self.places.partition_point(|(pn, _)| *pn <= last)
    }

    /// As [`places_to`](Self::places_to), of all.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// The packet at a place, if it still waits.
    pub(super) fn at(&self, place: usize) -> Option<(PacketNumber, &SentPacket)> {
        let (pn, packet) = &self.places[place];
        packet.as_ref().map(|packet| (*pn, packet))
    }

    /// Takes out the packet at a place. [`trim`](Self::trim) has to follow.
    pub(super) fn take(&mut self, place: usize) -> Option<(PacketNumber, SentPacket)> {
        let (pn, packet) = &mut self.places[place];
        let (pn, packet) = (*pn, packet.take()?);
        if packet.in_flight {
            let size = Bytes::new(packet.size.into());
            self.bytes -= size;
            if pn < self.repeated.0 {
                self.repeated.1 -= size;
            }
        }
        self.eliciting -= usize::from(packet.ack_eliciting);
        Some((pn, packet))
    }

    /// Takes out what `ranges`, which do not meet, acknowledge and had not acknowledged before.
    pub(super) fn acknowledge<'a>(
        &mut self,
        ranges: impl Iterator<Item = &'a RangeInclusive<u64>>,
        mut settle: impl FnMut(PacketNumber, SentPacket),
    ) {
        let base = self.base().0;
        let mut fresh = Vec::new();
        for range in ranges {
            let clipped = (*range.start()).max(base)..range.end() + 1;
            fresh.extend(self.acked.gaps(clipped));
        }
        for range in fresh {
            let mut place = self.places.partition_point(|(pn, _)| pn.0 < range.start);
            while (self.places.get(place)).is_some_and(|(pn, _)| pn.0 < range.end) {
                #[cfg(test)]
                {
                    self.looked_at += 1;
                }
                if let Some((pn, packet)) = self.take(place) {
                    settle(pn, packet);
                }
                place += 1;
            }
            self.acked.insert(range);
        }
        self.trim();
        if self.acked.len() > self.most_settled() {
            self.acked = self.settled();
        }
    }

    /// Gives up the places of those that were taken out.
    pub(super) fn trim(&mut self) {
        while let Some((_, None)) = self.places.front() {
            self.places.pop_front();
        }
        // One that is never settled must not keep the places of all behind it: whether it is lost
        // may be the peer's to show.
        if self.places.len() > self.eliciting + self.most_settled() {
            self.places.retain(|(_, packet)| packet.is_some());
        }
        self.acked.remove(0..self.base().0);
        if self.places.is_empty() {
            // Each was counted once, and settled once: less would let out more than the window,
            // and more would never be let out.
            let left = (self.bytes, self.eliciting);
            assert!(left == (Bytes::ZERO, 0), "nothing is on its way");
        }
    }

    /// Those that wait, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &SentPacket> {
        self.places.iter().filter_map(|(_, packet)| packet.as_ref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SentPacket> {
        self.places.iter_mut().filter_map(|(_, it)| it.as_mut())
    }

    /// Those from the first on that counts against the window and has not been repeated, and what
    /// is under way before it. A path that brings nothing has all it holds repeated, a few at a
    /// time, and those before are not looked at again for each few, nor for each answer of a peer
    /// that acknowledges in crumbs.
    pub(super) fn unrepeated_mut(&mut self) -> (Bytes, impl Iterator<Item = &mut SentPacket>) {
        let end = self.repeated.0;
        let mut place = self.places.partition_point(|(pn, _)| *pn < end);
        while place < self.places.len() {
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            let (pn, packet) = &self.places[place];
            match packet {
                Some(packet) if packet.in_flight && !packet.reinjected => break,
                Some(packet) if packet.in_flight => {
                    self.repeated.1 += Bytes::new(packet.size.into());
                }
                _ => {}
            }
            self.repeated.0 = pn.next();
            place += 1;
        }
        let rest = self.places.range_mut(place..);
        (self.repeated.1, rest.filter_map(|(_, it)| it.as_mut()))
    }

    /// The number of the oldest packet that waits.
    fn base(&self) -> PacketNumber {
        self.places.front().map_or(self.next, |(pn, _)| *pn)
    }

    fn most_settled(&self) -> usize {
        MAX_SETTLED.max(2 * self.eliciting)
    }

    /// All numbers but those of packets that wait: in no more ranges than these are, and one.
    fn settled(&self) -> RangeSet {
        let mut settled = RangeSet::default();
        let mut from = self.base().0;
        for (pn, _) in self.places.iter().filter(|(_, packet)| packet.is_some()) {
            settled.insert(from..pn.0);
            from = pn.0 + 1;
        }
        settled.insert(from..self.next.0);
        settled
    }

    /// How many ranges are kept of what was acknowledged.
    #[cfg(test)]
    pub(super) fn acked(&self) -> usize {
        self.acked.len()
    }
}
