//! The cooperative gateway on this machine's forwarded packets, or a relay of connections in its
//! place.
//!
//! [`Forwarder`] drives the pure gateway with packets from the kernel's queues, [`Splitter`] ends
//! connections here and joins two, of which `joined` keeps count; `rules` hangs both into the
//! packet filter, `report` says what they do. Who wants to know that is an [`Audience`].

mod audience;
mod forwarder;
mod joined;
mod report;
mod rules;
mod splitter;

pub use audience::Audience;
pub use forwarder::Forwarder;
pub use report::empty;
pub use rules::QUEUE_FIRST;
pub use splitter::Splitter;

/// Flows that are told of, the busiest: more than anybody reads, and filled in within microseconds.
const FLOWS_LISTED: usize = 100;
