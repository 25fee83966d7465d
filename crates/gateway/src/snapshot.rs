//! How the gateway and its flows stand, for whoever shows it.

use tabane_base::Duration;

use crate::counters::{Bypass, Counters};
use crate::flow::{Flow, Stance};
use crate::key::Key;
use crate::meter::Figures;

/// The gateway.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What happened so far.
    pub counters: Counters,
    /// Bytes of memory that copies occupy.
    pub held: u64,
    /// Bytes acknowledged to servers that mobile hosts have not acknowledged.
    pub owed: u64,
    /// Handshakes on their way.
    pub opening: usize,
    /// Flows there are.
    pub flows: usize,
    /// The last ones that have ended, the oldest first, as they were then.
    pub ended: Vec<FlowSnapshot>,
    /// Of all flows together, those that have ended with them.
    pub figures: Figures,
}

/// One flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowSnapshot {
    /// Its ends.
    pub key: Key,
    /// What is done with it.
    pub stance: Stance,
    /// Why it is no longer assisted.
    pub bypass: Option<Bypass>,
    /// Smoothed round trip between the gateway and the mobile host.
    pub radio: Option<Duration>,
    /// Smoothed round trip between the gateway and the server.
    pub wired: Option<Duration>,
    /// Bytes of memory that copies occupy.
    pub held: u64,
    /// Bytes acknowledged early that the mobile host has not acknowledged.
    pub owed: u32,
    /// The server was told to wait.
    pub shut: bool,
    /// Both ends have timestamps or SACK: the server can find out by itself that it sent something
    /// for nothing.
    pub undoes: bool,
    /// Counted since its handshake.
    pub figures: Figures,
}

impl FlowSnapshot {
    pub(crate) fn of(flow: &Flow) -> Self {
        let meter = flow.meter();
        Self {
            key: flow.key(),
            stance: flow.stance(),
            bypass: flow.bypass(),
            radio: meter.radio.smoothed(),
            wired: meter.wired.smoothed(),
            held: flow.held() as u64,
            owed: flow.owed(),
            shut: flow.is_shut(),
            undoes: flow.agreed().timestamps || flow.agreed().sack,
            figures: meter.figures,
        }
    }
}
