//! How the link to the mobile host does for one flow: round trips, and how much may be on it.

use tabane_base::{Duration, Instant};

use crate::seq::Seq;

/// No timer of ours runs out earlier, however short the round trips: the link delays for a second
/// where it is bad, and what comes late must not be sent twice.
const TIMEOUT_MIN: Duration = Duration::from_millis(1_500);
/// Before the first round trip is known.
const TIMEOUT_INITIAL: Duration = Duration::from_secs(3);
/// A timer that ran out waits twice as long the next time, up to this.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// How long the longest round trip is remembered.
const LONGEST_KEPT: Duration = Duration::from_secs(60);

/// What a Linux sender's retransmission timer never falls below.
const SENDER_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// Round trips of one kind (RFC 6298 §2), with their extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
    shortest: Option<Duration>,
    longest: Duration,
    longest_at: Instant,
}

impl RoundTrip {
    pub(crate) fn sample(&mut self, now: Instant, sample: Duration) {
        self.shortest = Some(self.shortest.map_or(sample, |least| least.min(sample)));
        if sample >= self.longest || now - self.longest_at > LONGEST_KEPT {
            (self.longest, self.longest_at) = (sample, now);
        }
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(sample), sample / 2),
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.shortest
    }

    /// When a copy is sent again without any sign of its loss: after two round trips at least.
    pub(crate) fn timeout(&self, backoff: u32) -> Duration {
        let base = self.smoothed.map_or(TIMEOUT_INITIAL, |smoothed| {
            (2 * smoothed)
                .max(smoothed + 4 * self.variation)
                .max(self.longest * 3 / 2)
                .max(TIMEOUT_MIN)
        });
        let most = TIMEOUT_MAX.max(2 * self.smoothed.unwrap_or_default());
        base.saturating_mul(1 << backoff.min(8)).min(most)
    }

    /// When the timer of a sender would run out whose round trip is this one and `rest` together.
    pub(crate) fn senders_timeout(&self, rest: &Self) -> Duration {
        let part = |trip: &Self| trip.smoothed.unwrap_or_default() + 4 * trip.variation;
        (part(self) + part(rest)).max(SENDER_TIMEOUT_MIN)
    }
}

/// Bytes that may be on the way to the mobile host. The server no longer sees what the link loses,
/// so the gateway must not let it fill a queue that overflows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    bytes: u32,
    /// Doubles each round trip until something is lost, or more no longer arrives faster.
    starting: bool,
    /// The round trip under way: where it ends, when it began, what has arrived in it.
    round: (Seq, Instant, u32),
    /// Bytes per second in the best round trip, and how many have not been better since.
    best: f64,
    flat: u32,
}

/// As much as a TCP begins with on hosts of today.
const ALLOWANCE_INITIAL: u32 = 64 * 1024;
const ALLOWANCE_MIN: u32 = 8 * 1024;
/// What a loss leaves of what was on the way (as CUBIC, RFC 9438 §4.6).
const AFTER_LOSS: f64 = 0.7;
/// Growth per round trip after the first loss: this share, and a segment at least.
const GROWTH: f64 = 0.05;
/// A round trip that brings this much more than the best shows that the link is not full.
const FASTER: f64 = 1.25;
/// So many without it: the link is full.
const FLAT_ROUNDS: u32 = 2;
/// What is left then, in the shortest round trips: room for delays that come and go.
const FULL: f64 = 4.0;

impl Allowance {
    pub(crate) fn new(most: u32) -> Self {
        Self {
            bytes: ALLOWANCE_INITIAL.min(most),
            starting: true,
            round: (Seq::default(), Instant::NEVER, 0),
            best: 0.0,
            flat: 0,
        }
    }

