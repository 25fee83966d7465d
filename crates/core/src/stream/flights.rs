//! Which pieces of a stream are on their way, and when they should arrive.
//!
//! Kept for a receiver with little memory alone. What stands behind a piece that comes late has to
//! be held, and what finds no room is thrown away: so before a piece leaves that would arrive too
//! far ahead of a late one, the late one leaves again by the same path (opportunistic
//! retransmission: Raiciu et al., "How hard can it be?", NSDI 2012).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tabane_base::{Duration, Instant};

/// Arriving earlier by less than this is not worth the bytes.
const MARGIN: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
struct Flight {
    end: u64,
    arrives_at: Instant,
}

/// Pieces on their way, by their first offset. One that is given out again replaces its former
/// self, and pieces are cut alike; where they overlap, one too many is remembered until the other
/// is acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    all: BTreeMap<u64, Flight>,
    /// Where those begin that arrive later than all in front of them, and when: the first that is
    /// late is one of these, and found without a look at the others, for every packet.
    latest: VecDeque<(u64, Instant)>,
}

impl Flights {
    /// A piece leaves.
    pub(crate) fn insert(&mut self, range: Range<u64>, arrives_at: Instant) {
        if range.start >= range.end {
            return;
        }
        let Range { start, end } = range;
        if self.all.insert(start, Flight { end, arrives_at }).is_some() {
            self.forget(start);
        }
        let place = self.place(start);
        if !self.is_later(place, arrives_at) {
            return;
        }
        let earlier = self.latest.range(place..);
        let earlier = earlier.take_while(|(_, at)| *at <= arrives_at).count();
        self.latest.drain(place..place + earlier);
        self.latest.insert(place, (start, arrives_at));
    }

    /// What began in `range` has arrived, or is lost.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        while let Some((start, _)) = self.all.range(range.clone()).next() {
            let start = *start;
            self.all.remove(&start);
            self.forget(start);
        }
    }

    /// The first piece before `offset` that arrives after `moment`.
    pub(crate) fn late(&self, offset: u64, moment: Instant) -> Option<Range<u64>> {
        let in_time = |(_, at): &(u64, Instant)| *at <= moment + MARGIN;
        let (start, _) = *self.latest.get(self.latest.partition_point(in_time))?;
        let flight = self.all.get(&start).filter(|_| start < offset)?;
        Some(start..flight.end)
    }

    /// The first place among the latest for who does not begin before `start`.
    fn place(&self, start: u64) -> usize {
        self.latest.partition_point(|(other, _)| *other < start)
    }

    /// Whether who arrives at `at` does so later than the one before that place.
    fn is_later(&self, place: usize, at: Instant) -> bool {
        let before = place.checked_sub(1).map(|before| self.latest[before].1);
        before.is_none_or(|before| before < at)
    }

    /// What begins at `start` is not what it was. If it was among the latest, those are now that
    /// were in its shadow.
    fn forget(&mut self, start: u64) {
        let mut place = self.place(start);
        if self
            .latest
            .get(place)
            .is_none_or(|(other, _)| *other != start)
        {
            return;
        }
        self.latest.remove(place);
        let end = self.latest.get(place).map_or(u64::MAX, |(next, _)| *next);
        for (other, flight) in self.all.range(start + 1..end) {
            if self.is_later(place, flight.arrives_at) {
                self.latest.insert(place, (*other, flight.arrives_at));
                place += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    /// With so many pieces on their way, what it takes to ask a thousand times which is late.
    #[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
    fn asked(pieces: u64) -> std::time::Duration {
        let mut flights = Flights::default();
        for piece in 0..pieces {
            let at = Instant::from_millis(piece);
            flights.insert(piece * 1_000..(piece + 1) * 1_000, at);
        }
        let since = std::time::Instant::now();
        for _ in 0..1_000 {
            let late = flights.late(u64::MAX, Instant::from_millis(pieces));
            assert_eq!(std::hint::black_box(late), None);
        }
        since.elapsed()
    }

    #[test]
    fn pieces_that_are_in_time_are_not_looked_through_for_each_packet() {
        let rounds = (0..20).map(|_| (asked(1), asked(10_000)));
        let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
        let (one, all) = least.expect("twenty");
        println!("1,000 questions: {one:?} of one piece, {all:?} of 10,000");
        assert!(all < 20 * one.max(std::time::Duration::from_micros(1)));
    }

    #[test]
    fn the_first_late_piece_is_the_one_that_a_walk_finds() {
        for seed in 0..50 {
            let mut rng = Seed(seed).rng("flights");
            let mut flights = Flights::default();
            for step in 0..400 {
                let start = rng.below(60) * 10;
                match rng.below(3) {
                    0 => flights.remove(start..start + 10 * rng.below(4)),
                    _ => {
                        let at = Instant::from_millis(step / 4 + rng.below(50));
                        flights.insert(start..start + 10, at);
                    }
                }
                let (offset, moment) = (rng.below(700), Instant::from_millis(rng.below(150)));
                let walk = flights
                    .all
                    .range(..offset)
                    .find(|(_, it)| it.arrives_at > moment + MARGIN);
                let walk = walk.map(|(start, it)| *start..it.end);
                assert_eq!(
                    flights.late(offset, moment),
                    walk,
                    "seed {seed} step {step}"
                );
            }
        }
    }

    #[test]
    fn the_first_late_piece_is_named_until_it_is_sent_again_or_arrives() {
        let at = Instant::from_millis;
        let mut flights = Flights::default();
        flights.insert(0..10, at(20));
        flights.insert(10..20, at(100));
        flights.insert(20..30, at(90));
        assert_eq!(flights.late(40, at(30)), Some(10..20));
        assert_eq!(flights.late(40, at(100)), None);
        assert_eq!(flights.late(10, at(30)), None);
        flights.insert(10..20, at(30));
        assert_eq!(flights.late(40, at(30)), Some(20..30));
        flights.remove(20..30);
        assert_eq!(flights.late(40, at(30)), None);
    }
}
