//! BBR: a model of the path decides what is sent, not the latest loss.
//!
//! After BBRv3 (draft-ietf-ccwg-bbr). Pacing at the rate the path was seen to deliver keeps the
//! pipe full and the queue empty; the window, twice what the path holds, is only the safety net.
//!
//! ```text
//!  Startup ──rate stops growing──► Drain ──queue gone──► Cruise ──time──► Refill ──1 round──► Up
//!     ▲                                                    ▲                                  │
//!  path reset                                              └──── Down ◄── queue or loss ──────┘
//!  Cruise ──queue collapsed──► Up
//!  any from Cruise on ──shortest round trip not seen for 10 s──► ProbeRtt ──► Cruise
//! ```
//!
//! Where we differ from the draft, and why:
//! - Loss counts as congestion only together with a standing queue, or when it is massive: our
//!   links are radio, where 1–2 % of random loss must not cost rate.
//! - Loss bounds what is in flight, never the pacing rate: with a cellular link whose rate swings
//!   within 100 ms, a rate cut at every overflow would miss each upswing.
//! - Probing comes every 6–10 round trips instead of every 2–3 s, for the same reason. Each probe
//!   stops as soon as a queue shows without gain.
//! - Cruising paces at the full rate, and a little below it while a queue stands, in place of a
//!   fixed margin below: no throughput is given away when there is no queue.
//! - `ProbeRtt` is rare, since coming within 1/16 of the shortest round trip counts as seeing it.

mod phase;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, scale};

use super::model::Model;
use super::{AckEvent, Algorithm, ControllerSnapshot, LossEvent, initial_window, scaled};
use phase::{Growth, Phase, Probe};

/// Draft §2.4: the least gain that doubles the delivery rate each round trip.
const STARTUP_GAIN: f64 = 2.77;
/// Draft §2.4: drains in a round what start-up queued.
const DRAIN_GAIN: f64 = 0.35;
/// A quarter above the known rate when looking for more; the pace while it is being found.
const UP_GAIN: f64 = 1.25;
const UP_GAIN_GROWING: f64 = 2.0;
/// Takes in one round what a fruitless probe queued.
const DOWN_GAIN: f64 = 0.75;
/// Cruising without and with a standing queue.
const CRUISE_GAIN: f64 = 1.005;
const CRUISE_QUEUED_GAIN: f64 = 0.97;
/// What is lost without a queue is sent on top, so that the rest fills the link; up to this share.
const CRUISE_LOSS_MAX: f64 = 0.05;

/// Start-up is over after this many rounds without growth by a quarter (draft §5.3.1.2).
const FULL_ROUNDS: u32 = 3;
const FULL_GROWTH: f64 = 1.25;
/// One such round is enough if a queue of this share of the round trip stood throughout.
const FULL_QUEUE: f64 = 0.25;

/// Draft §2.5: more loss than this in a round is congestion, given a queue.
const LOSS_THRESHOLD: f64 = 0.02;
/// So much loss is congestion even without one: a policer, or hardly any buffer.
const LOSS_MASSIVE: f64 = 0.20;
/// Fewer packets lost in a round prove nothing about a rate of loss.
const LOSS_PACKETS_MIN: u64 = 3;
/// Draft §2.5 cuts to 0.7; 0.85 is the headroom it then leaves, and enough with a queue to lose.
const LOSS_BETA: f64 = 0.85;

/// A round trip shorter by this much than in the round before shows that the link got faster;
/// cruising alone shortens it by 3 % at most.
const QUEUE_COLLAPSE: f64 = 0.2;

/// Growth in a round that makes a probe go on, and how far it may then reach.
const UP_GROWTH: f64 = 1.05;
const UP_REACH_MAX: f64 = 4.0;

/// A probe that finds nothing must not queue more than this, whatever the round trip.
const UP_QUEUE_MAX: Duration = Duration::from_millis(15);

/// Rounds between probes: at least this many, plus up to so many by chance, so that paths that
/// share a bottleneck do not probe in step.
const CRUISE_ROUNDS: u64 = 6;
const CRUISE_ROUNDS_CHANCE: u64 = 4;
/// Bounds of that time: a short path has no news every few milliseconds, and a long one must not
/// miss a link's recovery for long.
const CRUISE_MIN: Duration = Duration::from_millis(200);
const CRUISE_MAX: Duration = Duration::from_secs(2);

/// How long the shortest round trip is believed without being seen. The draft says 5 s (§2.7); each
/// look costs up to 1 % of throughput at 10 s, and most links show it unasked.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(10);
/// Draft §2.7: how long the pipe is kept half empty to see it.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
const PROBE_RTT_GAIN: f64 = 0.5;

