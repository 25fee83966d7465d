//! CUBIC (RFC 9438) with HyStart++ (RFC 9406), paced.
//!
//! The window grows along a cubic of the time since the last reduction, fastest far from the
//! window at which loss occurred, and never slower than Reno would. Slow start ends at the first
//! loss or when round-trip times begin to rise. Reacts to loss once per round trip: to packets
//! sent after the reduction only (RFC 9002 §7.3.2).

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::{AckEvent, Algorithm, ControllerSnapshot, LossEvent, initial_window, scaled};
use crate::rtt::INITIAL_RTT;

/// RFC 9438 §4.6: what remains of the window after loss.
const BETA: f64 = 0.7;
/// RFC 9438 §5.1: how steep the cubic is, in packets per second³.
const C: f64 = 0.4;
/// RFC 9438 §4.3: growth per round trip that equals Reno's throughput at `BETA`.
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// RFC 9002 §7.2: the least window, in packets.
const MIN_WINDOW_PACKETS: u64 = 2;
/// RFC 9002 §7.7 suggests 1.25 to stay window-limited; doubled while the window doubles.
const PACING_GAIN: f64 = 1.25;
const PACING_GAIN_SLOW_START: f64 = 2.0;

/// The state of CUBIC on one path.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    mtu: Bytes,
    cwnd: Bytes,
    ssthresh: Bytes,
    srtt: Duration,
    min_rtt: Option<Duration>,
    bandwidth: Rate,
    hystart: HyStart,
    epoch: Option<Epoch>,
    /// The window before the last reduction, lowered when windows shrink (fast convergence).
    w_max: Bytes,
    /// Packets sent up to here belong to the flight that was reduced already.
    recovery_until: Instant,
    /// What the last reduction changed, should it turn out to have been for nothing.
    before_reduction: Option<Undo>,
}

/// A period of growth between two reductions.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    started_at: Instant,
    /// Time from the start until the cubic reaches `w_max`, in seconds.
    k: f64,
    /// The window Reno would have, in bytes.
    w_est: f64,
    /// Of the cubic, where it levels out.
    origin: Bytes,
}

#[derive(Clone, Copy, Debug)]
struct Undo {
    cwnd: Bytes,
    ssthresh: Bytes,
    w_max: Bytes,
    epoch: Option<Epoch>,
}

impl Cubic {
    pub(super) fn new(mtu: Bytes, now: Instant) -> Self {
        Self {
            mtu,
            cwnd: initial_window(mtu),
            ssthresh: Bytes::MAX,
            srtt: INITIAL_RTT,
            min_rtt: None,
            bandwidth: Rate::ZERO,
            hystart: HyStart::new(now),
            epoch: None,
            w_max: Bytes::ZERO,
            recovery_until: Instant::EPOCH,
            before_reduction: None,
        }
    }

    /// Takes over a path that holds `window` at least; what it has to give beyond, slow start finds
    /// out, as for one that has just come.
    pub(super) fn from_window(mtu: Bytes, now: Instant, window: Bytes) -> Self {
        let mut cubic = Self::new(mtu, now);
        cubic.cwnd = window.max(cubic.min_window());
        cubic
    }

    fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    fn min_window(&self) -> Bytes {
        Bytes::new(self.mtu.get() * MIN_WINDOW_PACKETS)
    }

    fn slow_start(&mut self, event: &AckEvent<'_>) {
        let growth = scaled(event.sample.newly_acked, self.hystart.growth());
        self.cwnd = (self.cwnd + growth).min(self.ssthresh);
        if self.hystart.on_ack(event) == Phase::Done {
            self.ssthresh = self.cwnd;
        }
    }

    /// RFC 9438 §4.2 to §4.5.
    fn avoid_congestion(&mut self, event: &AckEvent<'_>) {
        let (cwnd, mtu) = (self.cwnd.get() as f64, self.mtu.get() as f64);
        let w_max = self.w_max;
        let epoch = self.epoch.get_or_insert_with(|| {
            let origin = w_max.max(self.cwnd);
            let distance = (origin - self.cwnd).get() as f64 / mtu;
            Epoch {
                started_at: event.now,
                k: (distance / C).cbrt(),
                w_est: cwnd,
                origin,
            }
        });
        let acked = event.sample.newly_acked.get() as f64;
        let alpha = if epoch.w_est >= w_max.get() as f64 {
            1.0
        } else {
            RENO_ALPHA
        };
        epoch.w_est += alpha * mtu * acked / cwnd;
        // One round trip ahead, since what is set at present shows only then.
        let t = event.now.since(epoch.started_at) + event.rtt.smoothed();
        let offset = t.as_secs_f64() - epoch.k;
        let cubic = epoch.origin.get() as f64 + C * offset.powi(3) * mtu;
        let target = cubic.clamp(cwnd, 1.5 * cwnd);
        let grown = (cwnd + (target - cwnd) * acked / cwnd).max(epoch.w_est);
        self.cwnd = Bytes::new(grown as u64);
    }

