//! Packet pairs and short trains on one path [P-10]: when they leave, and what comes of them.
//!
//! A train is a few full packets sent back to back; how far apart they arrive tells the rate of
//! the bottleneck (SBAM eq. 4). Owns the budget, the length of trains, which of our trains are out,
//! what arrives of the other end's, and the estimate. Building packets is the session's affair.
//!
//! # When
//! All trains of a direction together stay below [`SHARE`] of its rate, whatever happens. Within
//! that, a path is measured every [`INTERVAL`] while the session carries data. When it carries
//! none, a train takes the place of a keep-alive that would leave anyway: a radio is never woken
//! for the sake of measuring (LTE's falls asleep after some 10 s; a timer of our own would keep it
//! up all day). A train asks the other end to answer with one of its own, so that one waking serves
//! both directions. On a path that either end calls metered, nothing is probed.
//!
//! # How long
//! Two packets, as in the paper, where they are far enough apart for clocks and interrupts; as
//! many as pass in [`SPREAD`] on faster links. Each packet is a byte longer than the one before:
//! the kernel joins equal ones, and a shorter one to those before it, on either side (GSO, GRO),
//! and what is joined has one arrival time.

use std::collections::VecDeque;

use crate::monitor::{PairFilter, Train};
use tabane_base::{Bytes, Duration, Instant, Rate};

/// The part of a link's rate that trains may take, answers to them included: 0.1 %, of which the
/// acknowledgements and reports of the other end's trains, and the first trains, of a link whose
/// rate is not known yet, are left three tenths.
const SHARE: f64 = 0.0007;
/// A train leaves no sooner after the last: a pair each so often is 0.1 % of 5 Mbit/s.
const INTERVAL: Duration = Duration::from_secs(5);
/// Until there are [`FEW`] samples, so that an estimate does not take a minute.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
const FEW: usize = 4;
/// Trains that were asked for are at least so far apart, so that each finds an empty queue.
const REQUESTED_INTERVAL: Duration = Duration::from_millis(20);
/// Of the time between trains that were asked for, the trains take one part in so many.
const REQUESTED_PART: u32 = 4;
/// Trains that were asked for and not sent; more are forgotten.
const REQUESTED_MAX: u32 = 64;
/// How far apart the first and last packet of a train should arrive: ten times what interrupt
/// moderation and a scheduler's whim displace one by (some 50 µs).
const SPREAD: Duration = Duration::from_micros(500);
/// Packets in the shortest train; in the longest, 47 kB: less than any queue at 1 Gbit/s.
pub(crate) const LEAST: u64 = 2;
pub(crate) const MOST: u64 = 32;
/// What a link is taken for before anything is known of it.
const UNKNOWN: Rate = Rate::from_mbps(1);
/// What it is at least when trains arrive without any spacing.
const BATCHED: Rate = Rate::from_mbps(100);
/// Trains whose report is awaited.
const OUTSTANDING: usize = 8;

/// How much a train wishes for another one back [P-10.5].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It is an answer itself.
    Nothing,
    /// If the other end's budget allows.
    WithinBudget,
    /// In any case: the user asked.
    InAnyCase,
}

impl Wish {
    pub(crate) const fn to_wire(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::WithinBudget => 1,
            Self::InAnyCase => 2,
        }
    }

    /// What later versions may wish counts as nothing.
    pub(crate) const fn from_wire(value: u64) -> Self {
        match value {
            1 => Self::WithinBudget,
            2 => Self::InAnyCase,
            _ => Self::Nothing,
        }
    }
}

/// A packet of a train, as its frame tells [P-10.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) id: u64,
    pub(crate) index: u64,
    pub(crate) count: u64,
    pub(crate) wish: Wish,
}

/// How a train arrived [P-10.4].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) id: u64,
    pub(crate) packets: u64,
    /// UDP payload of all packets but the first.
    pub(crate) bytes: u64,
    pub(crate) spacing: Duration,
}

/// What decides about the next train, besides what the prober knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// UDP payload of a full packet.
    pub(crate) packet: u64,
    /// What the window lets out.
    pub(crate) room: Bytes,
}

