//! SCTP (RFC 9260) over usrsctp, the stack that FreeBSD's kernel has, in user space.
//!
//! Owns one safe type, [`Stack`], the bindings below it, the watch over calls into C, and what
//! drives it on real links for `tabane sctp` ([`shell`]). The stack is driven: packets go in by
//! `handle_packet`, time by `handle_timers`, packets come out of `poll_transmit` and news of
//! `poll_event`. It has no sockets, and no `unsafe` is in the shell; whoever drives it sends a
//! packet over the link that the packet names. No call waits for the network.
//!
//! What a destination address is to the stack, a *path* is to us: a link of ours and an address of
//! the peer. The stack is shown an address of its own invention for every path ([`path`]), so two
//! links towards one peer address are two paths, though no receiver had to be changed for that.
//!
//! Kernel SCTP is not used: Linux has no CMT, on which our figures rest. Peers may well be kernels.

mod association;
mod brake;
mod correspondents;
mod event;
mod ffi;
mod identity;
mod library;
mod opening;
mod output;
mod own;
pub mod packet;
pub mod path;
mod pulse;
mod rescue;
mod settings;
pub mod shell;
mod stack;
mod told;
mod watchdog;

pub use association::{Incoming, Message, PathState, PathStatus, Piece, SctpError, Sent, Transmit};
pub use event::Event;
pub use identity::{AssociationId, EndpointId};
pub use library::Failure;
pub use path::{LinkId, PathId, PathTuple};
pub use settings::{Families, Multipath, Settings};
pub use shell::conversation::fuzz_notes;
pub use stack::Stack;
