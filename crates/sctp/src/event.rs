//! News of associations: the library's notifications as values.

use crate::ffi;
use crate::identity::AssociationId;
use crate::library;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An association is set up, by either end. It also comes when the peer begins anew; then what
    /// was under way is lost.
    Up {
        /// The association.
        association: AssociationId,
        /// It is the peer's second beginning.
        restarted: bool,
    },
    /// The peer gave a number of its own with the set-up (RFC 5061 §4.2.6), which tells programs
    /// that know each other.
    Adaptation {
        /// Of which association.
        association: AssociationId,
        /// The number.
        indication: u32,
    },
    /// The peer has sent everything and wants to end.
    PeerDone {
        /// Of which association.
        association: AssociationId,
    },
    /// Ended, with everything delivered.
    Closed {
        /// The association.
        association: AssociationId,
    },
    /// Could not be set up, was aborted, or nothing was heard any more.
    Lost {
        /// The association.
        association: AssociationId,
        /// It never stood.
        never_up: bool,
    },
}

/// Reads a notification; `None` for those that tell nothing new.
pub(crate) fn parse(bytes: &[u8]) -> Option<Event> {
    let kind = u16::from_ne_bytes(*bytes.first_chunk()?);
    match kind {
        ffi::SCTP_ASSOC_CHANGE => association_change(library::read(bytes)?),
        ffi::SCTP_ADAPTATION_INDICATION => {
            let event: ffi::AdaptationEvent = library::read(bytes)?;
            Some(Event::Adaptation {
                association: AssociationId(event.sai_assoc_id),
                indication: event.sai_adaptation_ind,
            })
        }
        ffi::SCTP_SHUTDOWN_EVENT => {
            let event: ffi::ShutdownEvent = library::read(bytes)?;
            let association = AssociationId(event.sse_assoc_id);
            Some(Event::PeerDone { association })
        }
        _ => None,
    }
}

fn association_change(change: ffi::AssocChange) -> Option<Event> {
    let association = AssociationId(change.sac_assoc_id);
    match change.sac_state {
        ffi::SCTP_COMM_UP | ffi::SCTP_RESTART => Some(Event::Up {
            association,
            restarted: change.sac_state == ffi::SCTP_RESTART,
        }),
        ffi::SCTP_SHUTDOWN_COMP => Some(Event::Closed { association }),
        ffi::SCTP_COMM_LOST | ffi::SCTP_CANT_STR_ASSOC => Some(Event::Lost {
            association,
            never_up: change.sac_state == ffi::SCTP_CANT_STR_ASSOC,
        }),
        _ => None,
    }
}
