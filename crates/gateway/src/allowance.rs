//! How much may be on the way to the mobile host for one flow.

use tabane_base::{Duration, Instant};

use crate::seq::Seq;

/// Bytes that may be on the way to the mobile host. The server no longer sees what the link loses,
/// so the gateway must not let it fill a queue that overflows.
///
/// What fills the link, and a queue for [`STANDING`] on top, is all that is of use: a radio link
/// that falls silent for a while has something to send meanwhile, and no queue grows until it
/// overflows. A longer round trip is no sign of a queue here, because such links delay; so what
/// fills the link is taken from the rate at which data arrives and the shortest round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    bytes: u32,
    /// Doubles each round trip until something is lost, a queue shows, or more no longer arrives
    /// faster.
    starting: bool,
    /// By how much the last round trip was longer than the shortest.
    queue: Duration,
    round: Round,
    rate: Rate,
    /// What the link took when nothing waited, when last looked.
    least: Duration,
    /// Rounds that were no faster than those before.
    flat: u32,
    /// What overflowed a queue, and until when it is kept well away from.
    overflow: Option<(u32, Instant)>,
    /// The mobile host has no SACK, so each segment lost takes a round trip to repair.
    by_one: bool,
}

/// The round trip under way.
#[derive(Clone, Copy, Debug)]
struct Round {
    end: Seq,
    from: Instant,
    /// When what arrived at its beginning, and last, had been sent.
    sent: (Instant, Instant),
    /// What has arrived in it.
    bytes: u32,
    /// How many round trips were measured in it, and their sum.
    trips: (u32, Duration),
}

impl Round {
    fn begin(now: Instant, end: Seq, sent: Instant) -> Self {
        Self {
            end,
            from: now,
            sent: (sent, sent),
            bytes: 0,
            trips: (0, Duration::ZERO),
        }
    }

    /// Its round trips took that much longer than `least`, in the mean.
    fn queue(&self, least: Duration) -> Duration {
        let mean = self.trips.1.checked_div(self.trips.0);
        mean.unwrap_or_default().saturating_sub(least)
    }

    /// Bytes per second. Arrivals that a silence held up come all at once, but were not sent so.
    fn rate(&self, now: Instant) -> f64 {
        let span = (now - self.from).max(self.sent.1 - self.sent.0);
        f64::from(self.bytes) / span.as_secs_f64()
    }
}

/// What arrives, in bytes per second: the most of the last [`RATE_KEPT`], in two halves, and the
/// mean.
#[derive(Clone, Copy, Debug)]
struct Rate {
    halves: [f64; 2],
    since: Instant,
    mean: f64,
}

impl Rate {
    fn unknown(now: Instant) -> Self {
        Self {
            halves: [0.0; 2],
            since: now,
            mean: 0.0,
        }
    }

    fn best(&self) -> f64 {
        self.halves[0].max(self.halves[1])
    }

    /// It was `rate` for `span`.
    fn sample(&mut self, now: Instant, rate: f64, span: Duration) {
        if now - self.since > RATE_KEPT / 2 {
            (self.halves, self.since) = ([0.0, self.halves[0]], now);
        }
        self.halves[0] = self.halves[0].max(rate);
        let weight = (span.as_secs_f64() / RATE_MEAN.as_secs_f64()).min(1.0);
        if self.mean == 0.0 {
            self.mean = rate;
        }
        self.mean += weight * (rate - self.mean);
    }
}

