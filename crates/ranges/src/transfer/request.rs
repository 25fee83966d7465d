//! A request that is out.

use tabane_base::{Bytes, Instant};

use super::{Method, SourceId};
use crate::link::LinkId;
use crate::span::Span;

/// A request that is out.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) link: LinkId,
    pub(super) source: SourceId,
    pub(super) method: Method,
    /// What the server was asked to send, or said it would.
    pub(super) asked: Span,
    /// Where the next byte belongs.
    pub(super) position: u64,
    /// What lies from here on is left to others; the server does not know and sends on.
    pub(super) until: u64,
    pub(super) sent_at: Instant,
    /// When the answer was expected.
    pub(super) due_at: Instant,
    /// The last sign of it.
    pub(super) heard_at: Instant,
    pub(super) answered_at: Option<Instant>,
}

impl Live {
    /// What it still has to bring.
    pub(super) fn rest(&self) -> Span {
        Span {
            start: self.position,
            end: self.until,
        }
    }

    /// How much that is.
    pub(super) fn outstanding(&self) -> Bytes {
        Bytes::new(self.rest().len())
    }
}
