//! The phases of BBR, with what each must remember. What moves between them is the parent's.

use tabane_base::{Duration, Instant, Rate};

/// What BBR is doing. Rounds are numbers of the model's count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    /// Doubling the rate every round trip until the path is full.
    Startup(Growth),
    /// Letting out the queue that start-up built.
    Drain,
    /// Letting out the queue that a probe built.
    Down { since_round: u64 },
    /// Keeping the pipe full and the queue empty until it is time to probe.
    Cruise { probe_at: Instant },
    /// Filling the pipe for a round, so that a probe starts from a full one.
    Refill { since_round: u64 },
    /// Sending more than the path is known to deliver.
    Up(Probe),
    /// Half emptying the pipe to see the shortest round trip.
    ProbeRtt {
        /// Set once the pipe is half empty.
        until: Option<Instant>,
        /// The shortest since then.
        rtt_min: Duration,
    },
}

impl Phase {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Startup(_) => "startup",
            Self::Drain => "drain",
            Self::Down { .. } => "down",
            Self::Cruise { .. } => "cruise",
            Self::Refill { .. } => "refill",
            Self::Up(_) => "up",
            Self::ProbeRtt { .. } => "probe-rtt",
        }
    }
}

/// A search for more rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Probe {
    /// How far to overfill the pipe, in units of the first step; doubles while the rate grows.
    pub(super) reach: f64,
    /// That much is in flight.
    pub(super) is_filled: bool,
    pub(super) growth: Growth,
}

/// Whether the rate keeps growing from round to round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    rate: Rate,
    pub(super) rounds_without: u32,
}

impl Growth {
    pub(super) const fn from(rate: Rate) -> Self {
        Self {
            rate,
            rounds_without: 0,
        }
    }

    /// At the start of a round; true if `rate` grew by `factor`.
    pub(super) fn update(&mut self, rate: Rate, factor: f64) -> bool {
        if rate >= self.rate.scaled(factor) {
            *self = Self::from(rate);
            return true;
        }
        self.rounds_without += 1;
        false
    }
}