    /// Everything below `ack` has arrived, `acked` bytes more than before; below `top` it is on its
    /// way. `least` is the shortest round trip.
    pub(crate) fn watch(&mut self, now: Instant, ack: Seq, top: Seq, acked: u32, least: Duration) {
        if !self.starting {
            return;
        }
        self.round.2 = self.round.2.saturating_add(acked);
        let (end, from, bytes) = self.round;
        if from != Instant::NEVER && ack.is_before(end) {
            return;
        }
        let span = (now - from).as_secs_f64();
        self.round = (top, now, 0);
        if from == Instant::NEVER || span == 0.0 {
            return;
        }
        let rate = f64::from(bytes) / span;
        if rate >= self.best * FASTER {
            (self.best, self.flat) = (rate, 0);
            return;
        }
        self.flat += 1;
        if self.flat >= FLAT_ROUNDS && self.bytes > ALLOWANCE_INITIAL {
            self.starting = false;
            let full = (FULL * self.best * least.as_secs_f64()) as u32;
            self.bytes = self.bytes.min(full.max(ALLOWANCE_INITIAL));
        }
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// `acked` bytes have arrived while the allowance bound the window.
    pub(crate) fn on_arrival(&mut self, acked: u32, segment: u32, most: u32) {
        let growth = if self.starting {
            acked
        } else {
            let share = f64::from(acked) / f64::from(self.bytes.max(1));
            (share * (GROWTH * f64::from(self.bytes)).max(f64::from(segment))) as u32
        };
        self.bytes = self.bytes.saturating_add(growth).min(most);
    }

    /// Something was lost while `flight` bytes were on the way.
    pub(crate) fn on_loss(&mut self, flight: u32) {
        self.starting = false;
        let left = (f64::from(flight.min(self.bytes)) * AFTER_LOSS) as u32;
        self.bytes = left.max(ALLOWANCE_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_timer_waits_two_round_trips_and_remembers_the_longest() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.timeout(0), TIMEOUT_INITIAL);
        for n in 0..50 {
            trip.sample(Instant::from_millis(n * 100), ms(100));
        }
        assert_eq!(trip.timeout(0), TIMEOUT_MIN);
        assert_eq!(trip.senders_timeout(&RoundTrip::default()), ms(200));
        trip.sample(Instant::from_millis(5_000), ms(2_000));
        for n in 0..50 {
            trip.sample(Instant::from_millis(5_000 + n * 100), ms(100));
        }
        assert_eq!(trip.timeout(0), ms(3_000));
        assert_eq!(trip.timeout(1), ms(6_000));
        assert_eq!(trip.timeout(9), TIMEOUT_MAX);
        trip.sample(Instant::from_millis(70_000), ms(900));
        assert_eq!(trip.timeout(0), TIMEOUT_MIN);
    }

    #[test]
    fn doubling_ends_when_more_arrives_no_faster() {
        let mut allowance = Allowance::new(4 << 20);
        let mut sent = 0;
        for round in 1..=12 {
            // 1.25 MB/s, 50 ms: 62.5 kB fill the link, the rest makes round trips longer.
            let flight = allowance.bytes();
            let span = ms(50).max(Duration::from_secs_f64(f64::from(flight) / 1.25e6));
            let now = Instant::from_millis(1_000 * round) + span;
            sent += flight;
            allowance.round.1 = allowance.round.1.min(now - span);
            allowance.watch(now, Seq(sent), Seq(sent + 1), flight, ms(50));
            if allowance.starting {
                allowance.on_arrival(flight, 1_448, 4 << 20);
            }
        }
        assert!(!allowance.starting);
        assert!(
            (200_000..=280_000).contains(&allowance.bytes()),
            "{allowance:?}"
        );
    }

    #[test]
    fn a_loss_takes_three_tenths_and_growth_is_slow_after_it() {
        let mut allowance = Allowance::new(1 << 20);
        allowance.on_arrival(64 * 1024, 1_448, 1 << 20);
        assert_eq!(allowance.bytes(), 128 * 1024);
        allowance.on_loss(100_000);
        assert_eq!(allowance.bytes(), 70_000);
        allowance.on_arrival(70_000, 1_448, 1 << 20);
        assert_eq!(allowance.bytes(), 73_500);
    }
}
