//! One-way delay of a path, as far as it can be known without a common clock.
//!
//! The receiver's time minus ours is the delay plus an unknown offset of the clocks; the offset is
//! the same for all paths of a session, so differences between paths are true (R-M/TCP's OWTT,
//! design/transport.md). Halving the round trip instead held up to 2.6 times more in the
//! resequencer.

use tabane_base::Instant;

/// Weight of a new sample: one eighth, as for the round-trip time (RFC 6298).
const GAIN_SHIFT: u32 = 3;

/// Smoothed forward delay plus clock offset, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ForwardDelay {
    smoothed: Option<i64>,
}

impl ForwardDelay {
    /// A packet sent at `sent_at` by our clock arrived at `arrived_at` by the peer's.
    pub(crate) fn on_sample(&mut self, sent_at: Instant, arrived_at: Instant) {
        let sample = arrived_at.nanos_from(sent_at);
        self.smoothed = Some(self.smoothed.map_or(sample, |smoothed| {
            smoothed.saturating_add(sample.saturating_sub(smoothed) >> GAIN_SHIFT)
        }));
    }

    /// The path came back or moved: its past says nothing.
    pub(crate) fn reset(&mut self) {
        self.smoothed = None;
    }

    /// Nanoseconds, comparable between paths of one session only.
    pub(crate) const fn relative(&self) -> Option<i64> {
        self.smoothed
    }
}