/// A train that is out.
#[derive(Clone, Copy, Debug)]
struct Sent {
    id: u64,
    packets: u64,
    bytes: u64,
}

/// A train that is coming in.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    id: u64,
    next: u64,
    bytes: u64,
    first_at: Instant,
}

/// The prober of one path.
#[derive(Debug)]
pub(crate) struct Prober {
    /// IP and UDP headers of a packet.
    headers: u64,
    next_id: u64,
    outstanding: VecDeque<Sent>,
    /// Trains asked for and not sent yet.
    requested: u32,
    /// The other end waits for a train.
    owed: bool,
    /// When the last train left, or the path began.
    last_at: Instant,
    /// IP bytes of the last train.
    last_cost: Bytes,
    out: PairFilter,
    back: PairFilter,
    arriving: Option<Arriving>,
    report: Option<Report>,
}

impl Prober {
    /// For a path that begins at `now` and whose packets have `headers` bytes of IP and UDP.
    pub(crate) fn new(now: Instant, headers: u64) -> Self {
        Self {
            headers,
            next_id: 0,
            outstanding: VecDeque::with_capacity(OUTSTANDING),
            requested: 0,
            owed: false,
            last_at: now,
            last_cost: Bytes::ZERO,
            out: PairFilter::default(),
            back: PairFilter::default(),
            arriving: None,
            report: None,
        }
    }

    /// The path leads elsewhere.
    pub(crate) fn reset(&mut self, now: Instant) {
        *self = Self {
            next_id: self.next_id,
            requested: self.requested,
            ..Self::new(now, self.headers)
        };
    }

    /// Somebody wants to know: `trains` more, budget or not.
    pub(crate) fn request(&mut self, trains: u32) {
        self.requested = self.requested.saturating_add(trains).min(REQUESTED_MAX);
    }

    /// When a train is due by itself. `data_at` is when the session last carried data.
    pub(crate) fn due_at(&self, data_at: Instant) -> Option<Instant> {
        if self.owed {
            return Some(self.last_at);
        }
        if self.requested > 0 {
            let busy = self.rate().time_for(self.last_cost);
            let spacing = busy.saturating_mul(REQUESTED_PART).max(REQUESTED_INTERVAL);
            return Some(self.last_at + spacing);
        }
        let is_new = self.next_id == 0;
        (is_new || data_at > self.last_at).then(|| self.allowed_at())
    }

    /// From when on the budget allows another train.
    pub(crate) fn allowed_at(&self) -> Instant {
        let interval = match self.out.samples() {
            0..FEW => FIRST_INTERVAL,
            _ => INTERVAL,
        };
        let budget = self.rate().scaled(SHARE).time_for(self.last_cost);
        self.last_at + interval.max(budget)
    }

    /// How many packets the next train has; `None` when the window has no room for a pair.
    fn packets(&self, terms: Terms) -> Option<u64> {
        let wire = terms.packet + self.headers;
        let spread = self.rate().amount_in(SPREAD).get().div_ceil(wire.max(1));
        let room = terms.room.get() / terms.packet.max(1);
        let packets = match self.out.samples() {
            // Nothing is known: the least that tells something.
            0 => LEAST,
            _ => spread.saturating_add(1).clamp(LEAST, MOST),
        };
        Some(packets.min(room)).filter(|packets| *packets >= LEAST)
    }

    /// A train leaves: what its packets say, index 0 first. `None` when there is no room.
    pub(crate) fn begin(&mut self, now: Instant, terms: Terms) -> Option<Probe> {
        let count = self.packets(terms)?;
        let wish = match (self.owed, self.requested) {
            (true, _) => Wish::Nothing,
            (false, 0) => Wish::WithinBudget,
            (false, _) => Wish::InAnyCase,
        };
        if !std::mem::take(&mut self.owed) {
            self.requested = self.requested.saturating_sub(1);
        }
        let id = self.next_id;
        self.next_id += 1;
        if self.outstanding.len() >= OUTSTANDING {
            self.outstanding.pop_front();
        }
        let size = |index| packet_size(terms.packet, index, count);
        self.outstanding.push_back(Sent {
            id,
            packets: count,
            bytes: (1..count).map(size).sum(),
        });
        self.last_at = now;
        self.last_cost = Bytes::new((0..count).map(|i| size(i) + self.headers).sum());
        Some(Probe {
            id,
            index: 0,
            count,
            wish,
        })
    }

