//! A relay on a machine of its owner's: who may use it, under which addresses it is known, and what
//! this machine has to do for it.
//!
//! Owns users, tokens and clients with their file, the list in force in the running relay, budgets
//! and counters, the pool's device and rules, the door for TLS, and the order in which all of it is
//! opened. Serving sessions is `tabane-tunnel`'s. Nothing here reads a command line or speaks to a
//! terminal, and no file is read or written on the thread that carries packets.

#![forbid(unsafe_code)]

mod access;
mod addresses;
mod doors;
mod exit;
mod gatekeeper;
mod service;
mod state;
mod usage;
mod view;

pub use access::{AccessFile, AccessList, ClientEntry, TokenEntry, TokenUses, UserEntry, UserName};
pub use doors::{Doors, TlsListen};
pub use gatekeeper::Door;
pub use service::{RelayOrder, RelayService};
pub use state::RelayState;
pub use usage::{Usage, UsageFile};
pub use view::RelayView;
