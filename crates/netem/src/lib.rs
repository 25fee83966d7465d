//! One model of a link, shared by the simulator (virtual time), the lab (real time, between
//! namespaces) and the loopback relays of the demonstration.
//!
//! Owns the [`Link`] (queue → rate or trace → delay and jitter → loss and outage), the [`Trace`]
//! format, links of radio made by seed ([`Radio`]), and the [`Scenario`] files. Pure: time, chance
//! and the contents of files are arguments. Knows nothing of what a packet is, nor of who uses it.

#![forbid(unsafe_code)]

mod counters;
mod jitter;
mod link;
mod link_spec;
mod loss;
mod quantity;
mod radio;
mod scenario;
mod schedule;
mod trace;
mod transmitter;

pub use counters::{Count, Counters, DropReason};
pub use jitter::JitterShape;
pub use link::{Link, LinkConfig, RateModel};
pub use link_spec::{Direction, LinkSpec};
pub use loss::{LossModel, Probability};
pub use radio::{Radio, RadioKind, UnknownRadio};
pub use scenario::{MAX_LINKS, Scenario, ScenarioError};
pub use schedule::{Change, Outage};
pub use trace::{OPPORTUNITY, Trace, TraceError};
