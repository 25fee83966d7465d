//! `tabane gateway`: the cooperative gateway on this machine's forwarded packets, or a relay in its
//! place.
//!
//! `forwarder` drives the pure gateway with packets from the kernel's queues, `splitter` ends
//! connections here and joins two, `rules` hangs both into the packet filter, `report` says what
//! they do, `door` is where others ask for that.

mod door;
mod forwarder;
mod report;
mod rules;
mod splitter;

pub(crate) use door::{ask, running};
pub(crate) use forwarder::Forwarder;
pub(crate) use report::{Report, metrics, screen};
pub(crate) use rules::QUEUE_FIRST;
pub(crate) use splitter::Splitter;
