//! A session's record, packet by packet, as control clients get it.
//!
//! Sizes are bytes of UDP payload, packet numbers are those of the path's own space.

use serde::{Deserialize, Serialize};

/// A line of `GET /v1/trace`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceBatch {
    /// Events that were forgotten before these, for want of room.
    pub missed: u64,
    /// In order.
    pub events: Vec<TraceEntry>,
}

/// One thing that happened on one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceEntry {
    /// When: microseconds after the record began.
    pub at_us: u64,
    /// The path's number within the session.
    pub path: u32,
    /// What happened to it.
    pub what: TraceWhat,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TraceWhat {
    /// A packet left.
    Sent {
        /// Its number.
        pn: u64,
        /// Its size.
        size: u16,
        /// Whether it asks for acknowledgement.
        eliciting: bool,
        /// What is in it.
        #[serde(default)]
        frames: Vec<TraceFrame>,
    },
    /// A packet came.
    Received {
        /// Its number.
        pn: u64,
        /// Its size.
        size: u16,
        /// What is in it.
        #[serde(default)]
        frames: Vec<TraceFrame>,
    },
    /// A run of packets was acknowledged.
    Acked {
        /// The first number.
        first: u64,
        /// The last, included.
        last: u64,
    },
    /// A packet was taken for lost.
    Lost {
        /// Its number.
        pn: u64,
        /// Its size.
        size: u16,
    },
    /// What the congestion controller came to.
    Metrics {
        /// Smoothed round-trip time.
        rtt_ms: f64,
        /// The latest sample.
        rtt_latest_ms: f64,
        /// The least.
        rtt_min_ms: f64,
        /// The mean deviation.
        rtt_variation_ms: f64,
        /// The most that may be in flight.
        cwnd_bytes: u64,
        /// What is.
        in_flight_bytes: u64,
        /// How fast it may leave.
        pacing_bps: u64,
        /// The controller's own word for what it is doing.
        phase: String,
    },
    /// Where the path stands now.
    Status(String),
}

/// A frame of a packet: its type and its place, no content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TraceFrame {
    /// Its type's name, in the words of qlog where qlog has one.
    pub name: String,
    /// Its type: its first byte.
    pub code: u8,
    /// The path it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<u32>,
    /// The stream it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<u64>,
    /// Where its data begins in the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How many bytes of data it has; of padding, of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Whether its data is the stream's last.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_last: bool,
    /// The most that it allows, or the stream's size at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The reason that it gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u64>,
    /// How long an acknowledgement waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<u64>,
    /// What it acknowledges: runs of numbers, first and last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<(u64, u64)>,
}
