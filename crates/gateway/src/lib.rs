//! The cooperative gateway (Yamamoto, Sunahara, Oie): TCP over links that delay but do not lose.
//!
//! Stands between a wired network and a radio link that repeats by itself what it loses, so that
//! trouble shows as delay. A sender would take that for loss, send again what is about to arrive,
//! and slow down. [`Gateway`] acknowledges its data in the mobile host's name, with the mobile
//! host's own window less what is on its way, so that the sender stops instead. Pure: packets in,
//! packets out, time as an argument. Knows nothing of where packets come from.

#![forbid(unsafe_code)]

mod allowance;
mod checksum;
mod config;
mod copies;
mod counters;
mod flow;
mod gateway;
mod meter;
mod opening;
mod options;
mod orphan;
mod packet;
mod radio;
mod segment;
mod seq;
mod snapshot;
mod survey;
mod window;

pub use config::{Config, Mode, UNTOUCHED_PORTS};
pub use counters::{Bypass, Counters};
pub use flow::{Key, Stance};
pub use gateway::Gateway;
pub use meter::Figures;
pub use options::{Block, Blocks, Options};
pub use packet::{Flags, Malformed, Packet};
pub use segment::{Manner, Segment};
pub use seq::Seq;
pub use snapshot::{FlowSnapshot, Snapshot};
pub use survey::Survey;

/// Where a packet comes from, or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server's.
    Wired,
    /// The mobile host's.
    Radio,
}

/// What is known of a packet's TCP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Somebody has looked, or it is not filled in yet.
    Known,
    /// To be looked at.
    Unknown,
}

/// What becomes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on as it is.
    #[default]
    Accept,
    /// Goes no further.
    Drop,
    /// These bytes, an IP packet, go on in its place.
    Replace(Vec<u8>),
}

/// A packet of the gateway's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Towards whom.
    pub to: Side,
    /// An IP packet.
    pub packet: Vec<u8>,
}
