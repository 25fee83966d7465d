//! TLS connections that were dialed, on their way to whoever attends the client.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio::sync::Notify;

use crate::carrier::{BoxStream, DialError};

/// What dials came to, for whoever attends the client.
#[derive(Default)]
pub(super) struct Dials {
    ended: RefCell<VecDeque<Dialed>>,
    notify: Notify,
}

/// A dial that ended.
pub(super) struct Dialed {
    pub(super) link: String,
    pub(super) relay: usize,
    pub(super) to: SocketAddr,
    pub(super) result: Result<BoxStream, DialError>,
}

impl Dials {
    pub(super) fn push(&self, dialed: Dialed) {
        self.ended.borrow_mut().push_back(dialed);
        self.notify.notify_one();
    }

    pub(super) async fn next(&self) -> Dialed {
        loop {
            if let Some(dialed) = self.ended.borrow_mut().pop_front() {
                return dialed;
            }
            self.notify.notified().await;
        }
    }
}
