//! The cooperative gateway on this machine's forwarded packets, or a relay of connections in its
//! place.
//!
//! [`Forwarder`] drives the pure gateway with packets from the kernel's queues, [`Splitter`] ends
//! connections here and joins two, of which `joined` keeps count; `rules` hangs both into the
//! packet filter, `report` says what they do. Who wants to know that is an [`Audience`].

mod forwarder;
mod joined;
mod report;
mod rules;
mod splitter;

use tabane_control::Gateway;

pub use forwarder::Forwarder;
pub use report::empty;
pub use rules::QUEUE_FIRST;
pub use splitter::Splitter;

/// Flows that are told of, the busiest: more than anybody reads, and filled in within microseconds.
const FLOWS_LISTED: usize = 100;

/// Those who are told what a gateway does, when they ask and at no other time.
pub trait Audience {
    /// Waits until somebody wants to know how things stand, whom [`tell`](Self::tell) answers.
    /// Nothing is lost where the wait is given up.
    fn asked(&mut self) -> impl Future<Output = ()>;

    /// Tells those who have asked.
    fn tell(&mut self, gateway: Gateway);
}
