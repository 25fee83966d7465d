//! Loss that is congestion: the path takes no more than what it delivers, for a while.
//!
//! Owns what follows from such loss in each phase. Whether it is congestion is `chance`'s to say.

use tabane_base::{Duration, Instant, Rate, scale};

use super::chance::Chance;
use super::swing::HOLD_MAX;
use super::{Phase, Tabane};

/// Loss before so many rounds says little of the rate: it counts at the end of the round.
const STARTUP_ROUNDS: u64 = 3;

/// How long nothing more is tried after loss without a queue; up to twice that, by chance.
const CEILING_HOLD: Duration = Duration::from_millis(1_000);
/// Rounds in which a larger window shows, by a queue or by loss.
const GROWTH_SHOWS: u64 = 2;
/// Pacing right after such loss.
const GAIN_CEILING: f64 = 0.95;

impl Tabane {
    /// Whether a growing window can have lost what is found to be lost now.
    pub(super) fn has_grown(&self) -> bool {
        self.ceiling.is_none() && self.model.rounds <= self.grown_in + GROWTH_SHOWS
    }

    pub(super) fn handle_congestion(&mut self, now: Instant) {
        self.chance.answer(&self.model);
        match self.phase {
            Phase::Startup { .. } if self.model.rounds >= STARTUP_ROUNDS => {
                self.leave_startup(now, Rate::ZERO)
            }
            Phase::Startup { .. } => self.is_full = true,
            Phase::Steady if self.is_queued() => self.velocity = 0,
            Phase::Steady => {
                self.rate = if Chance::is_massive(&self.model, self.mtu) {
                    // A receiver that took nothing for a while says little of the path.
                    self.model.latest_rate().max(self.rate.scaled(0.5))
                } else {
                    self.model.bandwidth()
                };
                let window = self.rate.amount_in(self.min_rtt() + self.target());
                self.cwnd = self.cwnd.min(window);
                let hold = scale(CEILING_HOLD, 1.0 - self.swing.hold() / HOLD_MAX);
                let hold = hold.max(self.min_rtt() * 2);
                let chance = scale(hold, self.rng.unit());
                self.ceiling = Some((self.rate, now + hold + chance));
                self.gain = GAIN_CEILING;
                self.velocity = 0;
            }
            Phase::Ramp(ramp) => self.end_ramp(now, ramp),
            Phase::Dip(_) | Phase::Compete(_) => {}
        }
    }
}