    /// A packet of `size` bytes of the other end's train; the train once it is complete. Then a
    /// report is owed, best with an acknowledgement at once.
    pub(crate) fn on_probe(&mut self, now: Instant, probe: Probe, size: u64) -> Option<Train> {
        if probe.index == 0 {
            self.arriving = Some(Arriving {
                id: probe.id,
                next: 1,
                bytes: 0,
                first_at: now,
            });
            return None;
        }
        // One that lost a packet, or came out of order, tells nothing.
        let mut train = self.arriving.take()?;
        if (train.id, train.next) != (probe.id, probe.index) {
            return None;
        }
        train.next += 1;
        train.bytes += size;
        if train.next < probe.count {
            self.arriving = Some(train);
            return None;
        }
        self.report = Some(Report {
            id: train.id,
            packets: train.next,
            bytes: train.bytes,
            spacing: now.since(train.first_at),
        });
        self.owed |= match probe.wish {
            Wish::Nothing => false,
            Wish::WithinBudget => self.allowed_at() <= now,
            Wish::InAnyCase => true,
        };
        let whole = self.whole(train.bytes, train.next, now.since(train.first_at));
        self.back.on_train(now, whole);
        Some(whole)
    }

    /// The report that is owed; considered sent.
    pub(crate) fn take_report(&mut self) -> Option<Report> {
        self.report.take()
    }

    /// How one of our trains arrived. What does not fit what was sent is not believed.
    pub(crate) fn on_report(&mut self, now: Instant, report: Report) -> Option<Train> {
        let at = self
            .outstanding
            .iter()
            .position(|sent| sent.id == report.id)?;
        let sent = self.outstanding.remove(at)?;
        if (sent.packets, sent.bytes) != (report.packets, report.bytes) {
            return None;
        }
        let train = self.whole(sent.bytes, sent.packets, report.spacing);
        self.out.on_train(now, train);
        Some(train)
    }

    /// The bottleneck's bandwidth away from here.
    pub(crate) fn bandwidth_out(&self) -> Option<Rate> {
        self.out.bandwidth()
    }

    /// The same towards here.
    pub(crate) fn bandwidth_in(&self) -> Option<Rate> {
        self.back.bandwidth()
    }

    /// Sizes at IP level.
    fn whole(&self, bytes: u64, packets: u64, spacing: Duration) -> Train {
        let headers = (packets - 1) * self.headers;
        Train {
            bytes: Bytes::new(bytes + headers),
            spacing,
        }
    }

    /// What to reckon the link at.
    fn rate(&self) -> Rate {
        match (self.out.bandwidth(), self.out.samples()) {
            (Some(rate), _) => rate,
            (None, 0) => UNKNOWN,
            (None, _) => BATCHED,
        }
    }
}

