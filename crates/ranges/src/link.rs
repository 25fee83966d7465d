//! What is known of a link: what its owner allows, how fast it has been, when it failed.
//!
//! Owns the measurements that bytes themselves give; what to make of them is the rule's. Readings
//! from elsewhere (the host's monitor, an earlier transfer) come in as hints and count until there
//! is one of our own.

use std::collections::VecDeque;

use tabane_base::{Bytes, Duration, Instant, Rate};

/// A rate is measured over so long, and longer until so much has come: where a packet is lost, what
/// follows it waits for several round trips and comes at once.
const WINDOW: Duration = Duration::from_secs(2);
const WINDOW_AMOUNT: Bytes = Bytes::kilo(64);
/// Arrivals are counted together for so long, so that a fast link costs no memory.
const BUCKET: Duration = Duration::from_millis(20);
/// A rate needs at least so long between its first and last byte.
const LEAST_SPAN: Duration = Duration::from_millis(5);

/// A link of the transfer, by a number that the caller gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// What a link may be used for, and what is known of it beforehand.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkLimits {
    /// What share of its time may be used, 0 to 1 (SBAM's α). At 0 it is used only when no other
    /// link is.
    pub weight: f64,
    /// Links of a higher tier are used only while those below cannot finish soon, or are down.
    pub tier: u8,
    /// To be used only while no other link is there.
    pub backup: bool,
    /// What it carries costs money: nothing is asked for twice over it.
    pub metered: bool,
    /// The most it may carry, which the caller enforces; predictions count with it.
    pub cap: Option<Rate>,
    /// What its budget leaves, counted from now on; `None`: no budget.
    pub allowance: Option<Bytes>,
    /// Its rate, where somebody knows it.
    pub rate_hint: Option<Rate>,
    /// How long an answer takes to begin, where somebody knows it.
    pub latency_hint: Option<Duration>,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self {
            weight: 1.0,
            tier: 0,
            backup: false,
            metered: false,
            cap: None,
            allowance: None,
            rate_hint: None,
            latency_hint: None,
        }
    }
}

impl LinkLimits {
    /// Used only while no other link is there.
    pub(crate) fn is_reserve(&self) -> bool {
        self.backup || self.weight <= 0.0
    }

    /// The better liked is less.
    pub(crate) fn rank(&self) -> (bool, u8) {
        (self.is_reserve(), self.tier)
    }
}

/// A link with what it has shown.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) facts: LinkLimits,
    meter: Meter,
    latency: Option<Duration>,
    least_latency: Option<Duration>,
    /// When the last byte or answer came.
    pub(crate) heard_at: Instant,
    /// Asked for, since the allowance was told.
    charged: Bytes,
    /// With a weight below 1: no new request before.
    pub(crate) rests_until: Instant,
}

impl Link {
    pub(crate) fn new(facts: LinkLimits) -> Self {
        Self {
            facts,
            meter: Meter::default(),
            latency: None,
            least_latency: None,
            heard_at: Instant::EPOCH,
            charged: Bytes::ZERO,
            rests_until: Instant::EPOCH,
        }
    }

    pub(crate) fn set_facts(&mut self, facts: LinkLimits) {
        if facts.allowance != self.facts.allowance {
            self.charged = Bytes::ZERO;
        }
        self.facts = facts;
    }

    /// So much arrived over it.
    pub(crate) fn on_data(&mut self, now: Instant, amount: Bytes) {
        self.meter.add(now, amount);
        self.heard_at = now;
        self.charged += amount;
    }

    /// An answer began so long after its request.
    pub(crate) fn on_answer(&mut self, now: Instant, latency: Duration) {
        self.heard_at = now;
        self.least_latency = Some(
            self.least_latency
                .map_or(latency, |least| least.min(latency)),
        );
        // The latest weighs half: queues come and go.
        self.latency = Some(
            self.latency
                .map_or(latency, |before| (before + latency) / 2),
        );
    }

    /// Nothing is asked of it any more, so silence says nothing.
    pub(crate) fn on_idle(&mut self) {
        self.meter.pause();
    }

    /// Its rate, if anything is known of it.
    pub(crate) fn rate(&self, now: Instant) -> Option<Rate> {
        let rate = self.meter.rate(now).or(self.facts.rate_hint)?;
        Some(self.facts.cap.map_or(rate, |cap| cap.min(rate)))
    }

    /// The same up to when something came last, because what a silence means is for others to say;
    /// none while there is no more than a first burst, which says nothing of what follows.
    pub(crate) fn pace(&self, now: Instant) -> Option<Rate> {
        let round_trip = self.latency().unwrap_or_default() / 2;
        let begun = self.meter.first_at;
        let is_burst = begun.is_some_and(|at| self.heard_at - at < round_trip);
        let is_known = self.meter.settled.is_some() || self.facts.rate_hint.is_some();
        let pace = self.rate(now.min(self.heard_at)).or_else(|| self.rate(now));
        pace.filter(|_| is_known || !is_burst)
    }

