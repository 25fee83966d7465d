//! What the loop tells the client or the relay that owns the engine.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use tabane_core::{Event, SocketId};

use super::SessionId;

/// News about sessions as a whole. News about single streams and flows go to whoever waits there.
#[derive(Debug)]
pub(crate) enum Notice {
    /// An event of a session.
    Session(SessionId, Event),
    /// A session that had ended is gone for good.
    Forgotten,
    /// A socket cannot send any more: its interface or address is gone.
    SocketLost(SocketId),
}

/// A queue for one reader. Its length is bounded by what core admits: streams and sessions.
#[derive(Default)]
pub(super) struct Notices {
    queue: VecDeque<Notice>,
    reader: Option<Waker>,
}

impl Notices {
    pub(super) fn push(&mut self, notice: Notice) {
        self.queue.push_back(notice);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<Notice> {
        if let Some(notice) = self.queue.pop_front() {
            return Poll::Ready(notice);
        }
        self.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}
