//! A path rests while the peer has too little memory for what it brings.
//!
//! What arrives far ahead of order fills a small receive memory, what then finds no room has to
//! go again by nearer paths, and these fall behind what was expected of them: so more comes too
//! early, for ever. Left alone for a round trip the far path lets them catch up. A path that
//! cannot be kept up with rests longer and longer, until the others carry everything.

use tabane_base::{Bytes, Duration, Instant, Rate};

/// The longest rest: so often it is tried whether the path can be used again.
const LONGEST: Duration = Duration::from_secs(10);
/// A path that did well for so many times its last rest begins with a short one again.
const FORGIVEN_AFTER: u32 = 8;

/// Whether a path rests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rest {
    until: Option<Instant>,
    span: Duration,
}

impl Rest {
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Has the path rest, for twice `round_trip` at least.
    pub(crate) fn begin(&mut self, now: Instant, round_trip: Duration) {
        let is_again = self
            .until
            .is_some_and(|until| now.since(until) < FORGIVEN_AFTER * self.span);
        self.span = match is_again {
            true => (4 * self.span).min(LONGEST),
            false => 2 * round_trip,
        };
        self.until = Some(now + self.span);
    }
}

/// How much of what arrives the peer sheds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shedding {
    /// Since when it is counted; what was sent before does not count.
    since: Instant,
    /// What had arrived by then.
    arrived: Bytes,
    shed: Bytes,
}

impl Shedding {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            since: now,
            arrived: Bytes::ZERO,
            shed: Bytes::ZERO,
        }
    }

    /// Packets of `shed` bytes, the newest sent at `sent_at`, found no memory; `arrived` is what
    /// arrived in all, those included. Whether less was of use over two of the farthest path's
    /// `round_trip` than the `others` carry without it.
    pub(crate) fn on_shed(
        &mut self,
        now: Instant,
        round_trip: Duration,
        (sent_at, shed): (Instant, Bytes),
        arrived: Bytes,
        others: Rate,
    ) -> bool {
        if sent_at < self.since {
            return false;
        }
        if self.shed == Bytes::ZERO {
            (self.since, self.arrived) = (sent_at, arrived - shed);
        }
        self.shed += shed;
        if now.since(self.since) < 2 * round_trip {
            return false;
        }
        let of_use = arrived - self.arrived - self.shed;
        let too_much = of_use < others.amount_in(now.since(self.since));
        self.since = now;
        self.shed = Bytes::ZERO;
        too_much
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    #[test]
    fn rests_grow_while_the_path_does_badly_and_begin_anew_after_it_did_well() {
        let at = Instant::from_millis;
        let mut rest = Rest::default();
        assert!(rest.is_over(at(0)));
        rest.begin(at(0), RTT);
        assert!(!rest.is_over(at(199)) && rest.is_over(at(200)));
        rest.begin(at(300), RTT);
        assert!(!rest.is_over(at(1_099)) && rest.is_over(at(1_100)));
        rest.begin(at(60_000), RTT);
        assert!(rest.is_over(at(60_200)));
    }

    /// Of 8 Mbit/s one byte in `part` is shed for a second; whether that was ever too much beside
    /// paths that carry `others` Mbit/s.
    fn is_too_much(part: u64, others: u64) -> bool {
        let mut shedding = Shedding::new(Instant::EPOCH);
        (1..1_000).any(|ms| {
            let (now, arrived) = (Instant::from_millis(ms), Bytes::new(ms * 1_000));
            let shed = Bytes::new(1_000 / part);
            shedding.on_shed(now, RTT, (now, shed), arrived, Rate::from_mbps(others))
        })
    }

    #[test]
    fn what_may_be_shed_depends_on_what_the_others_carry_alone() {
        assert!(!is_too_much(10, 7));
        assert!(is_too_much(10, 8));
        assert!(!is_too_much(3, 5));
        assert!(is_too_much(3, 6));
    }

    #[test]
    fn what_left_before_a_verdict_does_not_count_again() {
        let mut shedding = Shedding::new(Instant::from_millis(10));
        let early = (Instant::from_millis(9), Bytes::new(1_000));
        assert!(!shedding.on_shed(
            Instant::from_millis(9_000),
            RTT,
            early,
            Bytes::new(1),
            Rate::from_mbps(8)
        ));
    }
}
