//! The sessions that were let in, and whose user's each is, for those who look at the relay.
//!
//! As many entries as there are sessions; the lock is held for a look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::user::User;

/// By session. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Members(Arc<Mutex<BTreeMap<u64, Option<User>>>>);

/// One of them, until this is dropped.
pub(super) struct Member {
    members: Members,
    session: u64,
}

impl Members {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Option<User>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This session is of that user, or of nobody's.
    pub(super) fn add(&self, session: u64, user: Option<&User>) -> Member {
        self.lock().insert(session, user.cloned());
        Member {
            members: self.clone(),
            session,
        }
    }

    /// Whose a session is, if it is a user's.
    pub(super) fn user_of(&self, session: u64) -> Option<User> {
        self.lock().get(&session).cloned().flatten()
    }

    /// How many sessions there are.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.members.lock().remove(&self.session);
    }
}
