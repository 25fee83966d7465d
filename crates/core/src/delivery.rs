//! How fast a path delivers, measured from its acknowledgements.
//!
//! After draft-cheng-iccrg-delivery-rate-estimation. Each packet remembers how much had been
//! delivered when it was sent; when it is acknowledged, what was delivered meanwhile over the time
//! that took is a sample of the path's rate. The time is the longer of the sending and the
//! acknowledging interval, so that neither a burst sent nor acknowledgements squeezed together
//! make the path look faster than it is.
//!
//! Owns the path's counters of delivered and lost bytes and the mark "the sender had nothing more
//! to send". Which packet is lost or acknowledged is recovery's; what follows from a sample is the
//! congestion controller's.

use tabane_base::{Bytes, Duration, Instant, Rate};

/// The shortest time over which is taken what arrives at present: longer than a link's scheduler
/// lets packets wait for each other.
const OF_LATE: Duration = Duration::from_millis(100);

/// What a packet in flight remembers of the moment it was sent. Recovery keeps it with the packet
/// and hands it back when the packet is acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentState {
    /// Delivered on this path when the packet was sent.
    pub(crate) delivered: Bytes,
    /// When that amount was reached.
    pub(crate) delivered_at: Instant,
    /// When the packet was sent whose acknowledgement began the sending interval.
    pub(crate) first_sent_at: Instant,
    /// The sender had nothing more to send at some time within the sample's flight.
    pub(crate) is_app_limited: bool,
    /// In flight right after sending, this packet included.
    pub(crate) tx_in_flight: Bytes,
    /// Lost on this path when the packet was sent.
    pub(crate) lost: Bytes,
}

/// One acknowledgement's measure of the path. Amounts are of packets that count as in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateSample {
    /// The delivery rate; `None` where the acknowledgement allows no estimate.
    pub(crate) rate: Option<Rate>,
    /// The interval over which `delivered` was delivered.
    pub(crate) interval: Duration,
    /// Delivered between sending and acknowledgement of the sample's packet.
    pub(crate) delivered: Bytes,
    /// Acknowledged for the first time by this acknowledgement.
    pub(crate) newly_acked: Bytes,
    /// Declared lost since the previous sample.
    pub(crate) newly_lost: Bytes,
    /// Delivered in all when the sample's packet was sent: tells round trips apart.
    pub(crate) prior_delivered: Bytes,
    /// Delivered in all, this acknowledgement included.
    pub(crate) total_delivered: Bytes,
    /// In flight right after the sample's packet was sent.
    pub(crate) tx_in_flight: Bytes,
    /// Declared lost since the sample's packet was sent.
    pub(crate) lost_in_sample: Bytes,
    /// The rate may be the application's and not the path's.
    pub(crate) is_app_limited: bool,
    /// From sending of the newest packet acknowledged, to now; the peer's delay is within.
    pub(crate) rtt: Option<Duration>,
    /// When the acknowledgement would have come if nothing had held it.
    pub(crate) unheld: Instant,
}

