//! What is measured on purpose: when probes may leave, and what they and the rest told.
//!
//! Owns that probes take nothing away from data. What a train shows is the prober's to say, what
//! becomes of readings the monitor's.

use crate::monitor::Direction;
use tabane_base::{Bytes, Instant};

use super::Path;
use crate::probe::{LEAST, Probe, Report, Terms};
use crate::reading::{Counts, Reading};

impl Path {
    /// When a train of probes is due that may leave; `data_at` is when the session last carried
    /// data.
    pub(crate) fn probe_at(&self, data_at: Instant) -> Option<Instant> {
        self.may_probe().then(|| self.prober.due_at(data_at))?
    }

    /// Whether a train may take the place of a keep-alive.
    pub(crate) fn may_probe_instead(&self, now: Instant) -> bool {
        self.may_probe() && self.prober.allowed_at() <= now
    }

    fn may_probe(&self) -> bool {
        let pair = Bytes::new(LEAST * self.packet_size() as u64);
        // Through a byte stream packets come as its sender pleases, which says nothing of the link.
        self.is_active()
            && self.validated
            && !self.policies.metered()
            && !self.tuple.socket.is_ordered()
            && self.window_room() >= pair
    }

    /// A train of probes begins, if there is room for it.
    pub(crate) fn begin_probe(&mut self, now: Instant) -> Option<Probe> {
        let terms = Terms {
            packet: self.packet_size() as u64,
            room: self.window_room(),
        };
        self.prober.begin(now, terms)
    }

    /// A packet of the other end's train arrived.
    pub(crate) fn on_probe(&mut self, now: Instant, probe: Probe, size: usize) {
        if let Some(train) = self.prober.on_probe(now, probe, size as u64) {
            // The report rides with the acknowledgement, whose delay would blur the round trip.
            self.received.hasten(now);
            self.readings.on_train(Direction::In, train);
        }
    }

    /// The other end tells how a train arrived.
    pub(crate) fn on_probe_report(&mut self, now: Instant, report: Report) {
        if let Some(train) = self.prober.on_report(now, report) {
            self.readings.on_train(Direction::Out, train);
        }
    }

    /// What was measured since the last reading, if it is time for one.
    pub(crate) fn take_reading(&mut self, now: Instant) -> Option<Reading> {
        let counts = Counts {
            delivered: self.totals.acked,
            sent: self.totals.sent_packets,
            lost: self.lost_for_good(),
        };
        self.readings.take(now, (self.id, self.tuple), counts)
    }
}
