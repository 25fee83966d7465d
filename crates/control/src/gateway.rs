//! What a gateway tells of itself, beside what every instance does.
//!
//! Owns the types; what the figures mean is the gateway's affair (`docs/gateway.md`). Values are
//! plain, so that a thread with packets waiting can fill them in without making text.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A `tabane gateway` at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Gateway {
    /// The interface with mobile hosts behind it.
    pub radio: String,
    /// What it does.
    pub mode: GatewayMode,
    /// It ends as soon as nothing is owed, or open, any more.
    pub draining: bool,
    /// Of all flows together.
    pub totals: GatewayTotals,
    /// Flows left alone since the start, by reason.
    pub bypassed: BTreeMap<String, u64>,
    /// The flows there are; of very many those that have carried most.
    pub flows: Vec<Flow>,
    /// Flows that there are beside those.
    pub flows_omitted: u64,
    /// The last flows that have ended, the oldest first.
    pub ended: Vec<Flow>,
}

/// What a gateway does with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GatewayMode {
    /// It measures and changes nothing.
    Observe,
    /// It acknowledges in the mobile hosts' name.
    Assist,
    /// It ends connections and opens others.
    Split,
}

/// Sums since the start, flows that have ended with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GatewayTotals {
    /// Packets seen.
    pub packets: u64,
    /// Of these, not understood; they passed.
    pub malformed: u64,
    /// Connections whose handshake was seen.
    pub opened: u64,
    /// Acknowledgements written in the mobile hosts' name.
    pub fabricated: u64,
    /// The mobile hosts' own that went no further.
    pub swallowed: u64,
    /// Servers' window probes answered from here.
    pub probes_answered: u64,
    /// Copies sent again.
    pub resent: u64,
    /// Flows reset because the mobile host was gone and was owed bytes.
    pub reset: u64,
    /// Connections reset that a gateway before this one owed bytes to.
    pub orphans_reset: u64,
    /// Segments that went on without a copy, for want of room.
    pub uncopied: u64,
    /// Bytes of copies at present.
    pub held_bytes: u64,
    /// Bytes at present that servers were told of and mobile hosts have not acknowledged.
    pub owed_bytes: u64,
    /// New data that went on to the mobile hosts.
    pub bytes: u64,
    /// Data that servers sent again though it had arrived or was arriving.
    pub needless_bytes: u64,
    /// Silences of the radio link that were longer than a sender's timer.
    pub silences: u64,
    /// Timeouts of servers for nothing.
    pub spurious_timeouts: u64,
    /// Silences that would have been such a timeout, had the gateway not acknowledged.
    pub avoided_timeouts: u64,
    /// Connections joined (split).
    pub joined: u64,
    /// Bytes carried in both directions (split).
    pub carried_bytes: u64,
}

/// One connection through a gateway. Of split ones only ends and bytes are known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Flow {
    /// The end behind the radio link.
    pub mobile: SocketAddr,
    /// The other end.
    pub server: SocketAddr,
    /// What is done with it.
    pub stance: Stance,
    /// The round trip between the gateway and the mobile host, smoothed. None where it was never
    /// measured.
    pub radio_rtt_ms: Option<f64>,
    /// The round trip between the gateway and the server, smoothed.
    pub wired_rtt_ms: Option<f64>,
    /// New data that went on to the mobile host; of split ones, both ways.
    pub bytes: u64,
    /// Data that the server sent again.
    pub repeated_bytes: u64,
    /// Of these, what had arrived or was arriving.
    pub needless_bytes: u64,
    /// Silences of the radio link that were longer than a sender's timer.
    pub silences: u64,
    /// Their length together.
    pub silent_ms: f64,
    /// Timeouts of the server for nothing.
    pub spurious_timeouts: u64,
    /// Silences that would have been such a timeout.
    pub avoided_timeouts: u64,
    /// Bytes of copies.
    pub held_bytes: u64,
    /// Bytes that the server was told of and the mobile host has not acknowledged.
    pub owed_bytes: u64,
    /// The server was told to wait.
    pub shut: bool,
    /// The server can undo timeouts for nothing by itself.
    pub undoes: bool,
}

/// What a gateway does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stance {
    /// Everything passes as it is.
    Watching,
    /// It is acknowledged early.
    Assisting,
    /// Nothing is acknowledged early any more; bytes are owed.
    Draining,
    /// It ends here, and another one goes on.
    Split,
}

impl Gateway {
    /// Flows there are, those that are not listed with them.
    #[must_use]
    pub const fn flow_count(&self) -> u64 {
        (self.flows.len() as u64).saturating_add(self.flows_omitted)
    }
}

impl GatewayMode {
    /// A word for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Assist => "assist",
            Self::Split => "split",
        }
    }
}

impl Stance {
    /// A word for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Watching => "watching",
            Self::Assisting => "assisting",
            Self::Draining => "draining",
            Self::Split => "split",
        }
    }
}

impl Flow {
    /// A connection of which nothing is known but its ends.
    #[must_use]
    pub const fn between(mobile: SocketAddr, server: SocketAddr, stance: Stance) -> Self {
        Self {
            mobile,
            server,
            stance,
            radio_rtt_ms: None,
            wired_rtt_ms: None,
            bytes: 0,
            repeated_bytes: 0,
            needless_bytes: 0,
            silences: 0,
            silent_ms: 0.0,
            spurious_timeouts: 0,
            avoided_timeouts: 0,
            held_bytes: 0,
            owed_bytes: 0,
            shut: false,
            undoes: false,
        }
    }
}
