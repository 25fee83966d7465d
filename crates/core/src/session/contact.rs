//! How far a session and its other end know each other, and what they have by then.
//!
//! Owns the handshake while there are no keys, and the keys from then on. Whether the session goes
//! on is not said here: a good-bye leaves with whatever there is.

use std::mem;

use crate::crypto::SessionKeys;
use crate::handshake::{Agreed, Handshake};
use crate::id::ConnectionId;
use crate::identity::PublicKey;

pub(super) enum Contact {
    Handshaking(Box<Handshake>),
    Agreed(Box<Agreement>),
}

/// What packets are made with, and for whom.
pub(super) struct Agreement {
    pub(super) keys: SessionKeys,
    /// How the other end knows the session.
    pub(super) remote: ConnectionId,
    /// Whose session it is.
    pub(super) peer_key: PublicKey,
    /// Client: the last flight, repeated until a packet shows that it came.
    last_flight: Option<Box<Handshake>>,
}

impl Contact {
    pub(super) fn handshake(&self) -> Option<&Handshake> {
        match self {
            Self::Handshaking(handshake) => Some(handshake),
            Self::Agreed(agreement) => agreement.last_flight.as_deref(),
        }
    }

    pub(super) fn handshake_mut(&mut self) -> Option<&mut Handshake> {
        match self {
            Self::Handshaking(handshake) => Some(handshake),
            Self::Agreed(agreement) => agreement.last_flight.as_deref_mut(),
        }
    }

    pub(super) fn agreement(&self) -> Option<&Agreement> {
        match self {
            Self::Handshaking(_) => None,
            Self::Agreed(agreement) => Some(agreement),
        }
    }

    pub(super) fn keys_mut(&mut self) -> Option<&mut SessionKeys> {
        match self {
            Self::Handshaking(_) => None,
            Self::Agreed(agreement) => Some(&mut agreement.keys),
        }
    }

    /// There are keys. `repeats` where the last flight may have to go again.
    pub(super) fn agree(&mut self, agreed: Agreed, repeats: bool) {
        let agreement = Agreement {
            keys: agreed.keys,
            remote: agreed.peer,
            peer_key: agreed.peer_key,
            last_flight: None,
        };
        let before = mem::replace(self, Self::Agreed(Box::new(agreement)));
        if let (Self::Agreed(now), Self::Handshaking(handshake), true) = (self, before, repeats) {
            now.last_flight = Some(handshake);
        }
    }

    /// The last flight has come; whether it had been in doubt.
    pub(super) fn confirm(&mut self) -> bool {
        match self {
            Self::Handshaking(_) => false,
            Self::Agreed(agreement) => agreement.last_flight.take().is_some(),
        }
    }
}
