//! TCP Reno in packets, as cross traffic: the flows a session of ours shares a bottleneck with.
//!
//! Slow start, congestion avoidance, fast retransmit, fast recovery and the retransmission timer
//! (RFC 5681, RFC 6298). Classic Reno, as ns-2's agent of that name and as the papers of its time
//! mean it: recovery ends with the first acknowledgement of anything new, so two losses in one
//! window often cost a timeout. No bytes, no handshake, no options; sequence numbers count packets
//! of one size. Each end is a state machine of its own; what carries packets between them is the
//! caller's.

use std::collections::BTreeSet;

use tabane_base::{Duration, Instant};

/// Packets sent before anything is known (RFC 5681 §3.1).
const INITIAL_WINDOW: f64 = 2.0;
/// A loss never takes the window below this (RFC 5681 §3.1, equation 4).
const SSTHRESH_MIN: f64 = 2.0;
/// Duplicate acknowledgements that mean a loss (RFC 5681 §3.2).
const DUPLICATES: u32 = 3;
/// The timer before the first round trip is measured (RFC 6298 §2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Bounds of the timer. RFC 6298 §2.4 asks for 1 s at least; ns-2 and every system in use take
/// 200 ms.
const RTO_MIN: Duration = Duration::from_millis(200);
const RTO_MAX: Duration = Duration::from_secs(60);

/// The sending end of a flow, without end unless one is set.
#[derive(Clone, Debug)]
pub struct RenoSender {
    /// The receiver's window, in packets.
    window: u64,
    /// In packets; fractions grow in congestion avoidance.
    cwnd: f64,
    ssthresh: f64,
    /// Everything below is acknowledged.
    acked: u64,
    /// The next packet to send, new or, after a timeout, again.
    next: u64,
    /// Everything below was sent at least once.
    sent: u64,
    duplicates: u32,
    /// In fast recovery.
    recovering: bool,
    /// Duplicate acknowledgements start no recovery below this: they are for what was sent again
    /// (RFC 6582 §4).
    recover: u64,
    /// The first unacknowledged packet goes again at once.
    retransmit: bool,
    rtt: Option<(Duration, Duration)>,
    /// The packet whose round trip is being measured. One at a time, and never one sent twice.
    timed: Option<(u64, Instant)>,
    backoff: u32,
    expires_at: Option<Instant>,
    /// Packets from here on do not exist yet.
    end: u64,
}

impl RenoSender {
    /// A flow whose receiver takes `window` packets beyond what it has acknowledged.
    #[must_use]
    pub fn new(window: u64) -> Self {
        Self {
            window: window.max(1),
            cwnd: INITIAL_WINDOW,
            // As ns-2: slow start goes on until a loss or the receiver's window ends it.
            ssthresh: window.max(1) as f64,
            acked: 0,
            next: 0,
            sent: 0,
            duplicates: 0,
            recovering: false,
            recover: 0,
            retransmit: false,
            rtt: None,
            timed: None,
            backoff: 0,
            expires_at: None,
            end: u64::MAX,
        }
    }

    /// There are so many packets in all, until more are said to be.
    pub fn set_end(&mut self, packets: u64) {
        self.end = packets;
    }

    /// The receiver takes `window` packets beyond what it has acknowledged, from now on: none is as
    /// many as any.
    pub fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    /// The receiver has everything below `ack`.
    pub fn handle_ack(&mut self, now: Instant, ack: u64) {
        if ack > self.acked {
            self.on_progress(now, ack);
        } else if ack == self.acked && self.sent > self.acked {
            self.on_duplicate();
        }
    }

    fn on_progress(&mut self, now: Instant, ack: u64) {
        if let Some((number, sent_at)) = self.timed
            && ack > number
        {
            self.on_round_trip(now - sent_at);
            self.timed = None;
        }
        if std::mem::take(&mut self.recovering) {
            self.cwnd = self.ssthresh;
        } else if self.cwnd < self.ssthresh {
            self.cwnd += 1.0;
        } else {
            self.cwnd += 1.0 / self.cwnd;
        }
        self.acked = ack;
        self.next = self.next.max(ack);
        self.duplicates = 0;
        self.backoff = 0;
        self.expires_at = (self.sent > self.acked).then(|| now + self.rto());
    }

    fn on_duplicate(&mut self) {
        self.duplicates += 1;
        if self.recovering {
            self.cwnd += 1.0;
        } else if self.duplicates == DUPLICATES && self.acked >= self.recover {
            self.ssthresh = self.half_flight();
            self.cwnd = self.ssthresh + f64::from(DUPLICATES);
            self.recovering = true;
            self.recover = self.sent;
            self.retransmit = true;
        }
    }

    fn half_flight(&self) -> f64 {
        let flight = (self.next - self.acked) as f64;
        (flight.min(self.cwnd) / 2.0).max(SSTHRESH_MIN)
    }

