//! What a gateway does, for a terminal, and which of this machine's gateways is meant.

mod lookup;
mod report;

pub(crate) use lookup::{find, name};
pub(crate) use report::screen;