/// The delivery-rate estimator of one path.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryEstimator {
    delivered: Bytes,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost: Bytes,
    /// The latest rate that was the path's and not the application's.
    rate: Option<Rate>,
    /// While `Some(mark)`: packets sent are app-limited until more than `mark` is delivered.
    app_limited_until: Option<Bytes>,
    /// The acknowledgement being taken in.
    ack: AckInProgress,
    /// What had been delivered at two moments of late, the earlier first.
    marks: [(Instant, Bytes); 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct AckInProgress {
    newly_acked: Bytes,
    /// The largest packet of these.
    largest: Bytes,
    newly_lost: Bytes,
    /// Of the newest packet acknowledged: when it was sent, and what it remembers.
    newest: Option<(Instant, SentState)>,
}

impl DeliveryEstimator {
    /// Nothing delivered yet.
    #[must_use]
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            delivered: Bytes::ZERO,
            delivered_at: now,
            first_sent_at: now,
            lost: Bytes::ZERO,
            rate: None,
            app_limited_until: None,
            ack: AckInProgress::default(),
            marks: [(now, Bytes::ZERO); 2],
        }
    }

    /// A packet of `bytes` leaves while `in_flight_before` is in flight.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        bytes: Bytes,
        in_flight_before: Bytes,
    ) -> SentState {
        if in_flight_before == Bytes::ZERO {
            // A flight begins: what came before must not stretch its intervals.
            self.first_sent_at = now;
            self.delivered_at = now;
            self.marks = [(now, self.delivered); 2];
        }
        SentState {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            is_app_limited: self.is_app_limited(),
            tx_in_flight: in_flight_before + bytes,
            lost: self.lost,
        }
    }

    /// The sender ran out of data while window and pacing would have allowed more. Everything in
    /// flight and sent from here on until it is delivered measures the application.
    pub(crate) fn mark_app_limited(&mut self, in_flight: Bytes) {
        // At least one byte beyond what is delivered, so that an idle path stays marked.
        let mark = (self.delivered + in_flight).max(self.delivered + Bytes::new(1));
        self.app_limited_until = Some(mark);
    }

    /// Whether packets sent at present count as app-limited.
    #[must_use]
    pub(crate) fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// The latest rate measured that was the path's.
    #[must_use]
    pub(crate) const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// What arrives at present, where something has been in flight long enough to tell.
    pub(crate) fn rate_of_late(&self, now: Instant) -> Option<Rate> {
        let (since, delivered) = self.marks[0];
        let span = now.since(since);
        (span >= OF_LATE).then(|| Rate::of(self.delivered - delivered, span))
    }

    /// An acknowledgement is about to be taken in, packet by packet.
    pub(crate) fn begin_ack(&mut self) {
        self.ack.newly_acked = Bytes::ZERO;
        self.ack.largest = Bytes::ZERO;
        self.ack.newest = None;
    }

    /// A packet is acknowledged for the first time.
    pub(crate) fn on_packet_acked(&mut self, bytes: Bytes, sent_at: Instant, state: &SentState) {
        self.delivered += bytes;
        self.ack.newly_acked += bytes;
        self.ack.largest = self.ack.largest.max(bytes);
        let is_newest = self.ack.newest.is_none_or(|(newest_at, newest)| {
            (sent_at, state.delivered) >= (newest_at, newest.delivered)
        });
        if is_newest {
            self.ack.newest = Some((sent_at, *state));
        }
    }

    /// A packet is declared lost. May come within an acknowledgement or from a timer.
    pub(crate) fn on_packet_lost(&mut self, bytes: Bytes) {
        self.lost += bytes;
        self.ack.newly_lost += bytes;
    }

    /// The acknowledgement is complete. It would have come at `unheld` if nothing had held it: what
    /// queues for the way back, or waits at the peer, is neither slower for that nor, when it comes
    /// at once, faster. `min_rtt` is the path's minimal round-trip time.
    pub(crate) fn finish_ack(
        &mut self,
        now: Instant,
        unheld: Instant,
        min_rtt: Duration,
    ) -> RateSample {
        let ack = std::mem::take(&mut self.ack);
        let mut sample = RateSample {
            newly_acked: ack.newly_acked,
            newly_lost: ack.newly_lost,
            total_delivered: self.delivered,
            unheld: now,
            ..RateSample::default()
        };
        if self
            .app_limited_until
            .is_some_and(|mark| self.delivered > mark)
        {
            self.app_limited_until = None;
        }
        let Some((sent_at, state)) = ack.newest else {
            sample.prior_delivered = self.delivered;
            return sample;
        };
        let rtt = now.since(sent_at);
        // Nothing is held for longer than its round trip exceeds the shortest, whatever peers say.
        let unheld = unheld.max(now - rtt.saturating_sub(min_rtt));
        sample.unheld = unheld;
        self.delivered_at = self.delivered_at.max(unheld);
        let send_interval = sent_at.since(state.first_sent_at);
        let ack_interval = self.delivered_at.since(state.delivered_at);
        if now.since(self.marks[1].0) >= OF_LATE {
            self.marks = [self.marks[1], (now, self.delivered)];
        }
        self.first_sent_at = sent_at;
        sample.interval = send_interval.max(ack_interval);
        sample.delivered = self.delivered - state.delivered;
        sample.prior_delivered = state.delivered;
        sample.tx_in_flight = state.tx_in_flight;
        sample.lost_in_sample = self.lost - state.lost;
        sample.is_app_limited = state.is_app_limited;
        sample.rtt = Some(rtt);
        // A packet that nothing else was under way with shows how long the path is, and not how
        // fast: a shaper that had time to rest lets it through at once.
        let is_alone = sample.delivered == sample.tx_in_flight && sample.delivered <= ack.largest;
        // A shorter interval than any round trip is an artefact of misordered acknowledgements.
        if sample.interval >= min_rtt && sample.interval > Duration::ZERO && !is_alone {
            sample.rate = Some(Rate::of(sample.delivered, sample.interval));
        }
        self.rate = (sample.rate.filter(|_| !sample.is_app_limited)).or(self.rate);
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Bytes = Bytes::new(1_000);
    const RTT: Duration = Duration::from_millis(10);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Sends a packet every `gap_ms`, acknowledges each 10 ms later; the last sample.
    fn steady(estimator: &mut DeliveryEstimator, gap_ms: u64, packets: u64) -> RateSample {
        let samples = held(estimator, gap_ms, packets, |_| 0);
        samples.last().copied().unwrap_or_default()
    }

    /// As [`steady`]; an acknowledgement due at a moment is held for so many ms. All samples.
    fn held(
        estimator: &mut DeliveryEstimator,
        gap_ms: u64,
        packets: u64,
        held_ms: impl Fn(u64) -> u64,
    ) -> Vec<RateSample> {
        let mut sent = Vec::new();
        let mut samples = Vec::new();
        let mut acked = 0;
        for tick in 0..packets * gap_ms + 100 {
            let now = at(tick);
            if tick % gap_ms == 0 && tick / gap_ms < packets {
                let in_flight = Bytes::new((sent.len() as u64 - acked) * 1_000);
                sent.push((now, estimator.on_sent(now, PACKET, in_flight)));
            }
            while let Some((sent_at, state)) = sent.get(acked as usize)
                && let unheld = *sent_at + RTT
                && let held = held_ms(acked * gap_ms + RTT.as_millis() as u64)
                && unheld + Duration::from_millis(held) <= now
            {
                estimator.begin_ack();
                estimator.on_packet_acked(PACKET, *sent_at, state);
                samples.push(estimator.finish_ack(now, unheld, RTT));
                acked += 1;
            }
        }
        samples
    }

    /// Much goes the other way as well: the rate was taken for one that swings.
    #[test]
    fn acknowledgements_that_queue_on_their_way_tell_the_same_rate() {
        let mut estimator = DeliveryEstimator::new(at(0));
        // A queue that grows for 40 ms and is gone in 20, again and again.
        let queue = |due: u64| match due % 60 {
            grown @ 0..40 => grown / 2,
            falling => 60 - falling,
        };
        let samples = held(&mut estimator, 1, 500, queue);
        let rates = samples.iter().skip(50).filter_map(|sample| sample.rate);
        for rate in rates {
            let mbps = rate.as_mbps_f64();
            assert!((7.9..8.1).contains(&mbps), "{mbps}");
        }
    }

    #[test]
    fn a_steady_flow_measures_its_rate() {
        let mut estimator = DeliveryEstimator::new(at(0));
        let sample = steady(&mut estimator, 1, 50);
        assert_eq!(sample.rate, Some(Rate::from_mbps(8)));
        assert_eq!(sample.rtt, Some(RTT));
        assert_eq!(sample.total_delivered, Bytes::kilo(50));
        assert!(!sample.is_app_limited);
    }

    #[test]
    fn squeezed_acknowledgements_do_not_inflate_the_rate() {
        let mut estimator = DeliveryEstimator::new(at(0));
        // Ten packets 10 ms apart; all acknowledged within the same millisecond.
        let sent: Vec<_> = (0..10_u64)
            .map(|i| {
                (
                    at(i * 10),
                    estimator.on_sent(at(i * 10), PACKET, Bytes::new(i * 1_000)),
                )
            })
            .collect();
        estimator.begin_ack();
        estimator.on_packet_acked(PACKET, sent[0].0, &sent[0].1);
        estimator.finish_ack(at(100), at(100), RTT);
        estimator.begin_ack();
        for (sent_at, state) in &sent[1..] {
            estimator.on_packet_acked(PACKET, *sent_at, state);
        }
        let sample = estimator.finish_ack(at(100), at(100), RTT);
        assert_eq!(sample.newly_acked, Bytes::kilo(9));
        assert!(
            sample.rate <= Some(Rate::from_bps(900_000)),
            "{:?}",
            sample.rate
        );
    }

    /// 36 Mbit/s was believed of a shaper of 1 Mbit/s that had rested, and 120 kB left.
    #[test]
    fn a_packet_alone_under_way_shows_no_rate() {
        let mut estimator = DeliveryEstimator::new(at(0));
        steady(&mut estimator, 1, 50);
        for (sent, packets) in [(1_000, 1), (2_000, 2)] {
            let states: Vec<_> = (0..packets)
                .map(|i| estimator.on_sent(at(sent), PACKET, Bytes::kilo(i)))
                .collect();
            estimator.begin_ack();
            for state in &states {
                estimator.on_packet_acked(PACKET, at(sent), state);
            }
            let rate = estimator.finish_ack(at(sent + 10), at(sent + 10), RTT).rate;
            assert_eq!(rate.is_some(), packets > 1, "{packets} packets: {rate:?}");
        }
    }

    /// A round trip after the link has become ten times slower the rate of a round trip is still
    /// several times too high.
    #[test]
    fn what_arrives_of_late_is_known_before_a_round_trip_is_over() {
        let mut estimator = DeliveryEstimator::new(at(0));
        assert_eq!(estimator.rate_of_late(at(50)), None, "too soon");
        let mut sent = std::collections::VecDeque::new();
        for tick in 0..1_200 {
            let in_flight = Bytes::new(sent.len() as u64 * 1_000);
            if in_flight < Bytes::kilo(600) {
                sent.push_back((at(tick), estimator.on_sent(at(tick), PACKET, in_flight)));
            }
            // 600 ms long; 1,000 bytes a millisecond, and in ten from second one on.
            let is_due = tick >= 600 && (tick < 1_000 || tick % 10 == 0);
            if is_due && let Some((sent_at, state)) = sent.pop_front() {
                estimator.begin_ack();
                estimator.on_packet_acked(PACKET, sent_at, &state);
                estimator.finish_ack(at(tick), at(tick), Duration::from_millis(600));
            }
        }
        let of_late = estimator.rate_of_late(at(1_200)).map(Rate::as_mbps_f64);
        let of_round_trip = estimator.rate().map(Rate::as_mbps_f64);
        assert!(of_late < Some(1.2) && of_late > Some(0.7), "{of_late:?}");
        assert!(of_round_trip > Some(2.5), "{of_round_trip:?}");
    }

    #[test]
    fn running_dry_marks_the_flight_and_wears_off() {
        let mut estimator = DeliveryEstimator::new(at(0));
        let first = estimator.on_sent(at(0), PACKET, Bytes::ZERO);
        estimator.mark_app_limited(PACKET);
        let second = estimator.on_sent(at(1), PACKET, PACKET);
        assert!(!first.is_app_limited && second.is_app_limited);
        estimator.begin_ack();
        estimator.on_packet_acked(PACKET, at(0), &first);
        assert!(!estimator.finish_ack(at(10), at(10), RTT).is_app_limited);
        assert!(estimator.is_app_limited());
        estimator.begin_ack();
        estimator.on_packet_acked(PACKET, at(1), &second);
        assert!(estimator.finish_ack(at(11), at(11), RTT).is_app_limited);
        assert!(!estimator.is_app_limited());
    }

    #[test]
    fn losses_between_samples_are_counted_once() {
        let mut estimator = DeliveryEstimator::new(at(0));
        let sent: Vec<_> = (0..4_u64)
            .map(|i| {
                (
                    at(i),
                    estimator.on_sent(at(i), PACKET, Bytes::new(i * 1_000)),
                )
            })
            .collect();
        estimator.on_packet_lost(PACKET);
        estimator.begin_ack();
        estimator.on_packet_acked(PACKET, sent[1].0, &sent[1].1);
        estimator.on_packet_lost(PACKET);
        let sample = estimator.finish_ack(at(12), at(12), RTT);
        assert_eq!(sample.newly_lost, Bytes::kilo(2));
        assert_eq!(sample.lost_in_sample, Bytes::kilo(2));
        estimator.begin_ack();
        assert_eq!(
            estimator.finish_ack(at(13), at(13), RTT).newly_lost,
            Bytes::ZERO
        );
    }
}
