//! What a session does, packet by packet, for who wants to see why.
//!
//! Owns a bounded record, kept only while somebody asks for it. What it is written as is the
//! reader's affair; times are the session's own.

use std::collections::VecDeque;

use tabane_base::Instant;

use crate::id::{PacketNumber, PathId};
use crate::path::{News, Path};
use crate::recovery::Settled;
use crate::snapshot::{PathStatus, TraceMetrics};

mod frames;

pub use frames::TracedFrame;
pub(crate) use frames::traced_frames;

/// One thing that happened on one path.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEvent {
    /// When.
    pub at: Instant,
    /// Where.
    pub path: PathId,
    /// What.
    pub what: Traced,
}

/// What happened. Sizes are bytes of UDP payload; numbers are those of the path's own space.
#[derive(Clone, Debug, PartialEq)]
pub enum Traced {
    /// A packet left.
    Sent {
        /// Its number.
        pn: PacketNumber,
        /// Its size.
        size: u16,
        /// Whether it asks for acknowledgement.
        eliciting: bool,
        /// What is in it.
        frames: Vec<TracedFrame>,
    },
    /// A packet came that was authentic and new.
    Received {
        /// Its number.
        pn: PacketNumber,
        /// Its size.
        size: u16,
        /// What is in it.
        frames: Vec<TracedFrame>,
    },
    /// Packets sent on this path were acknowledged, over whichever path the news came.
    Acked {
        /// The first number of a run of them.
        first: PacketNumber,
        /// The last, included.
        last: PacketNumber,
    },
    /// A packet was taken for lost.
    Lost {
        /// Its number.
        pn: PacketNumber,
        /// Its size.
        size: u16,
    },
    /// What the controller came to.
    Metrics(TraceMetrics),
    /// Where the path stands now.
    Status(PathStatus),
}

/// What was recorded since it was last taken.
#[derive(Clone, Debug, Default)]
pub struct TraceLog {
    /// In order.
    pub events: Vec<TraceEvent>,
    /// How many were forgotten before those, for want of room.
    pub missed: u64,
}

/// A record of the latest events.
#[derive(Debug)]
pub(crate) struct Trace {
    events: VecDeque<TraceEvent>,
    capacity: usize,
    missed: u64,
    /// What was last told of each path.
    metrics: Vec<(PathId, TraceMetrics)>,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            events: VecDeque::new(),
            capacity: capacity.max(1),
            missed: 0,
            metrics: Vec::new(),
        }
    }

    pub(crate) fn record(&mut self, at: Instant, path: PathId, what: Traced) {
        if self.events.len() == self.capacity {
            self.events.pop_front();
            self.missed += 1;
        }
        self.events.push_back(TraceEvent { at, path, what });
    }

    /// What a path reports of its packets and itself, before anybody acts on it.
    pub(crate) fn record_news(&mut self, now: Instant, path: &Path, news: &News) {
        for (first, last) in runs(&news.acked) {
            self.record(now, path.id(), Traced::Acked { first, last });
        }
        for Settled { pn, packet, .. } in &news.lost {
            let (pn, size) = (*pn, packet.size);
            self.record(now, path.id(), Traced::Lost { pn, size });
        }
        if news.up {
            self.record(now, path.id(), Traced::Status(PathStatus::Active));
        }
        if news.down.is_some() {
            self.record(now, path.id(), Traced::Status(PathStatus::Silent));
        }
        let metrics = path.trace_metrics();
        let told = self.metrics.iter_mut().find(|(id, _)| *id == path.id());
        match told {
            Some((_, told)) if *told == metrics => return,
            Some((_, told)) => *told = metrics,
            None => self.metrics.push((path.id(), metrics)),
        }
        self.record(now, path.id(), Traced::Metrics(metrics));
    }

    pub(crate) fn take(&mut self) -> TraceLog {
        TraceLog {
            events: self.events.drain(..).collect(),
            missed: std::mem::take(&mut self.missed),
        }
    }
}

/// Acknowledged packets as runs of numbers: first and last.
fn runs(acked: &[Settled]) -> Vec<(PacketNumber, PacketNumber)> {
    let mut numbers: Vec<PacketNumber> = acked.iter().map(|settled| settled.pn).collect();
    numbers.sort_unstable();
    numbers
        .chunk_by(|a, b| a.next() == *b)
        .filter_map(|run| Some((*run.first()?, *run.last()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_are_forgotten_and_counted() {
        let mut trace = Trace::new(2);
        let sent = |pn| Traced::Sent {
            pn: PacketNumber(pn),
            size: 1200,
            eliciting: true,
            frames: Vec::new(),
        };
        for pn in 0..5 {
            trace.record(Instant::EPOCH, PathId(0), sent(pn));
        }
        let log = trace.take();
        assert_eq!(log.missed, 3);
        let whats: Vec<Traced> = log.events.into_iter().map(|event| event.what).collect();
        assert_eq!(whats, [sent(3), sent(4)]);
        assert!(trace.take().events.is_empty());
    }
}
