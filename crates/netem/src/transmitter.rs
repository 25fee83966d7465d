//! When the packet at the head of the queue has left the transmitter.
//!
//! Exact by construction: work is counted in nanobits (bits × 10⁹), the unit in which rate ×
//! nanoseconds is a whole number, and what a completion rounded up to a nanosecond gives away is
//! credited to the packet that follows without a gap. So no rate drifts, however long it runs.

use std::sync::Arc;

use tabane_base::{Bytes, Instant, Rate};

use crate::trace::{OPPORTUNITY, Trace};

const NANOBITS_PER_BIT: u128 = 1_000_000_000;

/// Serves one packet at a time.
#[derive(Clone, Debug)]
pub(crate) enum Transmitter {
    Constant(ConstantRate),
    Trace(TraceRate),
}

impl Transmitter {
    pub(crate) fn constant(rate: Rate) -> Self {
        Self::Constant(ConstantRate {
            rate,
            as_of: Instant::EPOCH,
            work: 0,
            credit: 0,
        })
    }

    pub(crate) fn trace(trace: Arc<Trace>, start: Instant) -> Self {
        Self::Trace(TraceRate {
            trace,
            start,
            next: 0,
            left: 0,
            work: 0,
            as_of: start,
        })
    }

    /// Begins a packet at `at`; `gapless` if it waited for the one before it.
    pub(crate) fn begin(&mut self, at: Instant, size: Bytes, gapless: bool) {
        match self {
            Self::Constant(server) => server.begin(at, size, gapless),
            Self::Trace(server) => server.begin(at, size, gapless),
        }
    }

    /// When the packet begun last is out, if nothing changes.
    pub(crate) fn completes_at(&self) -> Instant {
        match self {
            Self::Constant(server) => server.completes_at(),
            Self::Trace(server) => server.completes_at(),
        }
    }

    /// Takes note that the packet is out, at `completes_at`.
    pub(crate) fn complete(&mut self) {
        match self {
            Self::Constant(server) => server.complete(),
            Self::Trace(server) => server.complete(),
        }
    }

    /// Goes on at `rate` from `at` on, in the middle of a packet if there is one.
    pub(crate) fn set_rate(&mut self, at: Instant, rate: Rate) {
        match self {
            Self::Constant(server) => server.set_rate(at, rate),
            Self::Trace(server) => {
                let work = u128::from(server.work) * 8 * NANOBITS_PER_BIT;
                *self = Self::Constant(ConstantRate {
                    rate,
                    as_of: at,
                    work,
                    credit: 0,
                });
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ConstantRate {
    rate: Rate,
    /// When `work` was true.
    as_of: Instant,
    /// Nanobits of the current packet still to send.
    work: u128,
    /// Nanobits sent ahead, by rounding a completion up to a nanosecond.
    credit: u128,
}

impl ConstantRate {
    fn begin(&mut self, at: Instant, size: Bytes, gapless: bool) {
        if !gapless {
            self.credit = 0;
        }
        self.as_of = at;
        self.work = u128::from(size.bits()) * NANOBITS_PER_BIT;
    }

    fn completes_at(&self) -> Instant {
        let work = self.work.saturating_sub(self.credit);
        if work == 0 || self.rate == Rate::MAX {
            return self.as_of;
        }
        if self.rate == Rate::ZERO {
            return Instant::NEVER;
        }
        let nanos = work.div_ceil(u128::from(self.rate.as_bps()));
        let at = u128::from(self.as_of.as_nanos()) + nanos;
        u64::try_from(at).map_or(Instant::NEVER, Instant::from_nanos)
    }

    fn complete(&mut self) {
        let at = self.completes_at();
        if self.rate == Rate::MAX {
            self.credit = 0;
        } else {
            self.credit = (self.sent_until(at) + self.credit).saturating_sub(self.work);
        }
        self.work = 0;
        self.as_of = at;
    }

    fn set_rate(&mut self, at: Instant, rate: Rate) {
        self.work = self.work.saturating_sub(self.credit + self.sent_until(at));
        self.credit = 0;
        self.as_of = at;
        self.rate = rate;
    }

    fn sent_until(&self, at: Instant) -> u128 {
        at.since(self.as_of).as_nanos() * u128::from(self.rate.as_bps())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TraceRate {
    trace: Arc<Trace>,
    start: Instant,
    /// The first opportunity that is not used yet.
    next: u64,
    /// Bytes left of the opportunity before `next`; void as soon as the queue runs empty.
    left: u64,
    /// Bytes of the current packet still to send.
    work: u64,
    as_of: Instant,
}

impl TraceRate {
    fn begin(&mut self, at: Instant, size: Bytes, gapless: bool) {
        if !gapless {
            self.left = 0;
            self.next = self.next.max(self.trace.first_from(self.start, at));
        }
        self.as_of = at;
        self.work = size.get();
    }

    /// How many further opportunities the packet needs.
    fn opportunities(&self) -> u64 {
        self.work
            .saturating_sub(self.left)
            .div_ceil(OPPORTUNITY.get())
    }

    fn completes_at(&self) -> Instant {
        match self.opportunities() {
            0 => self.as_of,
            needed => {
                let last = self.next.saturating_add(needed - 1);
                self.trace.time_of(self.start, last).max(self.as_of)
            }
        }
    }

    fn complete(&mut self) {
        let at = self.completes_at();
        let needed = self.opportunities();
        let opened = needed.saturating_mul(OPPORTUNITY.get());
        self.next = self.next.saturating_add(needed);
        self.left = self.left.saturating_add(opened).saturating_sub(self.work);
        self.work = 0;
        self.as_of = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate whose packet time is no whole number of nanoseconds must not lose the fractions.
    #[test]
    fn a_million_packets_end_on_the_nanosecond() {
        let mut server = Transmitter::constant(Rate::from_bps(7_000_003));
        let mut at = Instant::EPOCH;
        for index in 0..1_000_000 {
            server.begin(at, Bytes::new(1501), index > 0);
            at = server.completes_at();
            server.complete();
        }
        let exact = (1_501_u128 * 8 * 1_000_000 * 1_000_000_000).div_ceil(7_000_003);
        assert_eq!(u128::from(at.as_nanos()), exact);
    }

    #[test]
    fn a_rate_change_in_mid_packet_counts_what_is_sent() {
        let mut server = Transmitter::constant(Rate::from_mbps(12));
        server.begin(Instant::EPOCH, Bytes::new(1500), false);
        server.set_rate(Instant::from_micros(500), Rate::ZERO);
        assert_eq!(server.completes_at(), Instant::NEVER);
        server.set_rate(Instant::from_millis(10), Rate::from_mbps(6));
        assert_eq!(server.completes_at(), Instant::from_millis(11));
    }

    #[test]
    fn small_packets_share_an_opportunity_only_without_a_gap() {
        let trace = Arc::new(Trace::parse("1\n2\n3\n4").unwrap());
        let mut server = Transmitter::trace(trace, Instant::EPOCH);
        let mut send = |at: u64, size: u64, gapless: bool| {
            server.begin(Instant::from_millis(at), Bytes::new(size), gapless);
            let done = server.completes_at();
            server.complete();
            done.as_micros() / 1000
        };
        assert_eq!(send(0, 750, false), 1);
        assert_eq!(send(1, 750, true), 1);
        assert_eq!(send(1, 750, true), 2);
        assert_eq!(send(2, 750, false), 3, "the rest of opportunity 2 is gone");
        assert_eq!(send(3, 3000, true), 5, "750 bytes at 3 ms, then 4 and 5 ms");
    }
}