    /// How long an answer takes to begin, connecting included, if anything is known of it.
    pub(crate) fn latency(&self) -> Option<Duration> {
        self.latency.or(self.facts.latency_hint)
    }

    /// The same where nothing else is asked of it.
    pub(crate) fn idle_latency(&self) -> Option<Duration> {
        self.least_latency.or(self.facts.latency_hint)
    }

    /// What may still be asked for, given what is on its way.
    pub(crate) fn allowance(&self, on_its_way: Bytes) -> Bytes {
        self.facts.allowance.map_or(Bytes::MAX, |allowance| {
            allowance - self.charged - on_its_way
        })
    }
}

/// The rate of what arrives, while something is asked for.
#[derive(Clone, Debug, Default)]
struct Meter {
    buckets: VecDeque<(Instant, Bytes)>,
    /// Of all of them.
    sum: Bytes,
    /// Those there were before ended here.
    from: Instant,
    /// The first byte's arrival within this busy time; it tells when, not how fast.
    first_at: Option<Instant>,
    settled: Option<Rate>,
}

impl Meter {
    fn add(&mut self, now: Instant, amount: Bytes) {
        if self.first_at.is_none() {
            self.first_at = Some(now);
            return;
        }
        match self.buckets.back_mut() {
            Some((at, sum)) if now - *at < BUCKET => *sum += amount,
            _ => self.buckets.push_back((now, amount)),
        }
        self.sum += amount;
        while let Some((at, oldest)) = self.buckets.front()
            && now - *at > WINDOW
            && self.sum - *oldest >= WINDOW_AMOUNT
        {
            self.sum -= *oldest;
            self.from = *at;
            self.buckets.pop_front();
        }
    }

    fn rate(&self, now: Instant) -> Option<Rate> {
        let Some(first_at) = self.first_at else {
            return self.settled;
        };
        let from = first_at.max(self.from);
        // The first burst is over sooner than it can be measured.
        let is_first = self.sum == Bytes::ZERO && now - first_at < WINDOW;
        if is_first || now - from < LEAST_SPAN {
            return self.settled;
        }
        Some(Rate::of(self.sum, now - from))
    }

    fn pause(&mut self) {
        if let Some((last, _)) = self.buckets.back() {
            // What came to a standstill is worth another try later, with small hopes.
            let slowed = self.settled.map(|settled| settled.scaled(0.5));
            let measured = self.rate(*last).filter(|rate| *rate > Rate::ZERO);
            self.settled = measured.or(slowed);
        }
        self.first_at = None;
        self.sum = Bytes::ZERO;
        self.buckets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(link: &mut Link, from_ms: u64, to_ms: u64, each: u64) {
        for ms in (from_ms..to_ms).step_by(10) {
            link.on_data(Instant::from_millis(ms), Bytes::new(each));
        }
    }

    #[test]
    fn a_rate_is_measured_kept_while_idle_and_falls_in_silence() {
        let mut link = Link::new(LinkLimits::default());
        assert_eq!(link.rate(Instant::EPOCH), None);
        feed(&mut link, 0, 3_000, 10_000);
        let rate = |link: &Link, ms| link.rate(Instant::from_millis(ms)).unwrap().as_mbps_f64();
        assert!((7.8..8.2).contains(&rate(&link, 2_990)));
        assert!(rate(&link, 4_000) < 6.0 && rate(&link, 60_000) < 0.5);
        let mut idle = link.clone();
        idle.on_idle();
        assert!((7.8..8.2).contains(&rate(&idle, 60_000)));
        feed(&mut link, 3_000, 6_000, 1_000);
        assert!((0.7..0.9).contains(&rate(&link, 5_990)));
    }

    #[test]
    fn what_is_told_counts_until_something_is_measured() {
        let facts = LinkLimits {
            rate_hint: Some(Rate::from_mbps(3)),
            cap: Some(Rate::from_mbps(2)),
            latency_hint: Some(Duration::from_millis(30)),
            allowance: Some(Bytes::kilo(100)),
            ..LinkLimits::default()
        };
        let mut link = Link::new(facts);
        assert_eq!(link.rate(Instant::EPOCH), Some(Rate::from_mbps(2)));
        assert_eq!(link.latency(), Some(Duration::from_millis(30)));
        link.on_answer(Instant::EPOCH, Duration::from_millis(90));
        assert_eq!(link.latency(), Some(Duration::from_millis(90)));
        feed(&mut link, 0, 1_000, 500);
        assert!(link.rate(Instant::from_millis(990)).unwrap() < Rate::from_mbps(1));
        assert_eq!(link.allowance(Bytes::kilo(20)), Bytes::kilo(30));
        assert_eq!(link.allowance(Bytes::kilo(80)), Bytes::ZERO);
    }
}
