//! What a machine does for others' connections: as their far end ([`RelayService`]), or in their
//! middle ([`gateway`]).
//!
//! Owns users, tokens and clients with their file, the list in force in the running relay, budgets
//! and counters, the pool's device and rules, the door for TLS, and the order in which all of it is
//! opened; the pure gateway between the kernel's queues, and connections split in two. Serving
//! sessions is `tabane-tunnel`'s. Nothing here reads a command line or speaks to a terminal, and no
//! file is read or written on the thread that carries packets.

#![forbid(unsafe_code)]

mod access;
mod addresses;
mod doors;
#[cfg(feature = "fleet")]
mod etcd;
mod exit;
#[cfg(feature = "fleet")]
mod fleet;
mod gatekeeper;
pub mod gateway;
mod keeper;
mod partner;
mod room;
mod service;
mod state;
mod succession;
mod usage;
mod user_report;
mod view;
mod waiting_room;

pub use access::{AccessFile, AccessList, ClientEntry, TokenEntry, TokenUses, UserEntry, UserName};
pub use doors::{Doors, TlsListen};
#[cfg(feature = "fleet")]
pub use etcd::FleetAddress;
#[cfg(feature = "fleet")]
pub use fleet::{FleetBook, FleetFile, FleetOrder, FleetOwner, check_fleet_words, fuzz_etcd};
pub use gatekeeper::Door;
pub use service::{RelayOrder, RelayService};
pub use state::RelayState;
pub use succession::{Estate, Upgrade};
pub use usage::{UsageCounters, UsageFile};
pub use user_report::UserReport;
pub use view::RelayView;
