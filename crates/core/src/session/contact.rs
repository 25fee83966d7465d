//! How far a session and its other end know each other, and what they have by then.
//!
//! Owns the handshake while there are no keys, and the keys from then on, with what only ends that
//! know each other have. Whether the session goes on is not said here: a good-bye leaves with
//! whatever there is.

use std::mem;

use tabane_base::Instant;

use super::admission::Admission;
use crate::config::SessionConfig;
use crate::crypto::SessionKeys;
use crate::handshake::{Agreed, Handshake};
use crate::id::ConnectionId;
use crate::identity::PublicKey;
use crate::parameters::Parameters;

pub(super) enum Contact {
    Handshaking {
        handshake: Box<Handshake>,
        /// Client: what it is going to show.
        token: Option<Vec<u8>>,
        since: Instant,
    },
    Agreed(Box<Agreement>),
}

/// What packets are made with, and for whom.
pub(super) struct Agreement {
    pub(super) keys: SessionKeys,
    /// How the other end knows the session.
    pub(super) remote: ConnectionId,
    /// Whose session it is.
    pub(super) peer_key: PublicKey,
    /// What the other end takes.
    pub(super) peer: Parameters,
    pub(super) admission: Admission,
    /// The client has been asked to open nothing new [P-9.5]; it may hear so before it is let in.
    sent_away: bool,
    /// Client: the last flight, repeated until a packet shows that it came.
    last_flight: Option<Box<Handshake>>,
}

impl Agreement {
    /// When the session ends by itself, if nothing was heard after `heard_at`.
    pub(super) fn idle_at(&self, heard_at: Instant, config: &SessionConfig) -> Instant {
        match self.admission {
            Admission::Applying { since, .. } => since + config.handshake_timeout,
            Admission::Admitted => heard_at + config.idle_timeout.min(self.peer.idle_timeout),
        }
    }

    /// The client is asked to open nothing new; `true` for the first time.
    pub(super) const fn send_away(&mut self) -> bool {
        !mem::replace(&mut self.sent_away, true)
    }
}

impl Contact {
    pub(super) fn handshake(&self) -> Option<&Handshake> {
        match self {
            Self::Handshaking { handshake, .. } => Some(handshake),
            Self::Agreed(agreement) => agreement.last_flight.as_deref(),
        }
    }

    pub(super) fn handshake_mut(&mut self) -> Option<&mut Handshake> {
        match self {
            Self::Handshaking { handshake, .. } => Some(handshake),
            Self::Agreed(agreement) => agreement.last_flight.as_deref_mut(),
        }
    }

    pub(super) fn agreement(&self) -> Option<&Agreement> {
        match self {
            Self::Handshaking { .. } => None,
            Self::Agreed(agreement) => Some(agreement),
        }
    }

    pub(super) fn agreement_mut(&mut self) -> Option<&mut Agreement> {
        match self {
            Self::Handshaking { .. } => None,
            Self::Agreed(agreement) => Some(agreement),
        }
    }

    pub(super) fn keys_mut(&mut self) -> Option<&mut SessionKeys> {
        self.agreement_mut().map(|agreement| &mut agreement.keys)
    }

    pub(super) fn peer(&self) -> Option<&Parameters> {
        self.agreement().map(|agreement| &agreement.peer)
    }

    /// What the client shows.
    pub(super) fn token(&self) -> &[u8] {
        let agreement = self.agreement();
        agreement.map_or(&[], |it| it.admission.token())
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.agreement().is_some_and(|it| it.admission.is_granted())
    }

    /// There are keys. `repeats` where the last flight may have to go again.
    pub(super) fn agree(&mut self, agreed: Agreed, repeats: bool) {
        let Self::Handshaking { token, since, .. } = self else {
            return;
        };
        let (token, since) = (token.take(), *since);
        let agreement = Agreement {
            keys: agreed.keys,
            remote: agreed.peer,
            peer_key: agreed.peer_key,
            peer: agreed.parameters,
            admission: Admission::Applying { token, since },
            sent_away: false,
            last_flight: None,
        };
        let before = mem::replace(self, Self::Agreed(Box::new(agreement)));
        if let (Self::Agreed(now), Self::Handshaking { handshake, .. }, true) =
            (self, before, repeats)
        {
            now.last_flight = Some(handshake);
        }
    }

    /// The last flight has come; whether it had been in doubt.
    pub(super) fn confirm(&mut self) -> bool {
        let agreement = self.agreement_mut();
        agreement.is_some_and(|it| it.last_flight.take().is_some())
    }
}