/// Draft §2.6: fewer packets in flight cannot keep acknowledgements coming.
const MIN_WINDOW_PACKETS: u64 = 4;

/// The state of BBR on one path.
#[derive(Clone, Debug)]
pub(super) struct Bbr {
    mtu: Bytes,
    rng: Rng,
    model: Model,
    phase: Phase,
    cwnd: Bytes,
    pacing_rate: Rate,
    /// The most in flight that the path was seen to take without loss; `Bytes::MAX` if unknown.
    inflight_hi: Bytes,
    /// `inflight_hi` before its last reduction, should the loss turn out to be none.
    inflight_hi_before: Bytes,
    /// The round in which loss was last reacted to: once per round.
    loss_handled_in: Option<u64>,
    /// The window to return to after `ProbeRtt`.
    saved_cwnd: Bytes,
}

impl Bbr {
    pub(super) fn new(mtu: Bytes, now: Instant, rng: Rng) -> Self {
        let window = initial_window(mtu);
        Self {
            mtu,
            rng,
            model: Model::new(mtu, now),
            phase: Phase::Startup(Growth::from(Rate::ZERO)),
            cwnd: window,
            // Draft §5.6.2: as if the round trip were a millisecond.
            pacing_rate: Rate::of(window, Duration::from_millis(1)).scaled(STARTUP_GAIN),
            inflight_hi: Bytes::MAX,
            inflight_hi_before: Bytes::MAX,
            loss_handled_in: None,
            saved_cwnd: Bytes::ZERO,
        }
    }

    fn is_full(&self) -> bool {
        !matches!(self.phase, Phase::Startup(_))
    }

    fn min_window(&self) -> Bytes {
        Bytes::new(self.mtu.get() * MIN_WINDOW_PACKETS)
    }

    // ---- phases ----

    fn advance_phase(&mut self, event: &AckEvent<'_>) {
        match self.phase {
            Phase::Startup(growth) => self.advance_startup(event, growth),
            Phase::Drain => {
                if event.in_flight_after <= self.model.unqueued() {
                    self.enter_cruise(event.now);
                }
            }
            Phase::Down { since_round } => self.advance_down(event, since_round),
            Phase::Cruise { .. } if self.has_queue_collapsed() => {
                // What the slower link held says nothing of the faster one.
                self.inflight_hi = Bytes::MAX;
                self.enter_up(event.now);
            }
            Phase::Cruise { probe_at } => {
                if event.now >= probe_at {
                    self.model.restart_round(event.now);
                    self.phase = Phase::Refill {
                        since_round: self.model.rounds,
                    };
                }
            }
            Phase::Refill { since_round } => {
                if self.model.rounds > since_round {
                    self.enter_up(event.now);
                }
            }
            Phase::Up(probe) => self.advance_up(event, probe),
            Phase::ProbeRtt { until, rtt_min } => self.advance_probe_rtt(event, until, rtt_min),
        }
        let is_probing_bandwidth = !matches!(
            self.phase,
            Phase::Startup(_) | Phase::Drain | Phase::ProbeRtt { .. }
        );
        if is_probing_bandwidth && self.model.min_rtt_age(event.now) > PROBE_RTT_INTERVAL {
            self.saved_cwnd = self.cwnd;
            self.phase = Phase::ProbeRtt {
                until: None,
                rtt_min: Duration::MAX,
            };
        }
    }

    fn advance_startup(&mut self, event: &AckEvent<'_>, mut growth: Growth) {
        if !self.model.is_round_start || event.sample.is_app_limited {
            return;
        }
        growth.update(self.model.bandwidth(), FULL_GROWTH);
        let is_queued = self.model.is_queue(self.model.last.rtt_min, FULL_QUEUE);
        let enough = if is_queued { 1 } else { FULL_ROUNDS };
        self.phase = if growth.rounds_without >= enough {
            Phase::Drain
        } else {
            Phase::Startup(growth)
        };
    }

    fn advance_down(&mut self, event: &AckEvent<'_>, since_round: u64) {
        let rounds = self.model.rounds - since_round;
        let is_drained = event.in_flight_after <= self.model.unqueued();
        // Once what was sent in this phase comes back, the round trips tell.
        let is_short = rounds >= 1 && !self.model.is_queue(self.model.current.rtt_min, 1.0 / 16.0);
        if is_drained || is_short || rounds >= 4 {
            self.enter_cruise(event.now);
        }
    }

