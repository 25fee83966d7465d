//! What a run came to: values to print and to compare.

use tabane_base::{Bytes, Duration, Instant, Rate};
use tabane_core::PathSnapshot;

/// Progress is kept in steps of this length.
const STEP: Duration = Duration::from_millis(100);

/// One path as its sender saw it at the end.
#[derive(Clone, Debug)]
pub struct PathOutcome {
    /// The sender's view.
    pub path: PathSnapshot,
    /// The most that ever waited in the link's queue.
    pub queue_max: Bytes,
    /// Packets that found the link's queue full.
    pub queue_drops: u64,
}

/// The delivery of one direction's stream data, as it happened.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Bytes delivered in each step of 100 ms.
    steps: Vec<u64>,
    first_at: Option<Instant>,
    last_at: Option<Instant>,
    silence_max: Duration,
    delivered: u64,
}

impl Outcome {
    /// `n` bytes reach the reader.
    pub(crate) fn on_delivered(&mut self, now: Instant, n: u64) {
        if n == 0 {
            return;
        }
        if let Some(last) = self.last_at {
            self.silence_max = self.silence_max.max(now - last);
        }
        self.first_at.get_or_insert(now);
        self.last_at = Some(now);
        self.delivered += n;
        let step = (now.as_nanos() / STEP.as_nanos() as u64) as usize;
        if self.steps.len() <= step {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += n;
    }

    /// Everything delivered.
    #[must_use]
    pub const fn delivered(&self) -> Bytes {
        Bytes::new(self.delivered)
    }

    /// The longest time between two deliveries.
    #[must_use]
    pub const fn silence_max(&self) -> Duration {
        self.silence_max
    }

    /// When the first byte was delivered.
    #[must_use]
    pub const fn first_at(&self) -> Option<Instant> {
        self.first_at
    }

    /// Mean rate from the start of the world, handshake and start-up included, until `end`.
    #[must_use]
    pub fn goodput(&self, end: Instant) -> Rate {
        Rate::of(self.delivered(), end - Instant::EPOCH)
    }

    /// Mean rate between two moments, in whole steps of 100 ms.
    #[must_use]
    pub fn goodput_between(&self, from: Instant, to: Instant) -> Rate {
        let step = STEP.as_nanos() as u64;
        let (first, last) = (
            (from.as_nanos() / step) as usize,
            (to.as_nanos() / step) as usize,
        );
        let bytes = self.steps.iter().take(last).skip(first).sum();
        Rate::of(Bytes::new(bytes), STEP * (last - first) as u32)
    }
}
