//! The lab: the link model between two hosts of its own making, on the real kernel.
//!
//! Owns the namespaces `client` and `server`, the links between them as a [`Scenario`] describes
//! them, and the emulator that carries their frames; without privilege, [`Loopback`] relays
//! datagrams over the same model. Removes everything however the process ends. Knows no protocol
//! and measures nothing: whoever uses it runs programs at both ends.
//!
//! [`Scenario`]: tabane_netem::Scenario

mod background;
mod change;
mod control;
mod emulator;
mod error;
mod keeper;
mod lab;
mod loopback;
mod pairs;
mod scenario_file;
mod switchboard;
mod topology;

pub use background::{BackgroundLab, LabState, emulate};
pub use change::LinkChange;
pub use control::{Control, Health, LinkSnapshot, Snapshot};
pub use error::LabError;
pub use keeper::host_name;
pub use lab::{Lab, LabOptions};
pub use loopback::{Loopback, LoopbackLink};
pub use scenario_file::{load_scenario, load_scenarios, load_traces, trace_directories};
pub use topology::{LabLink, SERVICE, SERVICE6};