    /// Whether the queue went faster in the last round than our pace explains: the link carries
    /// more than it did. Waiting for the next probe would leave it idle.
    fn has_queue_collapsed(&self) -> bool {
        let (before, after) = (self.model.before_last.rtt_min, self.model.last.rtt_min);
        self.model.is_round_start
            && before != Duration::MAX
            && self.model.is_queue(before, QUEUE_COLLAPSE)
            && after < scale(before, 1.0 - QUEUE_COLLAPSE)
    }

    fn enter_up(&mut self, now: Instant) {
        self.model.restart_round(now);
        self.phase = Phase::Up(Probe {
            reach: 1.0,
            is_filled: false,
            growth: Growth::from(self.model.bandwidth()),
        });
    }

    fn advance_up(&mut self, event: &AckEvent<'_>, mut probe: Probe) {
        let bandwidth = self.model.bandwidth();
        if self.model.is_round_start {
            if probe.growth.update(bandwidth, UP_GROWTH) {
                probe.reach = (probe.reach * 2.0).min(UP_REACH_MAX);
            }
            self.raise_inflight_hi(event, probe.reach);
        }
        let room = scaled(self.model.bdp(), UP_GAIN - 1.0).min(bandwidth.amount_in(UP_QUEUE_MAX));
        let target = self.model.unqueued() + scaled(room, probe.reach);
        probe.is_filled = event.in_flight_after >= target;
        // A round without growth is the answer, once what was asked for is in flight.
        let enough = if probe.is_filled { 1 } else { FULL_ROUNDS };
        if probe.growth.rounds_without >= enough {
            self.enter_down(event.now);
        } else {
            self.phase = Phase::Up(probe);
        }
    }

    fn advance_probe_rtt(&mut self, event: &AckEvent<'_>, until: Option<Instant>, min: Duration) {
        let Some(until) = until else {
            if event.in_flight_after <= self.probe_rtt_window() {
                let round_trip = event.rtt.smoothed();
                self.phase = Phase::ProbeRtt {
                    until: Some(event.now + PROBE_RTT_DURATION.max(round_trip)),
                    rtt_min: Duration::MAX,
                };
            }
            return;
        };
        let rtt_min = event.sample.rtt.map_or(min, |rtt| rtt.min(min));
        if event.now < until {
            self.phase = Phase::ProbeRtt {
                until: Some(until),
                rtt_min,
            };
            return;
        }
        if rtt_min != Duration::MAX {
            self.model.replace_min_rtt(event.now, rtt_min);
        }
        self.cwnd = self.cwnd.max(self.saved_cwnd);
        self.enter_cruise(event.now);
    }

    fn enter_down(&mut self, now: Instant) {
        self.model.advance_cycle();
        self.model.restart_round(now);
        self.phase = Phase::Down {
            since_round: self.model.rounds,
        };
    }

    fn enter_cruise(&mut self, now: Instant) {
        let rounds = CRUISE_ROUNDS as f64 + CRUISE_ROUNDS_CHANCE as f64 * self.rng.unit();
        let round_trip = self.model.min_rtt().unwrap_or(CRUISE_MIN);
        let wait = scale(round_trip, rounds).clamp(CRUISE_MIN, CRUISE_MAX);
        self.phase = Phase::Cruise {
            probe_at: now + wait,
        };
    }

    // ---- bounds ----

    /// Whether this round's loss means that too much is in flight.
    fn is_loss_congestion(&self) -> bool {
        let round = &self.model.current;
        if round.lost.get() < self.mtu.get() * LOSS_PACKETS_MIN {
            return false;
        }
        let share = round.loss_share();
        let rtt_min = round.rtt_min.min(self.model.last.rtt_min);
        let is_queued = self.model.is_queue(rtt_min, 1.0 / 8.0);
        share > LOSS_MASSIVE || (share > LOSS_THRESHOLD && is_queued)
    }

    fn handle_congestion(&mut self, event: &LossEvent) {
        self.loss_handled_in = Some(self.model.rounds);
        let kept = (1.0 - self.model.current.loss_share()).clamp(0.5, LOSS_BETA);
        let held = scaled(event.tx_in_flight, kept);
        let lowered = held.max(self.inflight_hi_floor());
        self.inflight_hi_before = self.inflight_hi;
        self.inflight_hi = lowered.min(self.inflight_hi);
        match self.phase {
            Phase::Startup(_) => self.phase = Phase::Drain,
            Phase::Up(_) => self.enter_down(event.now),
            _ => {}
        }
    }

    /// What the path surely takes: what it delivers at present, and bursts of the sender.
    fn inflight_hi_floor(&self) -> Bytes {
        let rate = self.model.latest_rate();
        scaled(self.model.bdp_at(rate), UP_GAIN) + self.model.bursts(rate)
    }

