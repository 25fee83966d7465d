//! Plain values for display: what a session and its paths are doing.

use tabane_base::{Bytes, Duration, Instant, Rate};

use crate::drops::Drops;
use crate::id::{FourTuple, PathId};
use crate::policy::PathPolicy;

/// Where a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStatus {
    /// Its address has not answered yet.
    Opening,
    /// It carries data.
    Active,
    /// Nothing comes back; it is probed and not used.
    Silent,
}

impl PathStatus {
    /// A word for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Active => "active",
            Self::Silent => "silent",
        }
    }
}

/// One path at one moment. Totals count UDP payload, since the path was opened.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct PathSnapshot {
    pub id: PathId,
    pub tuple: FourTuple,
    pub status: PathStatus,
    pub rtt_smoothed: Duration,
    pub rtt_variation: Duration,
    pub rtt_min: Duration,
    /// Whether the round-trip times are measured or only assumed.
    pub rtt_measured: bool,
    /// There and back over this link: the latest, and the least of the last 10 s. The answers to
    /// what the times above are taken from return by the fastest path.
    pub round_trip: Option<(Duration, Duration)>,
    pub cwnd: Bytes,
    pub in_flight: Bytes,
    pub pacing_rate: Rate,
    /// The bandwidth the controller believes in.
    pub delivery_rate: Rate,
    pub controller_state: &'static str,
    /// The bottleneck's bandwidth away from here, by packet pairs; counts IP packets whole.
    pub pair_out: Option<Rate>,
    /// The same towards here.
    pub pair_in: Option<Rate>,
    pub sent: Bytes,
    pub received: Bytes,
    pub acked: Bytes,
    pub lost: Bytes,
    pub sent_packets: u64,
    pub received_packets: u64,
    /// What the peer sent before the newest that came, and that has not come, or not yet.
    pub missing_packets: u64,
    pub lost_packets: u64,
    /// Packets taken for lost that arrived after all.
    pub spurious_losses: u64,
    /// Sent here a second time because another path was slow with it.
    pub reinjected: Bytes,
    /// Bytes of UDP payload in a full packet.
    pub mtu: u16,
    /// What share of the path both ends let us use, 0 to 1.
    pub weight: f64,
    /// Either end wants it used only while no other path is active.
    pub backup: bool,
    /// Either end calls it metered: it is not probed.
    pub metered: bool,
    /// What this end wishes of the path.
    pub policy: PathPolicy,
    pub last_received_at: Instant,
}

impl PathSnapshot {
    /// Packets that were lost, but for those that arrived after all.
    #[must_use]
    pub const fn lost_for_good(&self) -> u64 {
        self.lost_packets.saturating_sub(self.spurious_losses)
    }

    /// What people call the link's round trip: the latest, and the least of late. By
    /// acknowledgements where the link itself has not been measured.
    #[must_use]
    pub fn link_round_trip(&self) -> Option<(Duration, Duration)> {
        let by_any = (self.rtt_smoothed, self.rtt_min);
        self.round_trip
            .or_else(|| self.rtt_measured.then_some(by_any))
    }
}

/// What the paths of a session that are closed have carried, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ClosedPaths {
    pub sent: Bytes,
    pub received: Bytes,
    pub sent_packets: u64,
    /// Without those that arrived after all.
    pub lost_packets: u64,
}

impl ClosedPaths {
    pub(crate) fn add(&mut self, path: &PathSnapshot) {
        self.sent += path.sent;
        self.received += path.received;
        self.sent_packets += path.sent_packets;
        self.lost_packets += path.lost_for_good();
    }
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Keys are being agreed on, or the other end has not admitted us yet.
    Connecting,
    /// Streams and datagrams flow.
    Connected,
    /// It is over.
    Closed,
}

/// One session at one moment.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct SessionSnapshot {
    /// When this was so.
    pub at: Instant,
    /// Since anything authentic was heard from the other end.
    pub silent_for: Duration,
    pub status: SessionStatus,
    pub paths: Vec<PathSnapshot>,
    pub closed_paths: ClosedPaths,
    pub streams: usize,
    /// Bytes of streams that were acknowledged: what of the application is known to have arrived.
    pub streams_acked: Bytes,
    /// Memory of received data, in and out of order.
    pub receive_memory: Bytes,
    /// Bytes of datagrams waiting to leave.
    pub datagrams_queued: Bytes,
    /// Datagrams that were not sent because they had waited too long.
    pub datagrams_dropped: u64,
    /// Bytes of received datagrams that wait for earlier ones of their flows.
    pub datagrams_held: Bytes,
    /// How often packet keys were changed.
    pub key_changes: u64,
    pub drops: Drops,
}

/// How good a path is, and how much it may carry (RFC 9002 appendices A and B).
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct TraceMetrics {
    pub rtt_smoothed: Duration,
    pub rtt_latest: Duration,
    pub rtt_min: Duration,
    pub rtt_variation: Duration,
    pub cwnd: Bytes,
    pub in_flight: Bytes,
    pub pacing_rate: Rate,
    /// The controller's own word for what it is doing.
    pub phase: &'static str,
}