    fn on_round_trip(&mut self, sample: Duration) {
        self.rtt = Some(match self.rtt {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => {
                let deviation = smoothed.abs_diff(sample);
                ((smoothed * 7 + sample) / 8, (variation * 3 + deviation) / 4)
            }
        });
    }

    fn rto(&self) -> Duration {
        let base = self.rtt.map_or(RTO_INITIAL, |(smoothed, variation)| {
            smoothed + 4 * variation
        });
        let doubled = base
            .clamp(RTO_MIN, RTO_MAX)
            .saturating_mul(1 << self.backoff.min(6));
        doubled.min(RTO_MAX)
    }

    /// The number of the next packet that leaves now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<u64> {
        if std::mem::take(&mut self.retransmit) {
            self.timed = None;
            self.expires_at = Some(now + self.rto());
            return Some(self.acked);
        }
        let allowed = (self.cwnd as u64).max(1).min(self.window);
        if self.next >= self.end.min(self.acked + allowed) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        if number >= self.sent {
            self.sent = self.next;
            self.timed.get_or_insert((number, now));
        }
        let rto = self.rto();
        self.expires_at.get_or_insert_with(|| now + rto);
        Some(number)
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.expires_at
    }

    /// Takes everything in flight for lost if the timer has run out.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.expires_at.is_none_or(|at| at > now) {
            return;
        }
        self.ssthresh = self.half_flight();
        self.cwnd = 1.0;
        self.next = self.acked;
        self.recover = self.sent;
        self.recovering = false;
        self.retransmit = false;
        self.duplicates = 0;
        self.timed = None;
        self.backoff += 1;
        self.expires_at = None;
    }

    /// The congestion window, in packets.
    #[must_use]
    pub const fn cwnd(&self) -> f64 {
        self.cwnd
    }

    /// Packets acknowledged in order.
    #[must_use]
    pub const fn acked(&self) -> u64 {
        self.acked
    }

    /// Packets sent at least once.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }
}

/// The receiving end of a flow. Acknowledges every packet, as ns-2's sink does.
#[derive(Clone, Debug, Default)]
pub struct RenoReceiver {
    next: u64,
    early: BTreeSet<u64>,
}

