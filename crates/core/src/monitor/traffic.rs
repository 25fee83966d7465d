//! What a path carried: delivery rate and loss.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::sliding::SlidingWindow;

/// The delivery rate is looked at in seconds, and the best of ten is remembered: shorter spans
/// would take acknowledgements that were squeezed together for a fast link.
const DELIVERY_WINDOW: Duration = Duration::from_secs(10);
/// Over this time losses are counted: long enough that one in a thousand shows at 100 packets a
/// second.
const LOSS_WINDOW: Duration = Duration::from_secs(30);
/// A delivery rate over less time than this says nothing.
const LEAST_SPAN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default)]
struct Packets {
    sent: u64,
    lost: u64,
}

/// Counts of one path.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    delivered: SlidingWindow<Bytes>,
    packets: SlidingWindow<Packets>,
    /// When the first delivery was counted.
    begun_at: Option<Instant>,
}

impl Traffic {
    pub(crate) fn new() -> Self {
        Self {
            delivered: SlidingWindow::new(DELIVERY_WINDOW),
            packets: SlidingWindow::new(LOSS_WINDOW),
            begun_at: None,
        }
    }

    pub(crate) fn on_delivered(&mut self, now: Instant, amount: Bytes) {
        self.begun_at.get_or_insert(now);
        *self.delivered.slot(now) += amount;
    }

    pub(crate) fn on_packets(&mut self, now: Instant, sent: u64, lost: u64) {
        let slot = self.packets.slot(now);
        slot.sent = slot.sent.saturating_add(sent);
        slot.lost = slot.lost.saturating_add(lost);
    }

    /// Delivered per time, over the last one to two seconds.
    pub(crate) fn delivery_rate(&self, now: Instant) -> Rate {
        let ([before, present], span) = self.delivered.latest(now);
        let known = self.begun_at.map_or(span, |at| span.min(now.since(at)));
        Rate::of(before + present, known.max(LEAST_SPAN))
    }

    /// The most that was delivered in any whole second of late.
    pub(crate) fn delivery_peak(&self, now: Instant) -> Rate {
        let best = self.delivered.complete(now).max().unwrap_or_default();
        Rate::of(best, self.delivered.slot_span())
    }

    /// Packets sent and lost of late.
    pub(crate) fn packets(&self, now: Instant) -> (u64, u64) {
        let add = |(sent, lost): (u64, u64), packets: Packets| {
            (
                sent.saturating_add(packets.sent),
                lost.saturating_add(packets.lost),
            )
        };
        self.packets.values(now).fold((0, 0), add)
    }
}

/// The share that `lost` is of `sent`, 0 where nothing was sent.
pub(crate) fn share((sent, lost): (u64, u64)) -> f64 {
    (lost as f64 / sent.max(1) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delivery_rate_is_what_came_through_and_fades() {
        let mut traffic = Traffic::new();
        for millis in (0..5_000).step_by(10) {
            traffic.on_delivered(Instant::from_millis(millis), Bytes::new(12_500));
        }
        let now = Instant::from_millis(5_000);
        assert_eq!(traffic.delivery_rate(now), Rate::from_mbps(10));
        assert_eq!(traffic.delivery_peak(now), Rate::from_mbps(10));
        let later = Instant::from_millis(8_000);
        assert_eq!(traffic.delivery_rate(later), Rate::ZERO);
        assert_eq!(traffic.delivery_peak(later), Rate::from_mbps(10));
        let gone = Instant::from_millis(30_000);
        assert_eq!(traffic.delivery_peak(gone), Rate::ZERO);
    }

    #[test]
    fn losses_are_a_share_of_what_was_sent() {
        let mut traffic = Traffic::new();
        assert_eq!(share(traffic.packets(Instant::EPOCH)), 0.0);
        traffic.on_packets(Instant::EPOCH, 200, 3);
        assert_eq!(share(traffic.packets(Instant::EPOCH)), 0.015);
        // Losses are told after what was lost was sent: more lost than sent of late is possible.
        traffic.on_packets(Instant::from_millis(60_000), 1, 5);
        assert_eq!(share(traffic.packets(Instant::from_millis(60_000))), 1.0);
    }
}
