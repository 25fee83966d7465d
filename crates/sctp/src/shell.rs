//! `tabane sctp`: files and TCP connections over SCTP, by all links, towards any SCTP endpoint.
//!
//! Owns what two of our programs say to each other beyond SCTP (`conversation`), where a peer is
//! (`remotes`), which link and address make a path (`ways`), which path a message takes
//! (`scheduler`), and the sockets (`driver`). SCTP itself is the [`Stack`](crate::Stack)'s, which
//! links there are is `tabane-uplinks`'.

#![forbid(unsafe_code)]

mod bridge;
pub(crate) mod conversation;
mod driver;
mod feed;
pub mod forward;
mod home;
mod links;
mod outgoing;
pub mod receiver;
mod remotes;
pub mod report;
mod scheduler;
pub mod sender;
mod ways;

pub use remotes::resolve;
pub use scheduler::Scheduler;

/// The SCTP port that is used when none is named.
pub const PORT: u16 = 4511;
/// Where SCTP is expected inside UDP (RFC 6951 §5.1).
pub const UDP_PORT: u16 = 9899;
