//! Delay that differs from packet to packet.
//!
//! Owns its shapes: what is drawn for a packet that leaves the transmitter at a moment. Keeping
//! packets in order is the link's.

use tabane_base::{Duration, Instant, Rng, scale};

/// How long correlated jitter goes towards one value before it turns to another.
const TURN: Duration = Duration::from_millis(30);
/// How many packets in a hundred are late where most are not.
const SPIKE: f64 = 0.05;
/// The mean of the exponential shape, as part of the most; its tail is cut there.
const MEAN_PART: f64 = 0.25;

/// How the further delay of packets is distributed over 0 and the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JitterShape {
    /// Everything alike, each packet for itself.
    #[default]
    Uniform,
    /// Mostly little, each packet for itself: a quarter of the most on average.
    Exponential,
    /// Wanders: it turns to a new value every 30 ms.
    Correlated,
    /// None, but for one packet in twenty.
    Spikes,
}

impl JitterShape {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Uniform,
        Self::Exponential,
        Self::Correlated,
        Self::Spikes,
    ];

    /// What files call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Exponential => "exponential",
            Self::Correlated => "correlated",
            Self::Spikes => "spikes",
        }
    }
}

/// The jitter of one direction of a link.
#[derive(Clone, Debug)]
pub(crate) struct Jitter {
    most: Duration,
    shape: JitterShape,
    rng: Rng,
    /// Of the correlated shape: from where, to where, since when.
    from: f64,
    to: f64,
    turned_at: Instant,
}

impl Jitter {
    pub(crate) fn new(most: Duration, shape: JitterShape, rng: Rng) -> Self {
        Self {
            most,
            shape,
            rng,
            from: 0.0,
            to: 0.0,
            turned_at: Instant::EPOCH,
        }
    }

    /// The further delay of a packet that is through at `at`.
    pub(crate) fn draw(&mut self, at: Instant) -> Duration {
        if self.most.is_zero() {
            return Duration::ZERO;
        }
        match self.shape {
            JitterShape::Uniform => self.uniform(),
            JitterShape::Exponential => {
                let part = -(1.0 - self.rng.unit()).ln() * MEAN_PART;
                scale(self.most, part.min(1.0))
            }
            JitterShape::Correlated => self.wander(at),
            JitterShape::Spikes if self.rng.chance(SPIKE) => self.uniform(),
            JitterShape::Spikes => Duration::ZERO,
        }
    }

    fn uniform(&mut self) -> Duration {
        let most = u64::try_from(self.most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.below(most.saturating_add(1)))
    }

    fn wander(&mut self, at: Instant) -> Duration {
        let passed = at.since(self.turned_at);
        if passed >= TURN {
            self.from = if passed < TURN * 2 {
                self.to
            } else {
                self.rng.unit()
            };
            self.to = self.rng.unit();
            self.turned_at = at;
        }
        let way = at.since(self.turned_at).as_secs_f64() / TURN.as_secs_f64();
        scale(self.most, self.from + (self.to - self.from) * way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    #[test]
    fn shapes_differ_and_none_exceeds_the_most() {
        let most = Duration::from_millis(20);
        let mut found = Vec::new();
        for shape in JitterShape::ALL {
            let mut jitter = Jitter::new(most, shape, Seed(5).rng("jitter"));
            let mut at = Instant::EPOCH;
            let (mut sum, mut steps, mut last) = (0.0, 0.0, 0.0);
            for _ in 0..20_000 {
                at += Duration::from_millis(1);
                let late = jitter.draw(at);
                assert!(late <= most, "{shape:?}");
                let late = late.as_secs_f64() / most.as_secs_f64();
                steps += f64::abs(late - last);
                sum += late;
                last = late;
            }
            found.push((shape, sum / 20_000.0, steps / 20_000.0));
        }
        for (shape, mean, step) in found {
            let (means, steps) = match shape {
                JitterShape::Uniform => (0.48..0.52, 0.3..0.36),
                JitterShape::Exponential => (0.22..0.27, 0.2..0.27),
                JitterShape::Correlated => (0.45..0.55, 0.005..0.02),
                JitterShape::Spikes => (0.02..0.03, 0.04..0.06),
            };
            assert!(means.contains(&mean), "{shape:?}, seed 5: mean {mean}");
            assert!(steps.contains(&step), "{shape:?}, seed 5: step {step}");
        }
    }
}
