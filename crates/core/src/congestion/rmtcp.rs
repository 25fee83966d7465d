//! `rmtcp`: the rate control of R-M/TCP (Osuga, Rojviboonchai and Aida), §2.2.
//!
//! ```text
//! RTT[id]            = OWTTf[id] + OWTTr_ave                  (1)
//! bw[id]             = num_acked / RTT[id]                    (2)
//! qlen[id]           = bw[id] × (RTT[id] − RTT_min[id])       (3)
//! cwnd[id]           = bw[id] × RTT_min[id]                   (4), when qlen[id] grows
//! ssthresh[id]       = bw[id] × RTT_min[id]                   (5), likewise
//! burst_limit[id]    = cwnd[id] / burst                       (6)
//! burst_interval[id] = RTT[id] / burst_limit[id]              (7), burst = 2 packets
//! ```
//!
//! (1) comes with the acknowledgement ([`AckEvent::trip`]): it takes all paths of the session. So
//! does RTT_min: the mean way back is the one of now in both, or a way back that has become longer
//! (answers return by another path) would be a queue for good, and (4) keep the window at some
//! packets.
//! (6) and (7) are the pacing rate cwnd / RTT; that packets leave in pairs is the pacer's.
//!
//! What the paper does not say, and what is done here:
//! - *grows*: is longer by a burst than it was at its shortest since (4) was last applied, seen
//!   once per round trip. The round trip after (4) does not count, it shows what was before.
//! - the window below and above `ssthresh`, and at a loss: as TCP's (RFC 5681), from which the
//!   paper starts.
//!
//! Where the pipe has room the estimate (2) is of what was sent, and (4) never raises it: the
//! paper's open problem. `tabane` is the answer to that.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::{AckEvent, Algorithm, ControllerSnapshot, LossEvent, initial_window};

/// Packets that leave together and measure the bottleneck: a pair.
pub(super) const BURST_PACKETS: u64 = 2;
/// RFC 5681 §3.1, equation 4.
const MIN_WINDOW_PACKETS: u64 = 2;

/// The state on one path.
#[derive(Clone, Debug)]
pub(super) struct RmTcp {
    mtu: Bytes,
    cwnd: Bytes,
    ssthresh: Bytes,
    /// `RTT[id]`, eq. 1, of the latest acknowledgement.
    trip: Duration,
    /// `RTT_min[id]`: by the shortest way there since the path was opened.
    trip_min: Option<Duration>,
    /// `bw[id]`, eq. 2.
    bandwidth: Rate,
    /// When the present count of acknowledged bytes began, and the count.
    counted_since: Instant,
    acked: Bytes,
    /// The shortest queue since eq. 4 was last applied; `None` right after.
    shortest_queue: Option<Bytes>,
    /// Losses of packets sent until then have been answered.
    recovery_until: Instant,
}

impl RmTcp {
    pub(super) fn new(mtu: Bytes, now: Instant) -> Self {
        Self {
            mtu,
            cwnd: initial_window(mtu),
            ssthresh: Bytes::MAX,
            trip: crate::rtt::INITIAL_RTT,
            trip_min: None,
            bandwidth: Rate::ZERO,
            counted_since: now,
            acked: Bytes::ZERO,
            shortest_queue: None,
            recovery_until: Instant::EPOCH,
        }
    }

    fn packets(&self, count: u64) -> Bytes {
        Bytes::new(self.mtu.get() * count)
    }

    /// `qlen[id]`, eq. 3.
    fn queue(&self, trip_min: Duration) -> Bytes {
        self.bandwidth.amount_in(self.trip.saturating_sub(trip_min))
    }

    /// Once per round trip: eq. 2 and 3, and eq. 4 and 5 where the queue grows.
    fn estimate(&mut self, now: Instant, trip_min: Duration) {
        self.bandwidth = Rate::of(self.acked, now.since(self.counted_since));
        self.acked = Bytes::ZERO;
        self.counted_since = now;
        let queue = self.queue(trip_min);
        let shortest = *self.shortest_queue.get_or_insert(queue);
        if queue > shortest + self.packets(BURST_PACKETS) {
            let window = self.bandwidth.amount_in(trip_min);
            self.ssthresh = window.max(self.packets(MIN_WINDOW_PACKETS));
            self.cwnd = self.ssthresh;
            self.shortest_queue = None;
        } else {
            self.shortest_queue = Some(shortest.min(queue));
        }
    }

    /// RFC 5681 §3.1, counting bytes.
    fn grow(&mut self, acked: Bytes) {
        let grown = if self.cwnd < self.ssthresh {
            acked
        } else {
            let share = acked.get() as f64 / self.cwnd.get().max(1) as f64;
            super::scaled(self.mtu, share)
        };
        self.cwnd += grown;
    }
}

impl Algorithm for RmTcp {
    fn on_sent(&mut self, now: Instant, _bytes: Bytes, in_flight: Bytes) {
        if in_flight == Bytes::ZERO {
            // An idle time is no part of a round trip.
            self.counted_since = now;
            self.acked = Bytes::ZERO;
        }
    }

