//! `tabane gateway`: the cooperative gateway on this machine's forwarded packets, or a relay in its
//! place.
//!
//! `forwarder` drives the pure gateway with packets from the kernel's queues, `splitter` ends
//! connections here and joins two, of which `joined` keeps count; `rules` hangs both into the
//! packet filter, `report` says what they do, `lookup` finds the one that is asked for.

mod forwarder;
mod joined;
mod lookup;
mod report;
mod rules;
mod splitter;

pub(crate) use forwarder::Forwarder;
pub(crate) use lookup::{find, name};
pub(crate) use report::screen;
pub(crate) use rules::QUEUE_FIRST;
pub(crate) use splitter::Splitter;

/// Flows that are told of, the busiest: more than anybody reads, and filled in within microseconds.
const FLOWS_LISTED: usize = 100;
