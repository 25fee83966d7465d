//! The sessions of an endpoint, by handle and by what packets call them.
//!
//! Owns that a session and its names come and go together, and that no two have the same. Who may
//! have one, and what it does, is others' business.

use std::collections::BTreeMap;

use crate::id::{AttemptId, ConnectionId, SessionHandle};
use crate::session::Session;

/// A session, and the name of the handshake that it began with.
struct Place {
    attempt: AttemptId,
    session: Session,
}

/// All sessions of an endpoint.
#[derive(Default)]
pub(super) struct Sessions {
    places: Vec<Option<Place>>,
    /// Indices of places that are empty.
    free: Vec<usize>,
    by_id: BTreeMap<ConnectionId, SessionHandle>,
    by_attempt: BTreeMap<AttemptId, SessionHandle>,
}

impl Sessions {
    /// Takes in a session whose handshake has this name.
    pub(super) fn insert(&mut self, attempt: AttemptId, session: Session) -> SessionHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let handle = SessionHandle(index);
        self.by_id.insert(session.local_id(), handle);
        self.by_attempt.insert(attempt, handle);
        self.places[index] = Some(Place { attempt, session });
        handle
    }

    /// Forgets a session and its names.
    pub(super) fn remove(&mut self, handle: SessionHandle) {
        let Some(place) = self.places.get_mut(handle.0).and_then(Option::take) else {
            return;
        };
        self.free.push(handle.0);
        self.by_id.remove(&place.session.local_id());
        self.by_attempt.remove(&place.attempt);
    }

    pub(super) fn get_mut(&mut self, handle: SessionHandle) -> Option<&mut Session> {
        let place = self.places.get_mut(handle.0)?.as_mut();
        place.map(|place| &mut place.session)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (SessionHandle, &mut Session)> {
        let places = self.places.iter_mut().enumerate();
        places
            .filter_map(|(index, place)| Some((SessionHandle(index), &mut place.as_mut()?.session)))
    }

    pub(super) fn get(&self, handle: SessionHandle) -> Option<&Session> {
        let place = self.places.get(handle.0)?.as_ref();
        place.map(|place| &place.session)
    }

    /// The session that short headers call `id`.
    pub(super) fn find(&self, id: ConnectionId) -> Option<SessionHandle> {
        self.by_id.get(&id).copied()
    }

    /// The session whose handshake long headers call `attempt`.
    pub(super) fn find_attempt(&self, attempt: AttemptId) -> Option<SessionHandle> {
        self.by_attempt.get(&attempt).copied()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = SessionHandle> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, place)| place.is_some().then_some(SessionHandle(index)))
    }
}
