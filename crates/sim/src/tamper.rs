//! What happens to packets beyond what a link does by itself.
//!
//! Owns chance alone: whether a packet that arrives is dropped, damaged, doubled or held back.

use tabane_base::{Duration, Rng};

/// How packets that come out of links are mistreated. All probabilities are per packet.
#[derive(Clone, Copy, Debug)]
pub struct Tamper {
    /// It vanishes.
    pub drop: f64,
    /// One to three of its bits are flipped.
    pub corrupt: f64,
    /// It arrives a second time, held back as if reordered.
    pub duplicate: f64,
    /// It is held back, for up to `reorder_by`, while others pass.
    pub reorder: f64,
    /// The longest a packet is held back.
    pub reorder_by: Duration,
    /// Datagrams with more bytes vanish without a word: a path's MTU, and nobody who tells it.
    pub largest: usize,
}

impl Default for Tamper {
    /// Nothing happens to any packet.
    fn default() -> Self {
        Self {
            drop: 0.0,
            corrupt: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            largest: usize::MAX,
        }
    }
}

/// What becomes of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) dropped: bool,
    /// Bits to flip, counted from the packet's start.
    pub(crate) flips: Vec<u64>,
    /// How much later it arrives.
    pub(crate) held: Duration,
    /// How much later a copy arrives.
    pub(crate) copy: Option<Duration>,
}

impl Tamper {
    /// Draws the fate of a packet of `len` bytes.
    pub(crate) fn draw(&self, rng: &mut Rng, len: usize) -> Fate {
        let mut fate = Fate {
            dropped: rng.chance(self.drop) || len > self.largest,
            ..Fate::default()
        };
        if rng.chance(self.corrupt) {
            let flips = 1 + rng.below(3);
            fate.flips = (0..flips).map(|_| rng.below(len as u64 * 8)).collect();
        }
        if rng.chance(self.reorder) {
            fate.held = self.hold(rng);
        }
        if rng.chance(self.duplicate) {
            fate.copy = Some(self.hold(rng));
        }
        fate
    }

    fn hold(&self, rng: &mut Rng) -> Duration {
        Duration::from_nanos(rng.below(self.reorder_by.as_nanos() as u64 + 1))
    }
}
