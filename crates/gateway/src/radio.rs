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

    /// The longest of the last minute.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Round trips are much longer than they might be: something waits in a queue.
    pub(crate) fn is_long(&self) -> bool {
        let (now, least) = (self.smoothed, self.shortest);
        now.zip(least).is_some_and(|(now, least)| now > 2 * least)
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
    /// It does not grow beyond until then.
    ceiling: Option<(u32, Instant)>,
    /// The mobile host has no SACK: each segment lost takes a round trip to repair, so it is never
    /// given more than fills the link.
    by_one: bool,
}

/// As much as a TCP begins with on hosts of today.
const ALLOWANCE_INITIAL: u32 = 64 * 1024;
const ALLOWANCE_MIN: u32 = 8 * 1024;
/// What a loss leaves of what was on the way (as CUBIC, RFC 9438 §4.6).
const AFTER_LOSS: f64 = 0.7;
/// What filled a queue until it overflowed is not tried again so soon; and how near to it is gone.
const CEILING_KEPT: Duration = Duration::from_secs(60);
const CEILING: f64 = 0.85;
/// Growth per round trip after the first loss: this share, and a segment at least.
const GROWTH: f64 = 0.05;
/// A round trip that brings this much more than the best shows that the link is not full.
const FASTER: f64 = 1.25;
/// So many without it: the link is full.
const FLAT_ROUNDS: u32 = 2;
/// Rates are looked at over so long, later on: what waited comes all at once.
const LOOK: Duration = Duration::from_millis(500);
/// What is left then, in the shortest round trips: room for delays that come and go.
const FULL: f64 = 4.0;

impl Allowance {
    pub(crate) fn new(most: u32, by_one: bool) -> Self {
        Self {
            bytes: ALLOWANCE_INITIAL.min(most),
            starting: true,
            round: (Seq::default(), Instant::NEVER, 0),
            best: 0.0,
            flat: 0,
            ceiling: None,
            by_one,
        }
    }

    /// Everything below `ack` has arrived, `acked` bytes more than before; below `top` it is on its
    /// way. `least` is the shortest round trip.
    pub(crate) fn watch(&mut self, now: Instant, ack: Seq, top: Seq, acked: u32, least: Duration) {
        if !self.starting && !self.by_one {
            return;
        }
        self.round.2 = self.round.2.saturating_add(acked);
        let (end, from, bytes) = self.round;
        let is_short = !self.starting && now < from + LOOK;
        if from != Instant::NEVER && (ack.is_before(end) || is_short) {
            return;
        }
        let span = (now - from).as_secs_f64();
        self.round = (top, now, 0);
        if from == Instant::NEVER || span == 0.0 {
            return;
        }
        let rate = f64::from(bytes) / span;
        if !self.starting {
            self.best = self.best.max(rate);
            self.fill(now, least);
        } else if rate >= self.best * FASTER {
            (self.best, self.flat) = (rate, 0);
        } else {
            self.flat += 1;
            if self.flat >= FLAT_ROUNDS && self.bytes > ALLOWANCE_INITIAL {
                self.starting = false;
                self.bytes = self.bytes.min(self.full(least));
                self.fill(now, least);
            }
        }
    }

    fn full(&self, least: Duration) -> u32 {
        let full = (FULL * self.best * least.as_secs_f64()) as u32;
        full.max(ALLOWANCE_INITIAL)
    }