/// As much as a TCP begins with on hosts of today.
const ALLOWANCE_INITIAL: u32 = 64 * 1024;
/// Ten segments, which hosts begin with on any link (RFC 6928): of fewer a loss is seen late.
const ALLOWANCE_MIN: u32 = 16 * 1024;
/// What a loss leaves of what was on the way (as CUBIC, RFC 9438 §4.6).
const AFTER_LOSS: f64 = 0.7;
/// How near to what overflowed a queue is gone, and for how long no nearer.
const NEAR: f64 = 0.85;
const OVERFLOW_KEPT: Duration = Duration::from_secs(60);
/// Growth per round trip where a queue shows: this share, less the nearer it comes to what is of
/// use, and a segment at least. Where none does, the link is not full, and it doubles on (as RFC
/// 9406 resumes slow start).
const GROWTH: f64 = 0.1;
/// A round trip that brings this much more than the best shows that the link is not full.
const FASTER: f64 = 1.25;
/// So many without it: the link is full.
const FLAT_ROUNDS: u32 = 2;
/// A queue shows when round trips took, in the mean, so much longer than the shortest of all.
const QUEUE_SHOWS: Duration = Duration::from_millis(25);
/// Rates are looked at over so long, later on: what waited comes all at once.
const LOOK: Duration = Duration::from_millis(500);
const RATE_KEPT: Duration = Duration::from_secs(30);
const RATE_MEAN: Duration = Duration::from_secs(10);
/// The longest queue that is built, and the longest for a host without SACK.
pub(crate) const STANDING: Duration = Duration::from_millis(750);
const STANDING_BY_ONE: Duration = Duration::from_millis(450);
/// The longest queue of fast links: half of the 1000 packets that Linux gives an interface unless
/// told otherwise. What was on its way joins it when the link becomes slower.
const STANDING_MOST: f64 = 512.0 * 1448.0;

/// Whether round trips that are longer by `queue` than the shortest show that something waits.
fn shows(queue: Duration, least: Duration) -> bool {
    queue > QUEUE_SHOWS.max(least / 4)
}

impl Allowance {
    pub(crate) fn new(most: u32, by_one: bool) -> Self {
        Self {
            bytes: ALLOWANCE_INITIAL.min(most),
            starting: true,
            queue: Duration::ZERO,
            round: Round::begin(Instant::NEVER, Seq::default(), Instant::NEVER),
            rate: Rate::unknown(Instant::EPOCH),
            least: Duration::MAX,
            flat: 0,
            overflow: None,
            by_one,
        }
    }

    /// Everything below `ack` has arrived, `acked` bytes more than before, the last of it sent at
    /// `sent_at`; below `top` it is on its way. `least` is the shortest round trip.
    pub(crate) fn watch(
        &mut self,
        now: Instant,
        (ack, top): (Seq, Seq),
        acked: u32,
        sent_at: Option<Instant>,
        least: Duration,
    ) {
        let round = &mut self.round;
        round.bytes = round.bytes.saturating_add(acked);
        if let Some(at) = sent_at {
            round.trips = (round.trips.0 + 1, round.trips.1 + (now - at));
            self.queue = (now - at).saturating_sub(least);
            round.sent.1 = at;
        }
        let ended = *round;
        let is_known = !self.starting && self.rate.best() > 0.0;
        let is_short = is_known && now < ended.from + LOOK;
        if ended.from != Instant::NEVER && (ack.is_before(ended.end) || is_short) {
            return;
        }
        self.round = Round::begin(now, top, ended.sent.1);
        if ended.from == Instant::NEVER || now <= ended.from {
            return;
        }
        if least > self.least {
            // Another link, in fact: what filled the old one says nothing.
            (self.starting, self.flat, self.rate) = (true, 0, Rate::unknown(now));
        }
        self.least = least;
        let rate = ended.rate(now);
        let is_faster = rate >= self.rate.best() * FASTER;
        self.rate.sample(now, rate, now - ended.from);
        if self.starting {
            self.flat = if is_faster { 0 } else { self.flat + 1 };
            if self.flat >= FLAT_ROUNDS || shows(ended.queue(least), least) {
                self.starting = false;
                // What went without one.
                self.bytes = self.bytes.min(ended.bytes.max(ALLOWANCE_INITIAL));
            }
        }
    }

    /// Where there is no more to gain.
    fn useful(&self, least: Duration) -> u32 {
        let standing = if self.by_one {
            STANDING_BY_ONE
        } else {
            STANDING
        };
        let standing = (self.rate.mean * standing.as_secs_f64()).min(STANDING_MOST);
        ((self.full(least) + standing) as u32).max(ALLOWANCE_INITIAL)
    }

