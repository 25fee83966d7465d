//! How long a queue to aim for, and how long a one means that somebody else is there.
//!
//! Pure arithmetic over what a path is believed to be at one moment; decides nothing.

use tabane_base::{Bytes, Duration, Rate, scale};

/// The target at 50 Mbit/s; at other rates it goes with the inverse square root: 4.5 ms at 10,
/// 0.45 ms at 1,000. Four flows of ours at 50 Mbit/s together settle at 4 ms.
const TARGET: Duration = Duration::from_millis(2);
const TARGET_RATE: f64 = 50e6;
/// Nothing of it may be more than this part of [`Aim::queue_max`].
const TARGET_PART: u32 = 2;
/// A bottleneck serves whole packets: so many always fit the target.
const TARGET_PACKETS: f64 = 1.25;
/// The longest packet time believed, at 24 kbit/s.
const PACKET_TIME_MAX: Duration = Duration::from_millis(500);
/// Added to the target where the rate swings as much as can be, or the shortest round trip.
const RESERVE_MAX: Duration = Duration::from_millis(50);
/// Our own queue is to stay below the longer of these two: 15 ms, or this part of `RTT_min`.
const QUEUE_MAX: Duration = Duration::from_millis(15);
const QUEUE_MAX_PART: u32 = 4;
/// What flows like ours do not exceed for long together: 10 ms, an eighth of `RTT_min`, or what
/// three packets take.
const ALLOWED_QUEUE: Duration = Duration::from_millis(10);
const ALLOWED_QUEUE_PART: u32 = 8;
const ALLOWED_PACKETS: f64 = 3.0;

/// What a path is believed to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) mtu: Bytes,
    pub(super) min_rtt: Duration,
    /// What we get of it.
    pub(super) rate: Rate,
    /// How fast the link is.
    pub(super) peak: Rate,
    /// How far round trips scatter.
    pub(super) jitter: Duration,
    /// What one acknowledgement covers.
    pub(super) batch: Bytes,
    /// How much the rate swings, 0 to 1.
    pub(super) swing: f64,
}

impl Aim {
    /// Our own queue's limit on links that do not swing.
    pub(super) fn queue_max(&self) -> Duration {
        QUEUE_MAX.max(self.min_rtt / QUEUE_MAX_PART)
    }

    /// The queue to aim for, as time: more for a small share of the link, and on top what makes
    /// the round trip vary and arrivals lumpy without anybody's queue.
    pub(super) fn target(&self) -> Duration {
        let part = self.queue_max() / TARGET_PART;
        let rate = (self.rate.as_bps() as f64).max(1.0);
        let by_rate = scale(TARGET, (TARGET_RATE / rate).sqrt());
        let jitter = self.jitter.min(part / 2);
        let reserve = scale(self.min_rtt.min(RESERVE_MAX), self.swing);
        // Two packets are what every receiver waits for.
        let batch = self.batch - (self.mtu + self.mtu);
        let batch = self.rate.time_for(batch).min(part);
        by_rate.min(part).max(self.packet_time(TARGET_PACKETS)) + jitter + batch + reserve
    }

    /// What we and others like us never exceed for long.
    pub(super) fn allowed(&self) -> Duration {
        let part = self.min_rtt / ALLOWED_QUEUE_PART;
        let packets = self.packet_time(ALLOWED_PACKETS);
        ALLOWED_QUEUE.max(part).max(packets).max(self.target())
    }

    /// What `amount` takes on the link.
    pub(super) fn time_on_link(&self, amount: Bytes) -> Duration {
        self.packet_time(amount.get() as f64 / self.mtu.get().max(1) as f64)
    }

    /// What so many packets take on the link.
    fn packet_time(&self, packets: f64) -> Duration {
        let time = self.peak.time_for(self.mtu).min(PACKET_TIME_MAX);
        scale(time, packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aim(mbps: u64, rtt_ms: u64) -> Aim {
        Aim {
            mtu: Bytes::new(1_500),
            min_rtt: Duration::from_millis(rtt_ms),
            rate: Rate::from_mbps(mbps),
            peak: Rate::from_mbps(mbps),
            jitter: Duration::ZERO,
            batch: Bytes::ZERO,
            swing: 0.0,
        }
    }

    #[test]
    fn the_target_falls_with_the_root_of_the_rate() {
        assert_eq!(aim(50, 20).target(), Duration::from_millis(2));
        assert_eq!(aim(200, 20).target(), Duration::from_millis(1));
        // 12 ms a packet: one and a quarter.
        assert_eq!(aim(1, 20).target(), Duration::from_millis(15));
        assert!(aim(0, 20).target() < Duration::from_secs(1));
    }

    #[test]
    fn nothing_makes_it_longer_than_is_allowed() {
        for (mbps, rtt_ms) in [(1, 2), (10, 20), (100, 300), (1_000, 2)] {
            let worst = Aim {
                jitter: Duration::from_secs(1),
                batch: Bytes::mega(1),
                ..aim(mbps, rtt_ms)
            };
            let packet = worst.packet_time(TARGET_PACKETS);
            assert!(worst.target() <= worst.queue_max() * 5 / 4 + packet);
            assert!(worst.allowed() >= worst.target());
        }
    }
}
