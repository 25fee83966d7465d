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
mod hosts;
mod key;
mod meter;
mod opening;
mod options;
mod orphan;
mod packet;
mod radio;
mod segment;
mod seq;
mod snapshot;
mod stall;
mod survey;
mod window;

pub use config::{Config, Mode, UNTOUCHED_PORTS};
pub use counters::{Bypass, Counters};
pub use flow::Stance;
pub use gateway::Gateway;
pub use key::Key;
pub use meter::Figures;
pub use options::{Block, Blocks, Options};
pub use packet::{Flags, Malformed, Packet};
pub use segment::{Manner, Segment};
pub use seq::Seq;
pub use snapshot::{FlowSnapshot, Snapshot};
pub use survey::Survey;

/// How long a server's packet with nothing but a byte of data at most is, from the IP header on:
/// an acknowledgement, or the question whether a window has opened (RFC 9293 §3.8.6.1). Such
/// questions should be held for [`Gateway::handle_packet`]: one that goes on has to wait at the
/// radio link, and where that keeps packets in order, all that is sent later waits behind it.
#[must_use]
pub const fn probe_length_max(is_ipv6: bool) -> u16 {
    let ip = if is_ipv6 { 40 } else { 20 };
    let (tcp, timestamps, data) = (20, 12, 1);
    ip + tcp + timestamps + data
}

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

/// Whether a packet waits for the verdict on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Custody {
    /// It may be kept back.
    Waits,
    /// It has gone on, and this is a copy.
    Gone,
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
