//! Sessions that are left because their relays go down: nothing new is opened on them, and what
//! they carry goes on.
//!
//! Owns how many there are, and how they are seen. When one is left is the supervisor's decision;
//! they end with what they carry, by the relay's word.

use tabane_core::{EndpointCounters, PathId};

use super::{Client, ClientSnapshot, ClientState, LinkSnapshot, Shared};
use crate::engine::SessionId;

/// Sessions that are waited for at once; beyond that the oldest is ended.
const MAX_LEFT: usize = 4;

/// One of them.
pub(super) struct Left {
    pub(super) session: SessionId,
    number: u64,
    relay: Option<usize>,
    /// By link.
    paths: Vec<(String, PathId)>,
}

impl Client {
    /// The same, and after it the sessions that are left by and by because their relays go down, as
    /// if they were clients of their own.
    #[must_use]
    pub fn snapshots(&self) -> Vec<ClientSnapshot> {
        let shared = &self.shared;
        let present = self.snapshot();
        let left = shared.left.borrow();
        let left = left.iter().filter_map(|left| {
            let session = shared.engine.snapshot(left.session)?;
            let path = |name: &str| {
                let (_, id) = left.paths.iter().find(|(link, _)| link == name)?;
                session.paths.iter().find(|path| path.id == *id).cloned()
            };
            let links = present.links.iter().map(|link| LinkSnapshot {
                path: path(&link.name),
                ..link.clone()
            });
            Some(ClientSnapshot {
                state: ClientState::Connected,
                relay: left.relay,
                links: links.collect(),
                sessions: 0,
                number: left.number,
                counters: EndpointCounters::default(),
                session: Some(session),
            })
        });
        std::iter::once(present.clone()).chain(left).collect()
    }
}

impl Shared {
    /// Opens nothing new on the present session, which goes on with what it carries.
    pub(super) fn leave(&self, session: SessionId) {
        let links = self.links.borrow();
        let paths = links.iter();
        let paths = paths.filter_map(|link| Some((link.name().to_owned(), link.path()?)));
        self.left.borrow_mut().push(Left {
            session,
            number: self.number.get(),
            relay: self.relay.get(),
            paths: paths.collect(),
        });
        self.end_left(MAX_LEFT);
    }

    /// Ends the oldest of the sessions that were left, where there are more than `most`.
    pub(super) fn end_left(&self, most: usize) {
        let mut left = self.left.borrow_mut();
        let ended = left.len().saturating_sub(most);
        for left in left.drain(..ended) {
            self.say_goodbye(left.session);
        }
    }
}