    /// What fills the link.
    fn full(&self, least: Duration) -> f64 {
        self.rate.best() * least.as_secs_f64()
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// `acked` bytes have arrived while the allowance bound the window.
    pub(crate) fn on_arrival(
        &mut self,
        now: Instant,
        acked: u32,
        segment: u32,
        most: u32,
        least: Duration,
    ) {
        let share = f64::from(acked) / f64::from(self.bytes.max(1));
        let (mut growth, mut most) = if self.starting {
            (acked, most)
        } else {
            let most = most.min(self.useful(least));
            if shows(self.queue, least) {
                // Slower, the nearer.
                let left = f64::from(most.saturating_sub(self.bytes)) / f64::from(most.max(1));
                let step = (GROWTH * left * f64::from(self.bytes)).max(f64::from(segment));
                ((share * step) as u32, most)
            } else {
                (acked, most)
            }
        };
        if let Some((overflow, until)) = self.overflow {
            // What fills the link overflows nothing.
            let near = (NEAR * f64::from(overflow)).max(self.full(least)) as u32;
            if now < until {
                most = most.min(near);
            } else if self.bytes > overflow {
                self.overflow = None;
            } else if self.bytes >= near {
                growth = growth.min((share * f64::from(segment)) as u32);
            }
        }
        let grown = self.bytes.saturating_add(growth);
        self.bytes = grown.min(most.max(self.bytes));
    }

    /// Something was lost while `flight` bytes were on the way; because a queue overflowed, where
    /// `queued`.
    pub(crate) fn on_loss(&mut self, now: Instant, flight: u32, queued: bool, least: Duration) {
        self.starting = false;
        // Less than fills the link is left of what overflowed.
        let flight = flight.max(self.full(least) as u32).min(self.bytes);
        self.bytes = ((f64::from(flight) * AFTER_LOSS) as u32).max(ALLOWANCE_MIN);
        if queued {
            self.overflow = Some((flight, now + OVERFLOW_KEPT));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 4 << 20;
    const SEGMENT: u32 = 1_448;
    const BASE: Duration = Duration::from_millis(50);

    /// A link that carries `rate` bytes a second, and loses what its queue cannot hold.
    struct Link {
        rate: f64,
        base: Duration,
        queue: f64,
        now: Instant,
        sent: u32,
        lost: f64,
    }

    impl Link {
        fn new(rate: f64, queue: f64) -> Self {
            Self {
                rate,
                base: BASE,
                queue,
                now: Instant::EPOCH,
                sent: 0,
                lost: 0.0,
            }
        }

        /// All that is allowed goes over it, segment by segment: a round trip each time.
        fn carry(&mut self, allowance: &mut Allowance, least: Duration, rounds: usize) {
            for _ in 0..rounds {
                let flight = f64::from(allowance.bytes());
                let held = self.queue + self.rate * self.base.as_secs_f64();
                if flight > held {
                    self.lost += flight - held;
                    allowance.on_loss(self.now, flight as u32, true, least);
                }
                let flight = flight.min(held);
                let span = self.base.max(Duration::from_secs_f64(flight / self.rate));
                let segments = (flight / f64::from(SEGMENT)) as u32;
                for _ in 0..segments {
                    self.now += span / segments;
                    self.sent += SEGMENT;
                    let places = (Seq(self.sent), Seq(self.sent) + allowance.bytes());
                    let sent_at =
                        Some(Instant::EPOCH + (self.now - Instant::EPOCH).saturating_sub(span));
                    allowance.watch(self.now, places, SEGMENT, sent_at, least);
                    allowance.on_arrival(self.now, SEGMENT, SEGMENT, MOST, least);
                }
            }
        }
    }

    #[test]
    fn what_fills_the_link_and_a_bounded_queue_is_allowed_and_no_more() {
        for (by_one, standing) in [(false, STANDING), (true, STANDING_BY_ONE)] {
            let mut allowance = Allowance::new(MOST, by_one);
            let mut link = Link::new(1.25e6, 1e7);
            for rate in [0.5e6, 1.25e6, 5e6] {
                link.rate = rate;
                link.carry(&mut allowance, BASE, 200);
                let standing = (rate * standing.as_secs_f64()).min(STANDING_MOST);
                let useful = rate * BASE.as_secs_f64() + standing;
                let got = f64::from(allowance.bytes());
                assert!((0.8..1.05).contains(&(got / useful)), "{allowance:?}");
            }
        }
    }

    #[test]
    fn doubling_ends_when_a_queue_shows() {
        let mut allowance = Allowance::new(MOST, false);
        let mut link = Link::new(1.25e6, 250e3);
        while allowance.starting {
            link.carry(&mut allowance, BASE, 1);
        }
        assert_eq!(link.lost, 0.0);
        assert!(allowance.bytes() < 300_000, "{allowance:?}");
    }

    #[test]
    fn it_doubles_on_where_a_queue_has_gone() {
        let mut allowance = Allowance::new(MOST, false);
        let mut link = Link::new(1.25e6, 1e7);
        while allowance.starting {
            link.carry(&mut allowance, BASE, 1);
        }
        let before = allowance.bytes();
        // What made a queue of it does so no longer.
        link.rate *= 8.0;
        link.carry(&mut allowance, BASE, 3);
        assert!(allowance.bytes() > 2 * before, "{allowance:?}, {before}");
    }

    #[test]
    fn what_a_silence_held_up_and_comes_at_once_is_not_taken_for_a_fast_link() {
        let at = Instant::from_millis;
        let mut round = Round::begin(at(2_000), Seq(0), at(1_000));
        (round.bytes, round.sent.1) = (500_000, at(2_000));
        assert_eq!(round.rate(at(2_010)), 500_000.0);
        assert_eq!(round.rate(at(3_250)), 400_000.0);
    }

    #[test]
    fn a_link_that_is_another_from_now_on_is_filled_anew() {
        let mut allowance = Allowance::new(MOST, false);
        let mut link = Link::new(1.25e6, 1e7);
        link.carry(&mut allowance, BASE, 100);
        link.base = Duration::from_secs(2);
        link.carry(&mut allowance, link.base, 10);
        assert!(allowance.bytes() > 2_400_000, "{allowance:?}");
    }

    #[test]
    fn a_loss_takes_three_tenths_but_nothing_of_what_fills_the_link() {
        let mut allowance = Allowance::new(MOST, false);
        allowance.on_loss(Instant::EPOCH, 60_000, false, BASE);
        assert_eq!(allowance.bytes(), 42_000);
        let mut link = Link::new(1.25e6, 1e7);
        link.carry(&mut allowance, BASE, 100);
        let full = allowance.rate.best() * BASE.as_secs_f64();
        // It was noticed when most of the flight had arrived.
        allowance.on_loss(link.now, 3_000, true, BASE);
        let left = f64::from(allowance.bytes());
        assert!((left - AFTER_LOSS * full).abs() < 10.0, "{allowance:?}");
        link.carry(&mut allowance, BASE, 100);
        assert!(f64::from(allowance.bytes()) > 0.99 * full, "{allowance:?}");
    }

    #[test]
    fn what_overflowed_a_queue_is_not_tried_for_a_minute_and_then_with_care() {
        let mut allowance = Allowance::new(MOST, false);
        let mut link = Link::new(1.25e6, 300e3);
        let until = |link: &mut Link, allowance: &mut Allowance, seconds: u64| {
            while link.now < Instant::EPOCH + Duration::from_secs(seconds) {
                link.carry(allowance, BASE, 1);
            }
        };
        until(&mut link, &mut allowance, 20);
        let lost = link.lost;
        assert!(lost > 0.0, "the queue is shorter than what is of use");
        until(&mut link, &mut allowance, 55);
        assert_eq!(link.lost, lost);
        until(&mut link, &mut allowance, 180);
        let again = link.lost - lost;
        assert!(again > 0.0 && again < 4.0 * f64::from(SEGMENT), "{again}");
    }
}
