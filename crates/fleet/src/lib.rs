//! A fleet of relays: who belongs to it, how a client knows, and how much of a volume each may
//! give.
//!
//! A fleet has a key pair of its own. Its key signs every relay's key ([`Certificate`]) and the
//! list of relays ([`RelayList`]) [P-F]; a client that pins it needs nothing else to know every
//! relay there is or will be. Volumes are lent to relays in allotments ([`Account`],
//! [`Allotment`]), so that no relay asks anybody for every packet and all of them together give no
//! more than there is.
//!
//! Pure: no clock, no store, no sockets. Where records are kept, and how clients come by a list, is
//! others' business.

#![forbid(unsafe_code)]

mod allotment;
mod certificate;
mod form;
mod list;

pub use allotment::{Account, Allotment, allotment_at, allotment_of};
pub use certificate::{Certificate, MAX_NAME, is_name};
pub use form::FormError;
pub use list::{ListEntry, ListError, MAX_LIST, RelayList, fuzz_list};
