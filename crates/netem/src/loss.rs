//! Which packets a link loses by chance.
//!
//! Chance is consumed once or twice per packet that leaves the transmitter, in order, so that a
//! run repeats from its seed however often the link is polled.

use std::fmt;

use tabane_base::Rng;

/// A probability in 0..=1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Probability {
    /// Never.
    pub const ZERO: Self = Self(0.0);
    /// Always.
    pub const ONE: Self = Self(1.0);

    /// `p`, if it lies in 0..=1.
    #[must_use]
    pub fn new(p: f64) -> Option<Self> {
        (0.0..=1.0).contains(&p).then_some(Self(p))
    }

    /// The probability as a number in 0..=1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0 * 100.0)
    }
}

/// How packets get lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossModel {
    /// Each packet for itself, with this probability.
    Random(Probability),
    /// Two states with a loss probability each; moves between them are drawn per packet
    /// (Gilbert 1960, Elliott 1963). Starts in the good state.
    GilbertElliott {
        /// Moving from good to bad.
        good_to_bad: Probability,
        /// Moving from bad to good.
        bad_to_good: Probability,
        /// Loss while good.
        loss_good: Probability,
        /// Loss while bad.
        loss_bad: Probability,
    },
    /// None at all.
    #[default]
    None,
}

impl LossModel {
    /// The share of packets lost in the long run.
    #[must_use]
    pub fn mean(&self) -> Probability {
        match *self {
            Self::None => Probability::ZERO,
            Self::Random(p) => p,
            Self::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_good,
                loss_bad,
            } => {
                let moves = good_to_bad.0 + bad_to_good.0;
                let bad = if moves > 0.0 {
                    good_to_bad.0 / moves
                } else {
                    0.0
                };
                Probability(bad * loss_bad.0 + (1.0 - bad) * loss_good.0)
            }
        }
    }
}

/// The running state of a loss model.
#[derive(Clone, Debug)]
pub(crate) struct Losses {
    model: LossModel,
    rng: Rng,
    bad: bool,
}

impl Losses {
    pub(crate) fn new(model: LossModel, rng: Rng) -> Self {
        Self {
            model,
            rng,
            bad: false,
        }
    }

    pub(crate) fn set_model(&mut self, model: LossModel) {
        self.model = model;
        self.bad = false;
    }

    /// Whether the next packet is lost.
    pub(crate) fn strikes(&mut self) -> bool {
        match self.model {
            LossModel::None => false,
            LossModel::Random(p) => self.rng.chance(p.0),
            LossModel::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_good,
                loss_bad,
            } => {
                let leave = if self.bad { bad_to_good } else { good_to_bad };
                if self.rng.chance(leave.0) {
                    self.bad = !self.bad;
                }
                let loss = if self.bad { loss_bad } else { loss_good };
                self.rng.chance(loss.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Seed;

    use super::*;

    fn p(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    #[test]
    fn gilbert_elliott_meets_its_mean_and_comes_in_bursts() {
        let model = LossModel::GilbertElliott {
            good_to_bad: p(0.01),
            bad_to_good: p(0.2),
            loss_good: p(0.0),
            loss_bad: p(0.5),
        };
        let mut losses = Losses::new(model, Seed(3).rng("loss"));
        let lost: Vec<bool> = (0..200_000).map(|_| losses.strikes()).collect();
        let share = lost.iter().filter(|l| **l).count() as f64 / lost.len() as f64;
        let mean = model.mean().get();
        assert!(
            (share / mean - 1.0).abs() < 0.1,
            "seed 3: {share} against {mean}"
        );
        let pairs = lost.windows(2).filter(|w| w[0] && w[1]).count() as f64;
        let after_loss = pairs / (share * lost.len() as f64);
        assert!(after_loss > 5.0 * mean, "seed 3: {after_loss}: no bursts");
    }
}
