//! Whether to give way to a queue helps.
//!
//! Ours shrinks with the window: by Little's law, what is in flight is the rate times the round
//! trip. A queue that stays is somebody else's, or none: the path has become longer.

use tabane_base::{Bytes, Duration, scale};

use crate::congestion::scaled;

/// It is vain when the window in use is down to this part and the queue still has that.
const VAIN_WINDOW: f64 = 0.7;
const VAIN_QUEUE: f64 = 0.8;

/// The longest queue since we began to give way, and what was in flight with it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Yielding(Option<(Duration, Bytes)>);

impl Yielding {
    /// Whether `queue` stays although the window in use has shrunk to `window`.
    pub(super) fn is_vain(&mut self, queue: Duration, window: Bytes) -> bool {
        let from = self.0.filter(|(longest, _)| queue <= *longest);
        let (longest, before) = *self.0.insert(from.unwrap_or((queue, window)));
        window <= scaled(before, VAIN_WINDOW) && queue >= scale(longest, VAIN_QUEUE)
    }

    /// There is nothing to give way to.
    pub(super) const fn end(&mut self) {
        self.0 = None;
    }
}