    fn on_ack(&mut self, event: &AckEvent<'_>) {
        self.acked += event.sample.newly_acked;
        if let Some(trip) = event.trip {
            self.trip = trip.latest;
            self.trip_min = Some(trip.least);
        }
        let in_flight = event.in_flight_after + event.sample.newly_acked + event.sample.newly_lost;
        // A window the application leaves unused is no reason for a larger one.
        if event.largest_acked_sent_at >= self.recovery_until
            && (!event.sample.is_app_limited || in_flight + in_flight >= self.cwnd)
        {
            self.grow(event.sample.newly_acked);
        }
        if let Some(trip_min) = self.trip_min
            && event.now.since(self.counted_since) >= self.trip
        {
            self.estimate(event.now, trip_min);
        }
    }

    fn on_loss(&mut self, event: &LossEvent) {
        if event.largest_lost_sent_at >= self.recovery_until || event.persistent {
            let half = Bytes::new((event.in_flight + event.lost).get() / 2);
            self.ssthresh = half.max(self.packets(MIN_WINDOW_PACKETS));
            self.cwnd = self.ssthresh;
            self.recovery_until = event.now;
        }
        if event.persistent {
            self.cwnd = self.packets(MIN_WINDOW_PACKETS);
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant) {}

    fn on_path_reset(&mut self, now: Instant) {
        *self = Self::new(self.mtu, now);
    }

    fn on_mtu(&mut self, mtu: Bytes) {
        self.mtu = mtu;
        self.cwnd = self.cwnd.max(self.packets(MIN_WINDOW_PACKETS));
    }

    fn cwnd(&self) -> Bytes {
        self.cwnd
    }

    fn pacing_rate(&self) -> Rate {
        Rate::of(self.cwnd, self.trip)
    }

    fn is_sent_in_pairs(&self) -> bool {
        true
    }

    fn snapshot(&self) -> ControllerSnapshot {
        let state = if self.cwnd < self.ssthresh {
            "slow-start"
        } else {
            "avoidance"
        };
        ControllerSnapshot {
            state,
            cwnd: self.cwnd,
            pacing_rate: self.pacing_rate(),
            bandwidth: self.bandwidth,
            min_rtt: self.trip_min,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::RateSample;
    use crate::forward_delay::Trip;
    use crate::rtt::RttEstimator;

    const PACKET: Bytes = Bytes::new(1_000);

    /// Acknowledges a packet every millisecond until `until`, with `RTT[id]` of `trip_ms`, which
    /// is 100 without a queue.
    fn acknowledge(path: &mut RmTcp, from_ms: u64, until_ms: u64, trip_ms: u64) {
        for millis in from_ms..until_ms {
            let now = Instant::from_millis(millis);
            let sample = RateSample {
                newly_acked: PACKET,
                ..RateSample::default()
            };
            path.on_ack(&AckEvent {
                now,
                sample: &sample,
                rtt: &RttEstimator::default(),
                trip: Some(Trip {
                    latest: Duration::from_millis(trip_ms),
                    least: Duration::from_millis(100),
                }),
                way_back: None,
                in_flight_after: Bytes::ZERO,
                largest_acked_sent_at: now,
            });
        }
    }

    #[test]
    fn the_window_becomes_what_the_path_holds_when_the_queue_grows() {
        let mut path = RmTcp::new(PACKET, Instant::EPOCH);
        // 100 ms of one packet per ms: bw = 100 packets / 100 ms = 8 Mbit/s, qlen = 0.
        acknowledge(&mut path, 1, 101, 100);
        assert_eq!(path.bandwidth, Rate::from_mbps(8));
        assert_eq!(path.queue(Duration::from_millis(100)), Bytes::ZERO);
        // Slow start: every packet acknowledged is one more.
        assert_eq!(path.cwnd, Bytes::new(110_000));
        // RTT 120 ms: qlen = 8 Mbit/s × 20 ms = 20 packets. cwnd = ssthresh = 8 Mbit/s × 100 ms.
        acknowledge(&mut path, 101, 221, 120);
        assert_eq!(path.queue(Duration::from_millis(100)), Bytes::kilo(20));
        assert_eq!(
            (path.cwnd, path.ssthresh),
            (Bytes::kilo(100), Bytes::kilo(100))
        );
        // burst_limit = 100 / 2 = 50, burst_interval = 120 ms / 50 = 2.4 ms for two packets.
        let interval = path.pacing_rate().time_for(PACKET + PACKET);
        assert_eq!(interval.as_micros(), 2_400);
        assert!(path.is_sent_in_pairs());
        // The queue stands and does not grow: one packet more per window.
        acknowledge(&mut path, 221, 321, 120);
        assert_eq!(path.cwnd.get().div_ceil(100), 1_010);
    }

    #[test]
    fn a_loss_halves_once_per_round_trip() {
        let mut path = RmTcp::new(PACKET, Instant::EPOCH);
        let lost = |now, sent| LossEvent {
            now: Instant::from_millis(now),
            lost: PACKET,
            runs: 1,
            largest_lost_sent_at: Instant::from_millis(sent),
            in_flight: Bytes::kilo(9),
            tx_in_flight: Bytes::kilo(10),
            persistent: false,
        };
        path.on_loss(&lost(100, 50));
        path.on_loss(&lost(110, 60));
        assert_eq!(path.cwnd(), Bytes::kilo(5));
        path.on_loss(&lost(210, 120));
        assert_eq!(path.recovery_until, Instant::from_millis(210));
    }
}
