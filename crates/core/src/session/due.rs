//! What the session itself has still to say to the other end, or to say again.

use std::collections::VecDeque;

use crate::id::PathId;
use crate::recovery::{SentFrame, SentFrames};
use crate::wire::Frame;

/// PATH_ABANDON's type and path.
const ABANDON_MAX: usize = 1 + 8;

/// Session-level frames that are due.
#[derive(Debug, Default)]
pub(super) struct Due {
    hello: bool,
    admitted: bool,
    go_away: bool,
    abandon: VecDeque<PathId>,
}

impl Due {
    pub(super) const fn hello(&mut self) {
        self.hello = true;
    }

    pub(super) const fn admitted(&mut self) {
        self.admitted = true;
    }

    pub(super) const fn go_away(&mut self) {
        self.go_away = true;
    }

    pub(super) fn abandon(&mut self, id: PathId) {
        self.abandon.push_back(id);
    }

    pub(super) fn has_any(&self) -> bool {
        self.hello || self.admitted || self.go_away || !self.abandon.is_empty()
    }

    /// What is due leaves, up to `end`; a hello shows `token`.
    pub(super) fn fill(
        &mut self,
        token: &[u8],
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) {
        if std::mem::take(&mut self.hello) {
            Frame::Hello { token }.emit(out);
            frames.push(SentFrame::Hello);
        }
        if std::mem::take(&mut self.admitted) {
            Frame::Admitted.emit(out);
            frames.push(SentFrame::Admitted);
        }
        if std::mem::take(&mut self.go_away) {
            Frame::GoAway.emit(out);
            frames.push(SentFrame::GoAway);
        }
        while out.len() + ABANDON_MAX <= end
            && let Some(id) = self.abandon.pop_front()
        {
            Frame::PathAbandon(id).emit(out);
            frames.push(SentFrame::PathAbandon(id));
        }
    }
}