impl RenoReceiver {
    /// A packet arrived; gives the acknowledgement to send: everything below it is here.
    pub fn handle_packet(&mut self, number: u64) -> u64 {
        if number >= self.next {
            self.early.insert(number);
        }
        while self.early.remove(&self.next) {
            self.next += 1;
        }
        self.next
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::{Bytes, Rate, Seed};
    use tabane_netem::{Link, LinkConfig, LossModel, Probability, RateModel};

    use super::*;

    const PACKET: Bytes = Bytes::new(1_000);
    const ACK: Bytes = Bytes::new(40);

    /// Flows that begin a second apart over one bottleneck and a way back without limits.
    struct World {
        now: Instant,
        senders: Vec<RenoSender>,
        receivers: Vec<RenoReceiver>,
        forth: Link<(usize, u64)>,
        back: Link<(usize, u64)>,
    }

    impl World {
        fn new(flows: usize, window: u64, bottleneck: LinkConfig) -> Self {
            let back = LinkConfig {
                delay: bottleneck.delay,
                ..LinkConfig::wire()
            };
            Self {
                now: Instant::EPOCH,
                senders: vec![RenoSender::new(window); flows],
                receivers: vec![RenoReceiver::default(); flows],
                forth: Link::new(bottleneck, Seed(1), Instant::EPOCH),
                back: Link::new(back, Seed(2), Instant::EPOCH),
            }
        }

        fn run_until(&mut self, end: Instant, mut look: impl FnMut(&Self)) {
            loop {
                while let Some((flow, number)) = self.forth.poll_output(self.now) {
                    let ack = self.receivers[flow].handle_packet(number);
                    _ = self.back.handle_packet(self.now, (flow, ack), ACK);
                }
                while let Some((flow, ack)) = self.back.poll_output(self.now) {
                    self.senders[flow].handle_ack(self.now, ack);
                }
                for (flow, sender) in self.senders.iter_mut().enumerate() {
                    if self.now < Instant::from_millis(1_000 * flow as u64) {
                        continue;
                    }
                    sender.handle_timeout(self.now);
                    while let Some(number) = sender.poll_transmit(self.now) {
                        _ = self.forth.handle_packet(self.now, (flow, number), PACKET);
                    }
                }
                look(self);
                let timers = self.senders.iter().filter_map(RenoSender::poll_timeout);
                let links = [self.forth.poll_timeout(), self.back.poll_timeout()];
                let begins =
                    (1..self.senders.len()).map(|i| Instant::from_millis(1_000 * i as u64));
                let begins = begins.filter(|at| *at > self.now);
                let due = timers
                    .chain(links.into_iter().flatten())
                    .chain(begins)
                    .min();
                match due.filter(|at| *at <= end) {
                    Some(at) => self.now = self.now.max(at),
                    None => return,
                }
            }
        }
    }

    /// 8 Mbit/s, 40 ms there and back, a queue of one bandwidth-delay product: 40 packets.
    fn bottleneck() -> LinkConfig {
        LinkConfig {
            rate: RateModel::Constant(Rate::from_mbps(8)),
            queue: Bytes::kilo(40),
            delay: Duration::from_millis(20),
            ..LinkConfig::wire()
        }
    }

    #[test]
    fn slow_start_doubles_each_round_trip_up_to_the_receivers_window() {
        let fast = LinkConfig {
            delay: Duration::from_millis(50),
            ..LinkConfig::wire()
        };
        let mut world = World::new(1, 40, fast);
        let mut sent = Vec::new();
        for round in 0..7 {
            let before = world.senders[0].sent;
            world.run_until(Instant::from_millis(100 * round + 99), |_| {});
            sent.push(world.senders[0].sent - before);
        }
        assert_eq!(sent, [2, 4, 8, 16, 32, 40, 40]);
    }

    #[test]
    fn the_window_is_a_sawtooth_that_keeps_the_bottleneck_busy() {
        let mut world = World::new(1, 10_000, bottleneck());
        let mut halvings = Vec::new();
        let (mut before, mut peak) = (0.0, 0.0_f64);
        world.run_until(Instant::from_millis(60_000), |world| {
            let sender = &world.senders[0];
            if !sender.recovering {
                if sender.cwnd < before * 0.9 {
                    halvings.push((world.now, peak, sender.cwnd));
                    peak = 0.0;
                }
                before = sender.cwnd;
                peak = peak.max(before);
            }
        });
        // Slow start overshoots, which loses so many at once that only the timer helps.
        let steady = &halvings[2..];
        assert!(steady.len() >= 3, "{halvings:?}");
        for pair in steady.windows(2) {
            let ((from, _, low), (to, peak, after)) = (pair[0], pair[1]);
            // The pipe and the queue hold 80; the window falls to half and grows by a packet per
            // round trip, which lasts 40 to 80 ms.
            assert!((79.0..84.0).contains(&peak), "{pair:?}");
            assert!((after / peak - 0.5).abs() < 0.05, "{pair:?}");
            let per_second = (peak - low) / (to - from).as_secs_f64();
            assert!((12.0..25.0).contains(&per_second), "{per_second}: {pair:?}");
        }
        let share = world.senders[0].acked() as f64 / (60.0 * 1_000.0);
        assert!(share > 0.97, "{share}");
    }

    #[test]
    fn flows_that_begin_one_after_another_come_to_fair_shares() {
        let mut world = World::new(5, 10_000, bottleneck());
        world.run_until(Instant::from_millis(10_000), |_| {});
        let before: Vec<u64> = world.senders.iter().map(RenoSender::acked).collect();
        world.run_until(Instant::from_millis(130_000), |_| {});
        let shares = world
            .senders
            .iter()
            .zip(before)
            .map(|(sender, b)| sender.acked() - b);
        let shares: Vec<f64> = shares.map(|packets| packets as f64).collect();
        let sum: f64 = shares.iter().sum();
        let jain = sum * sum / (5.0 * shares.iter().map(|x| x * x).sum::<f64>());
        assert!(jain > 0.95, "{jain}: {shares:?}");
        assert!(sum > 0.95 * 120_000.0, "{sum}");
    }

    #[test]
    fn everything_arrives_however_many_are_lost() {
        let loss = LossModel::Random(Probability::new(0.2).unwrap());
        let mut world = World::new(
            1,
            100,
            LinkConfig {
                loss,
                ..bottleneck()
            },
        );
        world.run_until(Instant::from_millis(60_000), |_| {});
        let (sender, receiver) = (&world.senders[0], &world.receivers[0]);
        assert!(sender.acked() > 300, "{}", sender.acked());
        assert!(receiver.next >= sender.acked());
    }

    #[test]
    fn a_dead_link_is_tried_ever_less_often_and_used_again_at_once() {
        let mut world = World::new(1, 100, bottleneck());
        world.run_until(Instant::from_millis(5_000), |_| {});
        world.forth.set_outage(Instant::from_millis(5_000), true);
        world.run_until(Instant::from_millis(15_000), |_| {});
        assert!(
            (3..=8).contains(&world.senders[0].backoff),
            "{:?}",
            world.senders[0]
        );
        let stuck = world.senders[0].acked();
        world.forth.set_outage(Instant::from_millis(15_000), false);
        world.run_until(Instant::from_millis(40_000), |_| {});
        assert!(world.senders[0].acked() > stuck + 5_000);
    }
}