/// UDP payload of packet `index` of a train of `count`: the last one is full, each before it a
/// byte shorter than the next.
pub(crate) const fn packet_size(packet: u64, index: u64, count: u64) -> u64 {
    packet - (count - 1 - index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        packet: 1_472,
        room: Bytes::mega(1),
    };

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Sends a train that arrives whole over a link of `rate`, and hears of it.
    fn measure(prober: &mut Prober, now: Instant, rate: Rate) -> Option<Train> {
        let train = prober.begin(now, TERMS)?;
        let sizes = 1..train.count;
        let bytes: u64 = sizes
            .map(|i| packet_size(TERMS.packet, i, train.count))
            .sum();
        let report = Report {
            id: train.id,
            packets: train.count,
            bytes,
            spacing: rate.time_for(Bytes::new(bytes + 28 * (train.count - 1))),
        };
        prober.on_report(now, report)
    }

    #[test]
    fn trains_are_pairs_on_slow_links_and_long_enough_on_fast_ones() {
        for (mbps, packets) in [(1, 2), (10, 2), (50, 4), (100, 6), (500, 22), (10_000, 32)] {
            let mut prober = Prober::new(at(0), 28);
            let rate = Rate::from_mbps(mbps);
            measure(&mut prober, at(1_000), rate).expect("what was sent is believed");
            let found = prober.bandwidth_out().map_or(0.0, Rate::as_mbps_f64);
            assert!((found / mbps as f64 - 1.0).abs() < 0.001, "{found}");
            let next = prober.begin(at(9_000), TERMS).expect("there is room");
            assert_eq!(next.count, packets, "{mbps} Mbit/s");
        }
        let mut prober = Prober::new(at(0), 28);
        let room = Bytes::new(2_000);
        assert_eq!(prober.begin(at(0), Terms { room, ..TERMS }), None);
    }

    #[test]
    fn the_budget_spaces_trains_out_and_a_request_does_not_wait_for_it() {
        let mut prober = Prober::new(at(0), 28);
        assert_eq!(prober.due_at(at(0)), Some(at(1_000)));
        let slow = Rate::from_bps(256_000);
        measure(&mut prober, at(1_000), slow);
        // 3 kB of 256 kbit/s: a thousandth of that rate brings them in 94 s.
        let next = prober.due_at(at(1_001)).expect("data was carried");
        assert!(next > at(95_000) && next < at(140_000), "{next}");
        assert_eq!(prober.due_at(at(1_000)), None, "no data since");
        prober.request(1);
        let next = prober.due_at(at(1_000)).expect("it was asked for");
        assert!(next < at(1_500), "{next}");
    }

    #[test]
    fn only_whole_trains_in_order_are_reported_and_answered() {
        let mut prober = Prober::new(at(0), 28);
        let probe = |id, index, wish| Probe {
            id,
            index,
            count: 3,
            wish,
        };
        let arrivals = [
            // The second packet is lost; then two come in the wrong order; then all is well.
            (0, 0),
            (0, 2),
            (1, 0),
            (1, 2),
            (1, 1),
            (2, 0),
            (2, 1),
        ];
        for (id, index) in arrivals {
            let probe = probe(id, index, Wish::InAnyCase);
            assert_eq!(prober.on_probe(at(id), probe, 1_000), None);
        }
        assert_eq!(prober.take_report(), None);
        let train = prober.on_probe(at(5), probe(2, 2, Wish::InAnyCase), 1_001);
        let expected = Train {
            bytes: Bytes::new(2_001 + 2 * 28),
            spacing: Duration::from_millis(3),
        };
        assert_eq!(train, Some(expected));
        let report = prober.take_report().expect("it is whole");
        assert_eq!((report.id, report.packets, report.bytes), (2, 3, 2_001));
        let answer = prober.begin(at(5), TERMS).expect("it was wished for");
        assert_eq!(answer.wish, Wish::Nothing);
        // One that came alone, of a train that says it has one packet, or none.
        for count in [0, 1] {
            let alone = Probe {
                count,
                ..probe(3, 0, Wish::InAnyCase)
            };
            assert_eq!(prober.on_probe(at(6), alone, 1_000), None);
        }
    }

    #[test]
    fn a_report_that_does_not_fit_is_not_believed() {
        let mut prober = Prober::new(at(0), 28);
        let sent = prober.begin(at(0), TERMS).expect("there is room");
        let report = Report {
            id: sent.id,
            packets: sent.count,
            bytes: u64::MAX,
            spacing: Duration::from_nanos(1),
        };
        assert_eq!(prober.on_report(at(1), report), None);
        assert_eq!(prober.on_report(at(1), Report { id: 99, ..report }), None);
        assert_eq!(prober.bandwidth_out(), None);
    }

    #[test]
    fn trains_without_any_spacing_are_no_estimate_and_the_next_is_longer() {
        let mut prober = Prober::new(at(0), 28);
        measure(&mut prober, at(0), Rate::MAX);
        assert_eq!(prober.bandwidth_out(), None);
        let next = prober.begin(at(9_000), TERMS).expect("there is room");
        assert!(next.count > LEAST, "{next:?}");
    }
}
