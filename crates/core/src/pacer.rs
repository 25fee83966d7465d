//! When the next packet of a path may leave.
//!
//! A bucket of credit that fills at the pacing rate. Sending is meant to happen in quanta: large
//! enough that a fast link is not driven packet by packet (segmentation offload wants 64 kB at
//! once), small enough that a slow link's queue does not see bursts. A driver that wakes late
//! finds the credit of the time it slept, up to [`LATENESS`], and so loses no throughput.
//!
//! In pairs, for controllers that measure the bottleneck by them (R-M/TCP), credit is used once it
//! allows two packets; where two take less than [`QUANTUM_SPAN`], several pairs leave together.
//!
//! Invariants: credit never exceeds quantum + what `LATENESS` is worth; what is sent without
//! credit (acknowledgements, probes) becomes debt that later packets wait for. The rate is the
//! congestion controller's; whether the window allows sending is recovery's to check.

use tabane_base::{Bytes, Duration, Instant, Rate};

/// The part of a second that a quantum may take on the link.
const QUANTUM_SPAN: Duration = Duration::from_millis(1);

/// The largest quantum: one full batch of segmentation offload.
const QUANTUM_MAX: Bytes = Bytes::new(65_536);

/// The smallest quantum, in packets: receivers acknowledge every other packet at the earliest.
const QUANTUM_MIN_PACKETS: u64 = 2;

/// How late a driver may wake without loss of throughput: the coarsest timers in use (tokio's,
/// epoll's) have a granularity of 1 ms, and a busy machine adds about as much.
const LATENESS: Duration = Duration::from_millis(2);

/// Debt beyond this is forgiven, so that a burst of probes cannot silence a path whose rate is
/// estimated far too low.
const DEBT_MAX: Bytes = Bytes::new(65_536);

/// Credit in bits × 10⁻⁹: what one bit per second earns in one nanosecond. Exact at any rate;
/// 64 bits hold 1.1 GB of it, and all arithmetic saturates.
const CREDIT_PER_BYTE: i64 = 8_000_000_000;

/// The pacer of one path.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    rate: Rate,
    packet: Bytes,
    /// What had been earned and not used at `updated_at`; negative when in debt.
    credit: i64,
    updated_at: Instant,
    in_pairs: bool,
    /// The first of a pair has left, the second waits for nothing more.
    is_pair_begun: bool,
    /// Follow from rate and packet size; kept because they are needed with every packet.
    burst: Bytes,
    quantum: Bytes,
    credit_max: i64,
}

impl Pacer {
    /// Full of credit at `rate`, for packets of up to `packet` bytes.
    #[must_use]
    pub(crate) fn new(now: Instant, rate: Rate, packet: Bytes) -> Self {
        let mut pacer = Self {
            rate,
            packet,
            credit: 0,
            updated_at: now,
            in_pairs: false,
            is_pair_begun: false,
            burst: Bytes::ZERO,
            quantum: Bytes::ZERO,
            credit_max: 0,
        };
        pacer.refresh_limits();
        pacer.credit = credit(pacer.quantum);
        pacer
    }

    /// The same pacer, letting packets out two at a time.
    #[must_use]
    pub(crate) fn in_pairs(mut self, in_pairs: bool) -> Self {
        self.in_pairs = in_pairs;
        self
    }

    /// The controller's pacing rate changed; credit earned so far stays.
    pub(crate) fn set_rate(&mut self, now: Instant, rate: Rate) {
        if rate == self.rate {
            return;
        }
        self.credit = self.credit_at(now);
        self.updated_at = self.updated_at.max(now);
        self.rate = rate;
        self.refresh_limits();
        self.credit = self.credit.min(self.credit_max);
    }

    /// The path's packet size changed.
    pub(crate) fn set_packet(&mut self, packet: Bytes) {
        self.packet = packet;
        self.refresh_limits();
    }

    /// `bytes` left, with or without credit.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: Bytes) {
        let left = self.credit_at(now).saturating_sub(credit(bytes));
        self.credit = left.max(-credit(DEBT_MAX));
        self.updated_at = self.updated_at.max(now);
        let is_full_size = bytes + bytes > self.packet;
        self.is_pair_begun ^= self.in_pairs && is_full_size;
    }

    /// How much may leave now.
    #[must_use]
    pub(crate) fn budget(&self, now: Instant) -> Bytes {
        let bytes = self.credit_at(now).max(0) / CREDIT_PER_BYTE;
        let budget = Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX));
        if budget < self.least() {
            return Bytes::ZERO;
        }
        budget
    }

    /// When it is worth waking to send, with `bytes` (a packet) to send at least: as soon as they
    /// may leave, or on faster links a whole burst of [`QUANTUM_SPAN`]. In the past if that is so
    /// already; `Instant::NEVER` at rate zero.
    #[must_use]
    pub(crate) fn next_at(&self, bytes: Bytes) -> Instant {
        let worthwhile = self.burst.max(bytes.min(self.quantum)).max(self.least());
        let missing = credit(worthwhile).saturating_sub(self.credit);
        if missing <= 0 {
            return self.updated_at;
        }
        if self.rate == Rate::ZERO {
            return Instant::NEVER;
        }
        self.updated_at + Duration::from_nanos(missing.unsigned_abs().div_ceil(self.rate.as_bps()))
    }

    /// Less credit than this is not used.
    fn least(&self) -> Bytes {
        if self.in_pairs && !self.is_pair_begun {
            self.packet + self.packet
        } else {
            Bytes::ZERO
        }
    }

    fn refresh_limits(&mut self) {
        let least = Bytes::new(self.packet.get() * QUANTUM_MIN_PACKETS);
        self.burst = self.rate.amount_in(QUANTUM_SPAN).min(QUANTUM_MAX);
        self.quantum = self.burst.max(least);
        self.credit_max = credit(self.quantum + self.rate.amount_in(LATENESS));
    }

    fn credit_at(&self, now: Instant) -> i64 {
        let nanos = now.as_nanos().saturating_sub(self.updated_at.as_nanos());
        let earned = i64::try_from(self.rate.as_bps().saturating_mul(nanos)).unwrap_or(i64::MAX);
        self.credit.saturating_add(earned).min(self.credit_max)
    }
}

