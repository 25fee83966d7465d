//! Who wants to be let in, and the answer to it.
//!
//! Owns the way of an answer back to the relay, now or later. Who is let in is the application's to
//! decide.

use tabane_core::{CloseReason, PublicKey};
use tokio::sync::mpsc;

use super::user::User;
use crate::engine::SessionId;

/// Is given everybody who wants to be let in, and answers now or later.
pub type Authorise = Box<dyn FnMut(Applicant)>;

/// A client that wants to be let in. Without an answer its session ends with the time for
/// handshakes.
pub struct Applicant {
    /// Its proven key.
    pub key: PublicKey,
    /// The token that it shows.
    pub token: Option<Vec<u8>>,
    pub(super) session: SessionId,
    pub(super) answers: mpsc::UnboundedSender<Answer>,
}

/// What was decided about the client of a session.
pub(super) type Answer = (SessionId, PublicKey, Admission);

impl Applicant {
    /// Decides about it.
    pub fn answer(self, verdict: Admission) {
        // A relay that is gone needs no answer.
        let _ = self.answers.send((self.session, self.key, verdict));
    }
}

/// Whether a client is let in.
#[derive(Clone)]
pub enum Admission {
    /// It may have a session, with the limits of this user if it is one's.
    Admit(Option<User>),
    /// It may not, and is told why.
    Refuse(CloseReason),
}
