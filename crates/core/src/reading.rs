//! What a session measures, on its way to whoever watches links: plain values, added up per path
//! until they are taken.
//!
//! Owns nothing that a decision of the session rests on. A driver that takes no readings costs
//! nothing: the sums stay where they are.

use crate::monitor::{Direction, Train};
use tabane_base::{Bytes, Duration, Instant};

use crate::id::{FourTuple, PathId};

/// Readings of a path are no more frequent, so that taking them after every packet is cheap.
const INTERVAL: Duration = Duration::from_millis(10);
/// Trains kept until the next reading; more come only when nobody takes any.
const TRAINS: usize = 4;

/// What was measured on one path since its last reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The path.
    pub path: PathId,
    /// Its addresses.
    pub tuple: FourTuple,
    /// The last round trip without the peer's delay, and the least.
    pub round_trip: Option<(Duration, Duration)>,
    /// When the packet acknowledged last left, by our clock, and arrived, by the peer's.
    pub one_way: Option<(Instant, Instant)>,
    /// UDP payload acknowledged.
    pub delivered: Bytes,
    /// Packets sent.
    pub sent: u64,
    /// Packets counted as lost, less those that arrived after all.
    pub lost: u64,
    /// Packets sent back to back, as they arrived there or here.
    pub trains: Vec<(Direction, Train)>,
}

/// What one path has measured and nobody has taken.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    round_trip: Option<(Duration, Duration)>,
    one_way: Option<(Instant, Instant)>,
    trains: Vec<(Direction, Train)>,
    taken_at: Instant,
    /// Totals at that time.
    taken: Counts,
}

/// Totals of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) delivered: Bytes,
    pub(crate) sent: u64,
    pub(crate) lost: u64,
}

impl Readings {
    /// An answer came: its round trip, and when what it answers left and arrived.
    pub(crate) fn on_answer(&mut self, rtt: Duration, one_way: (Instant, Instant)) {
        let least = self.round_trip.map_or(rtt, |(_, least)| least.min(rtt));
        self.round_trip = Some((rtt, least));
        self.one_way = Some(one_way);
    }

    pub(crate) fn on_train(&mut self, direction: Direction, train: Train) {
        if self.trains.len() < TRAINS {
            self.trains.push((direction, train));
        }
    }

    /// What came since the last time, if it is time.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        (path, tuple): (PathId, FourTuple),
        totals: Counts,
    ) -> Option<Reading> {
        let is_due = self.round_trip.is_some() && self.taken_at + INTERVAL <= now;
        if self.trains.is_empty() && !is_due {
            return None;
        }
        let before = std::mem::replace(&mut self.taken, totals);
        self.taken_at = now;
        Some(Reading {
            path,
            tuple,
            round_trip: self.round_trip.take(),
            one_way: self.one_way.take(),
            delivered: totals.delivered - before.delivered,
            sent: totals.sent.saturating_sub(before.sent),
            lost: totals.lost.saturating_sub(before.lost),
            trains: std::mem::take(&mut self.trains),
        })
    }
}