fn credit(amount: Bytes) -> i64 {
    i64::try_from(amount.get())
        .unwrap_or(i64::MAX)
        .saturating_mul(CREDIT_PER_BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Bytes = Bytes::new(1_472);

    /// Sends as a driver does that wakes `late` after each appointed time, for one second.
    fn sent_in_a_second(rate: Rate, late: Duration) -> (Bytes, Bytes) {
        let mut pacer = Pacer::new(Instant::EPOCH, rate, PACKET);
        let (mut now, mut sent, mut largest) = (Instant::EPOCH, Bytes::ZERO, Bytes::ZERO);
        while now < Instant::from_millis(1_000) {
            let mut burst = Bytes::ZERO;
            while pacer.budget(now) >= PACKET {
                pacer.on_sent(now, PACKET);
                burst += PACKET;
            }
            sent += burst;
            largest = largest.max(burst);
            now = pacer.next_at(PACKET).max(now) + late;
        }
        (sent, largest)
    }

    #[test]
    fn a_late_driver_loses_nothing() {
        for mbps in [1, 10, 50, 300, 1_000, 4_000, 10_000] {
            let rate = Rate::from_mbps(mbps);
            for late_us in [0, 60, 500, 1_500, 2_000] {
                let (sent, _) = sent_in_a_second(rate, Duration::from_micros(late_us));
                let share = sent.get() as f64 / rate.amount_in(Duration::from_secs(1)).get() as f64;
                // The first burst and the last wake-up blur the edges by a few milliseconds.
                assert!(
                    (0.985..1.04).contains(&share),
                    "{rate}, {late_us} us late: {share}"
                );
            }
        }
    }

    #[test]
    fn bursts_are_quanta() {
        let burst = |mbps| sent_in_a_second(Rate::from_mbps(mbps), Duration::ZERO).1;
        assert_eq!(burst(1), Bytes::new(2 * 1_472));
        assert!(burst(100) <= Bytes::new(12_500), "{}", burst(100));
        let fast = Pacer::new(Instant::EPOCH, Rate::from_mbps(1_000), PACKET);
        assert_eq!(fast.quantum, QUANTUM_MAX);
    }

    #[test]
    fn pairs_leave_together_and_evenly_spaced() {
        let packet = Bytes::new(1_000);
        // 1 Mbit/s: a packet lasts 8 ms, a pair 16 ms.
        let mut pacer = Pacer::new(Instant::EPOCH, Rate::from_mbps(1), packet).in_pairs(true);
        let mut now = Instant::EPOCH;
        for pair in 0..10 {
            assert_eq!(now, Instant::from_millis(16 * pair));
            assert_eq!(pacer.budget(now), packet + packet);
            pacer.on_sent(now, packet);
            assert_eq!(pacer.next_at(packet), now);
            assert_eq!(pacer.budget(now), packet);
            pacer.on_sent(now, packet);
            let early = now + Duration::from_millis(15);
            assert_eq!(pacer.budget(early), Bytes::ZERO);
            now = pacer.next_at(packet);
        }
    }

    #[test]
    fn debt_is_paid_and_idleness_saves_little() {
        let rate = Rate::from_mbps(8); // 1 kB per ms
        let mut pacer = Pacer::new(Instant::EPOCH, rate, PACKET);
        pacer.on_sent(Instant::EPOCH, Bytes::new(12_944));
        assert_eq!(pacer.budget(Instant::EPOCH), Bytes::ZERO);
        assert_eq!(pacer.next_at(Bytes::new(1_000)), Instant::from_millis(11));
        assert_eq!(pacer.budget(Instant::from_millis(11)), Bytes::new(1_000));
        let later = Instant::from_millis(60_000);
        assert_eq!(pacer.budget(later), Bytes::new(2_944 + 2_000));
    }

    #[test]
    fn a_new_rate_keeps_credit_and_extremes_do_not_panic() {
        let mut pacer = Pacer::new(Instant::EPOCH, Rate::ZERO, PACKET);
        pacer.on_sent(Instant::EPOCH, Bytes::new(4_000));
        assert_eq!(pacer.next_at(PACKET), Instant::NEVER);
        pacer.set_rate(Instant::from_millis(1_000), Rate::from_mbps(8));
        assert!(pacer.next_at(PACKET) > Instant::from_millis(1_000));
        pacer.set_rate(Instant::from_millis(1_001), Rate::MAX);
        assert!(pacer.budget(Instant::NEVER) >= PACKET);
    }
}