    /// What fills the link is all there is to gain for a host that repairs one by one.
    fn fill(&mut self, now: Instant, least: Duration) {
        let is_of_a_loss = |(_, until)| until != Instant::NEVER && now < until;
        if self.by_one && !self.ceiling.is_some_and(is_of_a_loss) {
            self.ceiling = Some((self.full(least), Instant::NEVER));
        }
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// `acked` bytes have arrived while the allowance bound the window.
    pub(crate) fn on_arrival(&mut self, now: Instant, acked: u32, segment: u32, most: u32) {
        let most = match self.ceiling {
            Some((ceiling, until)) if now < until => most.min(ceiling),
            _ => most,
        };
        let growth = if self.starting {
            acked
        } else {
            let share = f64::from(acked) / f64::from(self.bytes.max(1));
            (share * (GROWTH * f64::from(self.bytes)).max(f64::from(segment))) as u32
        };
        self.bytes = self.bytes.saturating_add(growth).min(most.max(self.bytes));
    }

    /// Something was lost while `flight` bytes were on the way; because a queue overflowed, where
    /// `queued`.
    pub(crate) fn on_loss(&mut self, now: Instant, flight: u32, queued: bool) {
        self.starting = false;
        let flight = f64::from(flight.min(self.bytes));
        self.bytes = ((flight * AFTER_LOSS) as u32).max(ALLOWANCE_MIN);
        if queued {
            let ceiling = ((flight * CEILING) as u32).max(ALLOWANCE_MIN);
            self.ceiling = Some((ceiling, now + CEILING_KEPT));
        }
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

    /// All that is allowed goes over 1.25 MB/s and 50 ms: 62.5 kB fill the link, the rest makes
    /// round trips longer. When it has arrived, and how much it was.
    fn a_flight(allowance: &mut Allowance, round: u64, sent: &mut u32) -> (Instant, u32) {
        let flight = allowance.bytes();
        let span = ms(50).max(Duration::from_secs_f64(f64::from(flight) / 1.25e6));
        let now = Instant::from_millis(1_000 * round) + span;
        *sent += flight;
        allowance.round.1 = allowance.round.1.min(now - span);
        allowance.watch(now, Seq(*sent), Seq(*sent + 1), flight, ms(50));
        (now, flight)
    }

    #[test]
    fn doubling_ends_when_more_arrives_no_faster() {
        let mut allowance = Allowance::new(4 << 20, false);
        let mut sent = 0;
        for round in 1..=12 {
            let (now, flight) = a_flight(&mut allowance, round, &mut sent);
            if allowance.starting {
                allowance.on_arrival(now, flight, 1_448, 4 << 20);
            }
        }
        assert!(!allowance.starting);
        assert!(
            (200_000..=280_000).contains(&allowance.bytes()),
            "{allowance:?}"
        );
    }

    #[test]
    fn a_host_without_sack_is_given_what_fills_the_link_and_no_more() {
        let mut allowance = Allowance::new(4 << 20, true);
        let mut sent = 0;
        for round in 1..=200 {
            let (now, flight) = a_flight(&mut allowance, round, &mut sent);
            allowance.on_arrival(now, flight, 1_448, 4 << 20);
        }
        assert!(allowance.bytes() <= 280_000, "{allowance:?}");
        // Ten times as fast: more of it.
        for round in 201..=300 {
            let flight = allowance.bytes();
            let now = Instant::from_millis(1_000 * round);
            sent += flight;
            allowance.round.1 = now - ms(500);
            allowance.watch(now, Seq(sent), Seq(sent + 1), 6_250_000, ms(50));
            allowance.on_arrival(now, flight, 1_448, 4 << 20);
        }
        assert!(allowance.bytes() >= 2_000_000, "{allowance:?}");
    }

    #[test]
    fn a_loss_takes_three_tenths_and_growth_is_slow_after_it() {
        let now = Instant::from_millis(1);
        let mut allowance = Allowance::new(1 << 20, false);
        allowance.on_arrival(now, 64 * 1024, 1_448, 1 << 20);
        assert_eq!(allowance.bytes(), 128 * 1024);
        allowance.on_loss(now, 100_000, false);
        assert_eq!(allowance.bytes(), 70_000);
        allowance.on_arrival(now, 70_000, 1_448, 1 << 20);
        assert_eq!(allowance.bytes(), 73_500);
    }

    #[test]
    fn what_filled_a_queue_is_not_tried_again_for_a_minute() {
        let now = Instant::from_millis(1);
        let mut allowance = Allowance::new(1 << 20, false);
        allowance.on_loss(now, 60_000, true);
        for _ in 0..20 {
            let acked = allowance.bytes();
            allowance.on_arrival(now + CEILING_KEPT - ms(1), acked, 1_448, 1 << 20);
        }
        assert_eq!(allowance.bytes(), 51_000);
        allowance.on_arrival(now + CEILING_KEPT, 51_000, 1_448, 1 << 20);
        assert_eq!(allowance.bytes(), 53_550);
    }
}
