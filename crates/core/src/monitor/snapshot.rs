//! Plain values for schedulers, policy and display: what is believed of a link at one moment.

use std::net::SocketAddr;

use tabane_base::{Bytes, Duration, Instant, Rate};

/// One path, by link and far end. *Out* is away from this host.
#[derive(Clone, Debug, PartialEq)]
pub struct PathEstimate {
    /// The far end.
    pub remote: SocketAddr,
    /// Smoothed round trip, SBAM eq. 3; `None` until one was measured.
    pub rtt_smoothed: Option<Duration>,
    /// The least round trip of the settings' window.
    pub rtt_min: Option<Duration>,
    /// Mean difference of successive round trips (as RFC 3550 §6.4.1 has it for one-way delays).
    pub jitter: Duration,
    /// How much longer packets travel out than on the best path to the same far end.
    pub forward_beyond_best: Option<Duration>,
    /// The bottleneck's bandwidth away from here, by packet pairs (SBAM eq. 4), at IP level.
    pub pair_out: Option<Rate>,
    /// The same towards here.
    pub pair_in: Option<Rate>,
    /// How many trains `pair_out` rests on.
    pub trains_out: usize,
    /// How many trains `pair_in` rests on.
    pub trains_in: usize,
    /// The bandwidth to reckon with away from here: `pair_out`, or what was delivered if more.
    pub bandwidth_out: Option<Rate>,
    /// Acknowledged per time over the last one to two seconds; UDP payload.
    pub delivery_rate: Rate,
    /// Packets sent of late.
    pub sent_packets: u64,
    /// Those of them that were lost.
    pub lost_packets: u64,
    /// Of the packets sent of late, the share that was lost: 0 to 1.
    pub loss: f64,
    /// What waits at the bottleneck, R-M/TCP eq. 3.
    pub queue: Bytes,
    /// When the last piece of news came.
    pub measured_at: Instant,
}

/// One link: the best of its paths where they tell of the link, their sum where each has a part.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkEstimate {
    /// The link's name: that of its interface as a rule.
    pub name: String,
    /// Its interface is there.
    pub present: bool,
    /// What it carries is paid for by volume: nobody probes it unasked.
    pub metered: bool,
    /// Smoothed round trip to the nearest far end.
    pub rtt_smoothed: Option<Duration>,
    /// The least round trip to the nearest far end.
    pub rtt_min: Option<Duration>,
    /// Mean difference of successive round trips to the nearest far end.
    pub jitter: Option<Duration>,
    /// The greatest packet-pair bandwidth away from here: a path's bottleneck may lie beyond the
    /// link, but no path is faster than it.
    pub pair_out: Option<Rate>,
    /// The same towards here.
    pub pair_in: Option<Rate>,
    /// The sum over paths.
    pub delivery_rate: Rate,
    /// Over all paths.
    pub loss: f64,
    /// The longest of the paths' queues.
    pub queue: Bytes,
    /// The paths over it.
    pub paths: Vec<PathEstimate>,
}
