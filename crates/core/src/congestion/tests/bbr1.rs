//! The BBR of the Linux kernel (version 1), as a neighbour on shared links. Not for users.
//!
//! After the kernel's description of itself: a maximum filter over 10 rounds, a cycle of gains
//! 1.25, 0.75 and six times 1, a window of twice what the path holds, no ear for loss, and every
//! 10 s four packets in flight for 200 ms. Its policer detection and aggregation are left out.

use std::collections::VecDeque;

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::link::PACKET;
use crate::congestion::{AckEvent, Algorithm, ControllerSnapshot, LossEvent, scaled};

const HIGH_GAIN: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const WINDOW_GAIN: f64 = 2.0;
const RATE_ROUNDS: u64 = 10;
const MIN_RTT_SPAN: Duration = Duration::from_secs(10);
const PROBE_RTT_SPAN: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Startup { full: Rate, rounds: u32 },
    Drain,
    Cycle { phase: usize, since: Instant },
    ProbeRtt { until: Option<Instant> },
}

#[derive(Clone, Debug)]
pub(super) struct Bbr1 {
    mode: Mode,
    /// Highest rate of each of the last rounds.
    rates: VecDeque<(u64, Rate)>,
    rounds: u64,
    round_ends_after: Bytes,
    min_rtt: Duration,
    min_rtt_at: Instant,
    cwnd: Bytes,
    pacing_rate: Rate,
}

impl Bbr1 {
    pub(super) fn new(now: Instant) -> Self {
        let window = Bytes::new(10 * PACKET.get());
        Self {
            mode: Mode::Startup {
                full: Rate::ZERO,
                rounds: 0,
            },
            rates: VecDeque::new(),
            rounds: 0,
            round_ends_after: Bytes::ZERO,
            min_rtt: Duration::MAX,
            min_rtt_at: now,
            cwnd: window,
            pacing_rate: Rate::of(window, Duration::from_millis(1)).scaled(HIGH_GAIN),
        }
    }

    fn bandwidth(&self) -> Rate {
        self.rates
            .iter()
            .map(|(_, rate)| *rate)
            .max()
            .unwrap_or(Rate::ZERO)
    }

    fn bdp(&self) -> Bytes {
        self.bandwidth().amount_in(self.min_rtt)
    }

    fn gains(&self) -> (f64, f64) {
        match self.mode {
            Mode::Startup { .. } => (HIGH_GAIN, HIGH_GAIN),
            Mode::Drain => (1.0 / HIGH_GAIN, HIGH_GAIN),
            Mode::Cycle { phase, .. } => (CYCLE[phase], WINDOW_GAIN),
            Mode::ProbeRtt { .. } => (1.0, 1.0),
        }
    }

    /// Takes the rate in; whether a round begins.
    fn measure(&mut self, event: &AckEvent<'_>) -> bool {
        let begins = event.sample.prior_delivered >= self.round_ends_after;
        if begins {
            self.rounds += 1;
            self.round_ends_after = event.sample.total_delivered;
        }
        while self
            .rates
            .front()
            .is_some_and(|(round, _)| *round + RATE_ROUNDS <= self.rounds)
        {
            self.rates.pop_front();
        }
        if let Some(rate) = event.sample.rate
            && (!event.sample.is_app_limited || rate > self.bandwidth())
        {
            while self.rates.back().is_some_and(|(_, other)| *other <= rate) {
                self.rates.pop_back();
            }
            self.rates.push_back((self.rounds, rate));
        }
        begins
    }

    fn advance(&mut self, event: &AckEvent<'_>, begins: bool) {
        let (now, bandwidth) = (event.now, self.bandwidth());
        match self.mode {
            Mode::Startup { full, rounds } if begins => {
                self.mode = if bandwidth >= full.scaled(1.25) {
                    Mode::Startup {
                        full: bandwidth,
                        rounds: 0,
                    }
                } else if rounds < 2 {
                    Mode::Startup {
                        full,
                        rounds: rounds + 1,
                    }
                } else {
                    Mode::Drain
                };
            }
            Mode::Startup { .. } => {}
            Mode::Drain if event.in_flight_after <= self.bdp() => {
                self.mode = Mode::Cycle {
                    phase: 2,
                    since: now,
                };
            }
            Mode::Drain => {}
            Mode::Cycle { phase, since } => {
                let is_long = now.since(since) > self.min_rtt;
                let filled = event.in_flight_after >= scaled(self.bdp(), 1.25);
                let is_over = match phase {
                    0 => is_long && (filled || event.sample.newly_lost > Bytes::ZERO),
                    1 => is_long || event.in_flight_after <= self.bdp(),
                    _ => is_long,
                };
                if is_over {
                    self.mode = Mode::Cycle {
                        phase: (phase + 1) % CYCLE.len(),
                        since: now,
                    };
                }
            }
            Mode::ProbeRtt { until: None } => {
                if event.in_flight_after <= Bytes::new(4 * PACKET.get()) {
                    self.mode = Mode::ProbeRtt {
                        until: Some(now + PROBE_RTT_SPAN),
                    };
                }
            }
            Mode::ProbeRtt { until: Some(until) } => {
                if now >= until {
                    self.min_rtt_at = now;
                    self.mode = Mode::Cycle {
                        phase: 2,
                        since: now,
                    };
                }
            }
        }
    }
}

impl Algorithm for Bbr1 {
    fn on_sent(&mut self, _now: Instant, _bytes: Bytes, _in_flight: Bytes) {}

    fn on_ack(&mut self, event: &AckEvent<'_>) {
        let begins = self.measure(event);
        let is_old = event.now.since(self.min_rtt_at) > MIN_RTT_SPAN;
        if let Some(rtt) = event.sample.rtt
            && (rtt <= self.min_rtt || is_old)
        {
            self.min_rtt = rtt;
            self.min_rtt_at = event.now;
        }
        if is_old && !matches!(self.mode, Mode::ProbeRtt { .. }) {
            self.mode = Mode::ProbeRtt { until: None };
        }
        self.advance(event, begins);
        let (pacing, window) = self.gains();
        let rate = self.bandwidth().scaled(pacing);
        if !matches!(self.mode, Mode::Startup { .. }) || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
        let target = scaled(self.bdp(), window) + Bytes::new(3 * PACKET.get());
        self.cwnd = match self.mode {
            Mode::ProbeRtt { .. } => Bytes::new(4 * PACKET.get()),
            Mode::Startup { .. } if self.cwnd < target => self.cwnd + event.sample.newly_acked,
            Mode::Startup { .. } => self.cwnd,
            _ => (self.cwnd + event.sample.newly_acked).min(target),
        }
        .max(Bytes::new(4 * PACKET.get()));
    }

    fn on_loss(&mut self, _event: &LossEvent) {}
    fn on_spurious_loss(&mut self, _now: Instant) {}
    fn on_path_reset(&mut self, _now: Instant) {}
    fn on_mtu(&mut self, _mtu: Bytes) {}

    fn cwnd(&self) -> Bytes {
        self.cwnd
    }

    fn pacing_rate(&self) -> Rate {
        self.pacing_rate
    }

    fn snapshot(&self) -> ControllerSnapshot {
        ControllerSnapshot {
            state: "bbr1",
            cwnd: self.cwnd,
            pacing_rate: self.pacing_rate,
            bandwidth: self.bandwidth(),
            min_rtt: Some(self.min_rtt),
        }
    }
}