    fn reduce(&mut self, now: Instant, in_flight: Bytes) {
        self.before_reduction = Some(Undo {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            w_max: self.w_max,
            epoch: self.epoch,
        });
        self.w_max = if self.cwnd < self.w_max {
            scaled(self.cwnd, (1.0 + BETA) / 2.0)
        } else {
            self.cwnd
        };
        // A window the sender did not use says nothing of the path (RFC 9438 §4.6).
        let used = self.cwnd.min(in_flight + in_flight);
        self.ssthresh = scaled(used, BETA).max(self.min_window());
        self.cwnd = self.ssthresh;
        self.epoch = None;
        self.recovery_until = now;
    }
}

impl Algorithm for Cubic {
    fn on_sent(&mut self, now: Instant, _bytes: Bytes, in_flight: Bytes) {
        // An idle time is not a time of growth (RFC 9438 §5.8).
        if in_flight == Bytes::ZERO
            && let Some(epoch) = &mut self.epoch
        {
            let idle = now.since(self.hystart.last_ack_at);
            epoch.started_at = (epoch.started_at + idle).min(now);
        }
    }

    fn on_ack(&mut self, event: &AckEvent<'_>) {
        self.srtt = event.rtt.smoothed();
        self.min_rtt = Some(event.rtt.min());
        if let Some(rate) = event.sample.rate {
            self.bandwidth = rate;
        }
        self.hystart.last_ack_at = event.now;
        if event.largest_acked_sent_at < self.recovery_until {
            return;
        }
        let in_flight_before =
            event.in_flight_after + event.sample.newly_acked + event.sample.newly_lost;
        let slack = Bytes::new(self.mtu.get() * 3);
        let is_window_used = if self.in_slow_start() {
            in_flight_before + in_flight_before >= self.cwnd
        } else {
            in_flight_before + slack >= self.cwnd
        };
        if event.sample.is_app_limited && !is_window_used {
            return;
        }
        if self.in_slow_start() {
            self.slow_start(event);
        } else {
            self.avoid_congestion(event);
        }
    }

    fn on_loss(&mut self, event: &LossEvent) {
        if event.persistent {
            self.reduce(event.now, event.in_flight + event.lost);
            self.cwnd = self.min_window();
            return;
        }
        if event.largest_lost_sent_at >= self.recovery_until {
            self.reduce(event.now, event.in_flight + event.lost);
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant) {
        // RFC 9438 §4.9.
        if let Some(undo) = self.before_reduction.take()
            && self.cwnd < undo.cwnd
        {
            self.cwnd = undo.cwnd;
            self.ssthresh = undo.ssthresh;
            self.w_max = undo.w_max;
            self.epoch = undo.epoch;
        }
    }

    fn on_path_reset(&mut self, now: Instant) {
        *self = Self::new(self.mtu, now);
        self.recovery_until = now;
    }

    fn on_mtu(&mut self, mtu: Bytes) {
        self.mtu = mtu;
        self.cwnd = self.cwnd.max(self.min_window());
    }

    fn cwnd(&self) -> Bytes {
        self.cwnd
    }

    fn pacing_rate(&self) -> Rate {
        let gain = if self.in_slow_start() {
            PACING_GAIN_SLOW_START
        } else {
            PACING_GAIN
        };
        Rate::of(self.cwnd, self.srtt).scaled(gain)
    }

    fn snapshot(&self) -> ControllerSnapshot {
        let state = match self.hystart.phase {
            _ if !self.in_slow_start() => "avoidance",
            Phase::Conservative { .. } => "conservative-slow-start",
            Phase::Standard | Phase::Done => "slow-start",
        };
        ControllerSnapshot {
            state,
            cwnd: self.cwnd,
            pacing_rate: self.pacing_rate(),
            bandwidth: self.bandwidth,
            min_rtt: self.min_rtt,
        }
    }
}

/// RFC 9406: leaves slow start when round-trip times rise, by way of rounds of slower growth that
/// may show the rise to have been a passing one.
#[derive(Clone, Debug)]
struct HyStart {
    phase: Phase,
    round_started_at: Instant,
    samples: u32,
    round_min: Duration,
    previous_min: Duration,
    last_ack_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Standard,
    Conservative { baseline: Duration, rounds: u32 },
    Done,
}

impl HyStart {
    /// RFC 9406 §4.3, as are the values below it.
    const MIN_RTT_RISE: Duration = Duration::from_millis(4);
    const MAX_RTT_RISE: Duration = Duration::from_millis(16);
    /// A round with fewer samples says nothing. Acknowledgements of ours cover up to 16 packets,
    /// so half of the RFC's 8 must do.
    const SAMPLES: u32 = 4;
    const CONSERVATIVE_GROWTH: f64 = 0.25;
    const CONSERVATIVE_ROUNDS: u32 = 5;

    fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Standard,
            round_started_at: now,
            samples: 0,
            round_min: Duration::MAX,
            previous_min: Duration::MAX,
            last_ack_at: now,
        }
    }

    fn growth(&self) -> f64 {
        match self.phase {
            Phase::Standard | Phase::Done => 1.0,
            Phase::Conservative { .. } => Self::CONSERVATIVE_GROWTH,
        }
    }

    fn on_ack(&mut self, event: &AckEvent<'_>) -> Phase {
        if event.largest_acked_sent_at > self.round_started_at {
            self.end_round(event.now);
        }
        self.round_min = self.round_min.min(event.rtt.latest());
        self.samples += 1;
        if self.samples < Self::SAMPLES || self.previous_min == Duration::MAX {
            return self.phase;
        }
        match self.phase {
            Phase::Standard => {
                let rise = (self.previous_min / 8).clamp(Self::MIN_RTT_RISE, Self::MAX_RTT_RISE);
                if self.round_min >= self.previous_min + rise {
                    self.phase = Phase::Conservative {
                        baseline: self.round_min,
                        rounds: 0,
                    };
                }
            }
            Phase::Conservative { baseline, .. } if self.round_min < baseline => {
                self.phase = Phase::Standard;
            }
            Phase::Conservative { .. } | Phase::Done => {}
        }
        self.phase
    }

    fn end_round(&mut self, now: Instant) {
        self.round_started_at = now;
        if self.samples >= Self::SAMPLES {
            self.previous_min = self.round_min;
        }
        self.round_min = Duration::MAX;
        self.samples = 0;
        if let Phase::Conservative { rounds, .. } = &mut self.phase {
            *rounds += 1;
            if *rounds >= Self::CONSERVATIVE_ROUNDS {
                self.phase = Phase::Done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::RateSample;
    use crate::rtt::RttEstimator;

    const MTU: Bytes = Bytes::new(1_000);

    fn ack(cubic: &mut Cubic, now_ms: u64, rtt_ms: u64, acked: Bytes) {
        let now = Instant::from_millis(now_ms);
        let mut rtt = RttEstimator::default();
        rtt.update(now, Duration::from_millis(rtt_ms), Duration::ZERO);
        let sample = RateSample {
            newly_acked: acked,
            ..RateSample::default()
        };
        cubic.on_ack(&AckEvent {
            now,
            sample: &sample,
            trip: None,
            way_back: None,
            rtt: &rtt,
            in_flight_after: cubic.cwnd(),
            largest_acked_sent_at: now - Duration::from_millis(rtt_ms),
        });
    }

    fn lose(cubic: &mut Cubic, now_ms: u64, sent_ms: u64, persistent: bool) {
        cubic.on_loss(&LossEvent {
            now: Instant::from_millis(now_ms),
            lost: MTU,
            runs: 1,
            largest_lost_sent_at: Instant::from_millis(sent_ms),
            in_flight: cubic.cwnd(),
            tx_in_flight: cubic.cwnd(),
            persistent,
        });
    }

    #[test]
    fn slow_start_doubles_and_loss_counts_once_per_round_trip() {
        let mut cubic = Cubic::new(MTU, Instant::EPOCH);
        ack(&mut cubic, 100, 50, Bytes::kilo(10));
        assert_eq!(cubic.cwnd(), Bytes::kilo(20));
        lose(&mut cubic, 150, 110, false);
        assert_eq!(cubic.cwnd(), Bytes::kilo(14));
        lose(&mut cubic, 160, 149, false);
        assert_eq!(cubic.cwnd(), Bytes::kilo(14));
        lose(&mut cubic, 210, 151, false);
        assert_eq!(cubic.cwnd(), Bytes::new(9_800));
        cubic.on_spurious_loss(Instant::from_millis(220));
        assert_eq!(cubic.cwnd(), Bytes::kilo(14));
        lose(&mut cubic, 400, 390, true);
        assert_eq!(cubic.cwnd(), Bytes::kilo(2));
    }

    #[test]
    fn growth_follows_the_cubic_after_a_reduction() {
        let mut cubic = Cubic::new(MTU, Instant::EPOCH);
        cubic.cwnd = Bytes::kilo(1_000);
        lose(&mut cubic, 10, 5, false);
        assert_eq!(cubic.cwnd(), Bytes::kilo(700));
        // K = ∛(300 / 0.4) = 9.1 s until the old window is reached again.
        for now_ms in (100..9_200).step_by(10) {
            let share = cubic.cwnd().get() / 10;
            ack(&mut cubic, now_ms, 100, Bytes::new(share));
        }
        let near = cubic.cwnd();
        assert!(
            (Bytes::kilo(980)..Bytes::kilo(1_010)).contains(&near),
            "{near}"
        );
    }

    #[test]
    fn rising_round_trips_end_slow_start_without_loss() {
        let mut cubic = Cubic::new(MTU, Instant::EPOCH);
        let mut now_ms = 50;
        for round in 0..20_u64 {
            for _ in 0..8 {
                now_ms += 6;
                ack(&mut cubic, now_ms, 50 + round * 10, Bytes::kilo(1));
            }
        }
        assert!(!cubic.in_slow_start(), "{:?}", cubic.hystart);
    }
}