    /// Probing without congestion: the path takes more than was thought.
    fn raise_inflight_hi(&mut self, event: &AckEvent<'_>, reach: f64) {
        if self.inflight_hi == Bytes::MAX || self.loss_handled_in == Some(self.model.rounds) {
            return;
        }
        let in_flight = event.in_flight_after + event.sample.newly_acked;
        if in_flight + self.min_window() >= self.inflight_hi {
            self.inflight_hi = scaled(self.inflight_hi, 1.0 + (UP_GAIN - 1.0) * reach);
        }
        if self.inflight_hi > self.model.window() {
            self.inflight_hi = Bytes::MAX;
        }
    }

    fn probe_rtt_window(&self) -> Bytes {
        scaled(self.model.bdp(), PROBE_RTT_GAIN).max(self.min_window())
    }

    // ---- outputs ----

    fn pacing_gain(&self) -> f64 {
        match self.phase {
            Phase::Startup(_) => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Down { .. } => DOWN_GAIN,
            Phase::Cruise { .. } => {
                let is_queued = self.model.is_queue(self.model.last.rtt_min, 1.0 / 16.0);
                if is_queued {
                    CRUISE_QUEUED_GAIN
                } else {
                    CRUISE_GAIN + self.model.last.loss_share().min(CRUISE_LOSS_MAX)
                }
            }
            Phase::Refill { .. } | Phase::ProbeRtt { .. } => 1.0,
            Phase::Up(probe) if probe.is_filled => 1.0,
            Phase::Up(probe) if probe.reach > 1.0 => UP_GAIN_GROWING,
            Phase::Up(_) => UP_GAIN,
        }
    }

    fn set_pacing_rate(&mut self, had_rtt: bool, smoothed: Duration) {
        if !had_rtt && self.model.min_rtt().is_some() {
            self.pacing_rate = Rate::of(initial_window(self.mtu), smoothed).scaled(STARTUP_GAIN);
        }
        let rate = self.model.bandwidth().scaled(self.pacing_gain());
        if rate > Rate::ZERO && (self.is_full() || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    fn set_cwnd(&mut self, event: &AckEvent<'_>) {
        let acked = event.sample.newly_acked;
        let window = self.model.window();
        if self.is_full() {
            self.cwnd = (self.cwnd + acked).min(window);
        } else if self.cwnd < window || event.sample.total_delivered < initial_window(self.mtu) {
            self.cwnd += acked;
        }
        if self.is_full() {
            self.cwnd = self.cwnd.min(self.inflight_hi);
        }
        if matches!(self.phase, Phase::ProbeRtt { .. }) {
            self.cwnd = self.cwnd.min(self.probe_rtt_window());
        }
        self.cwnd = self.cwnd.max(self.min_window());
    }
}

impl Algorithm for Bbr {
    fn on_sent(&mut self, now: Instant, _bytes: Bytes, in_flight: Bytes) {
        if in_flight == Bytes::ZERO {
            self.model.on_restart(now);
        }
    }

    fn on_ack(&mut self, event: &AckEvent<'_>) {
        let had_rtt = self.model.min_rtt().is_some();
        self.model.on_ack(event);
        self.advance_phase(event);
        self.set_pacing_rate(had_rtt, event.rtt.smoothed());
        self.set_cwnd(event);
    }

    fn on_loss(&mut self, event: &LossEvent) {
        self.model.on_lost(event);
        if event.persistent {
            self.cwnd = self.min_window();
        }
        if self.loss_handled_in != Some(self.model.rounds) && self.is_loss_congestion() {
            self.handle_congestion(event);
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant) {
        self.inflight_hi = self.inflight_hi.max(self.inflight_hi_before);
    }

    fn on_path_reset(&mut self, now: Instant) {
        *self = Self::new(self.mtu, now, self.rng.clone());
    }

    fn on_mtu(&mut self, mtu: Bytes) {
        self.mtu = mtu;
        self.model.packet = mtu;
        self.cwnd = self.cwnd.max(self.min_window());
    }

    fn cwnd(&self) -> Bytes {
        self.cwnd
    }

    fn pacing_rate(&self) -> Rate {
        self.pacing_rate
    }

    fn snapshot(&self) -> ControllerSnapshot {
        ControllerSnapshot {
            state: self.phase.name(),
            cwnd: self.cwnd,
            pacing_rate: self.pacing_rate,
            bandwidth: self.model.bandwidth(),
            min_rtt: self.model.min_rtt(),
        }
    }
}
