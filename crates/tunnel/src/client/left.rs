//! Sessions that are left because their relays go down: nothing new is opened on them, and what
//! they carry goes on.
//!
//! Owns how many there are, how they are seen, and that what is wished of links holds there, too.
//! When one is left is the supervisor's decision; they end with what they carry, by the relay's
//! word.

use tabane_core::{EndpointCounters, PathId, PathPolicy};

use super::link::Link;
use super::standing::{Left, Shared};
use super::{Client, ClientSnapshot, ClientState, LinkSnapshot};
use crate::engine::{SessionId, Visit, Volume};

/// Sessions that are waited for at once; beyond that the oldest is ended.
const MAX_LEFT: usize = 4;

impl Client {
    /// The same, and after it the sessions that are left by and by because their relays go down, as
    /// if they were clients of their own, but that the links' volumes are all with the first.
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
                volume: Volume::default(),
                ..link.clone()
            });
            Some(ClientSnapshot {
                state: ClientState::Connected,
                relay: left.relay,
                relay_named: left.relay.map(|relay| self.shared.called(relay)),
                links: links.collect(),
                sessions: 0,
                number: left.number,
                counters: EndpointCounters::default(),
                packets: None,
                session: Some(session),
            })
        });
        std::iter::once(present.clone()).chain(left).collect()
    }
}

impl Shared {
    /// Opens nothing new on the present session, which goes on with what it carries.
    pub(super) fn leave(&self, session: SessionId) {
        let paths = paths(&self.links.borrow());
        self.left.borrow_mut().push(Left {
            session,
            number: self.number.get(),
            relay: self.relay.get(),
            paths,
        });
        self.end_left(MAX_LEFT);
    }

    /// How a link may be used has changed.
    pub(super) fn set_policy_in_left(&self, link: &str, policy: PathPolicy) {
        self.visit_left(link, |visit, path| {
            // A path that core has given up needs none.
            let _ = visit.session.set_path_policy(visit.now, path, policy);
        });
    }

    /// A link is not to be used any more.
    pub(super) fn withdraw_from_left(&self, link: &str) {
        self.visit_left(link, |visit, path| {
            let _ = visit.session.close_path(visit.now, path);
        });
    }

    /// Classes may go by other links than before.
    pub(super) fn tell_classes_to_left(&self) {
        for left in self.left.borrow().iter() {
            self.tell_classes(left.session, &left.paths);
        }
    }

    fn visit_left(&self, link: &str, change: impl Fn(&mut Visit<'_>, PathId)) {
        for left in self.left.borrow().iter() {
            if let Some((_, path)) = left.paths.iter().find(|(name, _)| name == link) {
                self.engine.visit(left.session, |visit| {
                    change(visit, *path);
                    visit.touch();
                });
            }
        }
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

/// The paths that links have in the present session; two where their carriers are compared.
pub(super) fn paths(links: &[Link]) -> Vec<(String, PathId)> {
    let paths = links
        .iter()
        .flat_map(|link| link.paths().map(|path| (link.name().to_owned(), path)));
    paths.collect()
}
