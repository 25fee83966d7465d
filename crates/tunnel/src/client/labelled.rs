//! Which streams bear labels, so that they follow what these come to say.

use tabane_core::StreamId;

use crate::engine::SessionId;
use crate::label::{Label, WeakLabel};

/// Streams with labels.
#[derive(Default)]
pub(super) struct Labelled {
    pub(super) streams: Vec<(SessionId, StreamId, WeakLabel)>,
    /// Those that are over are looked for at this length.
    sweep_at: usize,
}

impl Labelled {
    /// One more.
    pub(super) fn add(&mut self, session: SessionId, stream: StreamId, label: &Label) {
        /// Fewer are not worth looking through.
        const LEAST: usize = 64;
        if self.streams.len() >= self.sweep_at.max(LEAST) {
            self.streams
                .retain(|(_, _, label)| label.upgrade().is_some());
            self.sweep_at = 2 * self.streams.len();
        }
        self.streams.push((session, stream, label.downgrade()));
    }
}
