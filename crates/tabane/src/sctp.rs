//! `tabane sctp`: files and TCP connections over SCTP, by all links, towards any SCTP endpoint.
//!
//! Owns what two of our programs say to each other beyond SCTP (`conversation`), which link and
//! address make a path (`ways`), which path a message takes (`scheduler`), and the sockets
//! (`driver`). SCTP itself is the crate below.

mod bridge;
pub(crate) mod conversation;
pub(crate) mod driver;
pub(crate) mod feed;
pub(crate) mod forward;
mod home;
pub(crate) mod links;
pub(crate) mod outgoing;
pub(crate) mod receiver;
pub(crate) mod report;
pub(crate) mod scheduler;
pub(crate) mod sender;
pub(crate) mod ways;

/// The SCTP port that is used when none is named.
pub(crate) const PORT: u16 = 4511;
/// Where SCTP is expected inside UDP (RFC 6951 §5.1).
pub(crate) const UDP_PORT: u16 = 9899;
