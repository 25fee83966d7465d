//! What is measured on purpose: when probes may leave, and what they and the rest told.
//!
//! Owns that probes take nothing away from data. What a train shows is the prober's to say, what
//! becomes of readings the monitor's, what a question tells of the round trip is its own file's.

mod round_trip;

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::Path;
use crate::monitor::Direction;
use crate::probe::{LEAST, Probe, Prober, Report, Terms};
use crate::reading::{Counts, Reading, Readings};
pub(crate) use round_trip::QUESTION_SIZE;
use round_trip::RoundTrip;

/// IPv4 and UDP headers of a packet; IPv6 has 20 bytes more.
const IP_UDP_HEADERS: u64 = 28;

/// What is measured, and decides nothing by itself.
#[derive(Debug)]
pub(super) struct Measuring {
    prober: Prober,
    readings: Readings,
    round_trip: RoundTrip,
}

impl Measuring {
    /// `headers` are the bytes that IP packets there have beyond those of IPv4.
    pub(super) fn new(now: Instant, headers: u16) -> Self {
        Self {
            prober: Prober::new(now, IP_UDP_HEADERS + u64::from(headers)),
            readings: Readings::default(),
            round_trip: RoundTrip::new(),
        }
    }

    /// The path leads elsewhere.
    pub(super) fn reset(&mut self, now: Instant) {
        self.round_trip.reset();
        self.prober.reset(now);
    }

    /// An answer came: its round trip without the peer's delay, and when what it answers left and
    /// arrived.
    pub(super) fn on_answer(&mut self, round_trip: Duration, one_way: (Instant, Instant)) {
        self.readings.on_answer(round_trip, one_way);
    }

    /// The path alone took so long, there and back.
    pub(super) fn on_sample(&mut self, now: Instant, round_trip: Duration) {
        self.round_trip.on_sample(now, round_trip);
    }

    /// How long it took of late, and the least.
    pub(super) fn round_trip(&self) -> Option<(Duration, Duration)> {
        self.round_trip.known()
    }

    /// The bottleneck's bandwidth away from here and towards here, by packet pairs.
    pub(super) fn pairs(&self) -> (Option<Rate>, Option<Rate>) {
        (self.prober.bandwidth_out(), self.prober.bandwidth_in())
    }
}

impl Path {
    /// When a train of probes is due that may leave; `data_at` is when the session last carried
    /// data.
    pub(crate) fn probe_at(&self, data_at: Instant) -> Option<Instant> {
        self.may_probe()
            .then(|| self.measuring.prober.due_at(data_at))?
    }

    /// Whether a train may take the place of a keep-alive.
    pub(crate) fn may_probe_instead(&self, now: Instant) -> bool {
        self.may_probe() && self.measuring.prober.allowed_at() <= now
    }

    fn may_probe(&self) -> bool {
        let pair = Bytes::new(LEAST * self.packet_size() as u64);
        // Through a byte stream packets come as its sender pleases, which says nothing of the link.
        self.is_active()
            && self.address.is_validated()
            && !self.policies.metered()
            && !self.address.is_ordered()
            && self.window_room() >= pair
    }

    /// A train of probes begins, if there is room for it.
    pub(crate) fn begin_probe(&mut self, now: Instant) -> Option<Probe> {
        let terms = Terms {
            packet: self.packet_size() as u64,
            room: self.window_room(),
        };
        self.measuring.prober.begin(now, terms)
    }

    /// A packet of the other end's train arrived.
    pub(crate) fn on_probe(&mut self, now: Instant, probe: Probe, size: usize) {
        if let Some(train) = self.measuring.prober.on_probe(now, probe, size as u64) {
            // The report rides with the acknowledgement, whose delay would blur the round trip.
            self.acks.hasten(now);
            self.measuring.readings.on_train(Direction::In, train);
        }
    }

    /// The other end tells how a train arrived.
    pub(crate) fn on_probe_report(&mut self, now: Instant, report: Report) {
        if let Some(train) = self.measuring.prober.on_report(now, report) {
            self.measuring.readings.on_train(Direction::Out, train);
        }
    }

    pub(crate) fn request_probes(&mut self, trains: u32) {
        self.measuring.prober.request(trains);
    }

    pub(crate) fn take_probe_report(&mut self) -> Option<Report> {
        self.measuring.prober.take_report()
    }

    /// What was measured since the last reading, if it is time for one.
    pub(crate) fn take_reading(&mut self, now: Instant) -> Option<Reading> {
        let counts = Counts {
            delivered: self.totals.acked,
            sent: self.totals.sent_packets,
            lost: self.totals.lost_for_good(),
        };
        self.measuring
            .readings
            .take(now, (self.id, self.tuple()), counts)
    }
}
