//! Which pieces of a stream are on their way, and when they should arrive.
//!
//! Kept for a receiver with little memory alone. What stands behind a piece that comes late has to
//! be held, and what finds no room is thrown away: so before a piece leaves that would arrive too
//! far ahead of a late one, the late one leaves again by the same path (opportunistic
//! retransmission: Raiciu et al., "How hard can it be?", NSDI 2012).

use std::collections::BTreeMap;
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
pub(crate) struct Flights(BTreeMap<u64, Flight>);

impl Flights {
    /// A piece leaves.
    pub(crate) fn insert(&mut self, range: Range<u64>, arrives_at: Instant) {
        if range.start < range.end {
            let end = range.end;
            self.0.insert(range.start, Flight { end, arrives_at });
        }
    }

    /// What began in `range` has arrived, or is lost.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        while let Some((start, _)) = self.0.range(range.clone()).next() {
            let start = *start;
            self.0.remove(&start);
        }
    }

    /// The first piece before `offset` that arrives after `moment`.
    pub(crate) fn late(&self, offset: u64, moment: Instant) -> Option<Range<u64>> {
        let before = self.0.range(..offset);
        before
            .filter(|(_, flight)| flight.arrives_at > moment + MARGIN)
            .map(|(start, flight)| *start..flight.end)
            .next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
