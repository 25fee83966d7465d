//! Everything that is known of one path, and how each piece of news changes it.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::pair::{PairFilter, Train};
use super::round_trip::RoundTrip;
use super::traffic::Traffic;

/// Weight of a new one-way delay: one eighth, as for round trips in RFC 6298.
const FORWARD_SHIFT: u32 = 3;

/// How samples become estimates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MonitorSettings {
    /// α of SBAM eq. 3, the weight of the past, 0 to 1. The paper's 0.9 moves by a tenth of each
    /// difference; RFC 9002 §5.3 has the same filter at 0.875.
    pub alpha: f64,
    /// Over which time the least round trip is kept.
    pub rtt_window: Duration,
}

impl Default for MonitorSettings {
    fn default() -> Self {
        Self {
            alpha: 0.9,
            rtt_window: Duration::from_secs(10),
        }
    }
}

impl MonitorSettings {
    /// α within what it can be; the paper's where it is no number.
    pub(crate) fn alpha(&self) -> f64 {
        match self.alpha.is_nan() {
            true => Self::default().alpha,
            false => self.alpha.clamp(0.0, 1.0),
        }
    }
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Away from this host.
    Out,
    /// Towards this host.
    In,
}

/// Names the clock of a far end. One-way delays compare only between paths to the same clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockId(pub u64);

/// Forward delay plus the unknown offset of the clocks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward {
    pub(crate) clock: ClockId,
    pub(crate) nanos: i64,
}

/// The estimates of one path.
#[derive(Clone, Debug)]
pub(crate) struct Estimates {
    pub(crate) round_trip: RoundTrip,
    forward: Option<Forward>,
    out: PairFilter,
    back: PairFilter,
    pub(crate) traffic: Traffic,
    pub(crate) measured_at: Instant,
}

impl Estimates {
    pub(crate) fn new(now: Instant, settings: &MonitorSettings) -> Self {
        Self {
            round_trip: RoundTrip::new(settings.alpha(), settings.rtt_window),
            forward: None,
            out: PairFilter::default(),
            back: PairFilter::default(),
            traffic: Traffic::new(),
            measured_at: now,
        }
    }

    pub(crate) fn on_one_way(&mut self, clock: ClockId, sent_at: Instant, arrived_at: Instant) {
        let sample = arrived_at.nanos_from(sent_at);
        let known = self.forward.filter(|forward| forward.clock == clock);
        let nanos = known.map_or(sample, |forward| {
            let step = sample.saturating_sub(forward.nanos) >> FORWARD_SHIFT;
            forward.nanos.saturating_add(step)
        });
        self.forward = Some(Forward { clock, nanos });
    }

    pub(crate) fn on_train(&mut self, now: Instant, direction: Direction, train: Train) {
        match direction {
            Direction::Out => self.out.on_train(now, train),
            Direction::In => self.back.on_train(now, train),
        }
    }

    pub(crate) const fn forward(&self) -> Option<Forward> {
        self.forward
    }

    pub(crate) fn pair_bandwidth(&self, direction: Direction) -> Option<Rate> {
        self.pairs(direction).bandwidth()
    }

    pub(crate) fn trains(&self, direction: Direction) -> usize {
        self.pairs(direction).samples()
    }

    const fn pairs(&self, direction: Direction) -> &PairFilter {
        match direction {
            Direction::Out => &self.out,
            Direction::In => &self.back,
        }
    }

    /// The bottleneck away from here: no less than what it has been seen to deliver.
    pub(crate) fn bandwidth(&self, now: Instant) -> Option<Rate> {
        let delivered = self.traffic.delivery_peak(now);
        let delivered = (delivered > Rate::ZERO).then_some(delivered);
        self.out.bandwidth().max(delivered)
    }

    /// R-M/TCP eq. 3: `qlen = bw × (RTT − RTT_min)`, with bw the delivery rate (its eq. 2).
    pub(crate) fn queue(&self, now: Instant) -> Bytes {
        let least = self.round_trip.least(now).unwrap_or_default();
        let latest = self.round_trip.latest().unwrap_or_default();
        let beyond: Duration = latest.saturating_sub(least);
        self.traffic.delivery_rate(now).amount_in(beyond)
    }
}
