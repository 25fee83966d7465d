//! The networks that files are fetched over, and the most that they can give.

use tabane_base::{Bytes, Duration, Rate, Seed};
use tabane_netem::{Change, LinkConfig, LossModel, Outage, Probability, RateModel};
use tabane_ranges::LinkLimits;
use tabane_sim::web::{Fetched, WebLink, WebPlan, fetch};

pub(crate) const SEED: Seed = Seed(1);

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A link of so many kbit/s, by its delay one way and its queue in kB.
pub(crate) fn kbit(kbit: u64, delay_ms: u64, queue_kb: u64) -> WebLink {
    let wide = LinkConfig {
        rate: RateModel::Constant(Rate::from_bps(kbit * 1_000)),
        delay: ms(delay_ms),
        queue: Bytes::kilo(queue_kb),
        ..LinkConfig::wire()
    };
    WebLink {
        wide,
        local: LinkConfig::wire(),
        facts: LinkLimits::default(),
    }
}

/// With a queue of a round trip and 50 ms.
pub(crate) fn mbit(mbit: u64, delay_ms: u64) -> WebLink {
    let queue = mbit * (50 + 2 * delay_ms) / 8;
    kbit(mbit * 1_000, delay_ms, queue.max(32))
}

/// As `scenarios/shake.toml` has it.
pub(crate) fn shake() -> WebLink {
    kbit(64, 100, 16)
}

pub(crate) fn with(mut link: WebLink, change: impl FnOnce(&mut LinkConfig)) -> WebLink {
    change(&mut link.wide);
    link
}

/// Packets vanish for a while.
pub(crate) fn outage(at: Duration, lasts: Duration) -> impl FnOnce(&mut LinkConfig) {
    move |link| {
        link.outages = vec![Outage {
            at,
            lasts,
            every: None,
        }];
    }
}

/// Packets wait for a while.
pub(crate) fn freeze(at: Duration, lasts: Duration) -> impl FnOnce(&mut LinkConfig) {
    move |link| {
        let rate = link.mean_rate();
        let change = |at, rate| Change {
            at,
            rate: Some(rate),
            ..Change::default()
        };
        link.changes = vec![change(at, Rate::from_bps(1_000)), change(at + lasts, rate)];
    }
}

/// Between two rates, in kbit/s.
pub(crate) fn swing(low: u64, high: u64, every_ms: u64) -> impl FnOnce(&mut LinkConfig) {
    move |link| {
        let change = |at, rate| Change {
            at: ms(at),
            every: Some(ms(every_ms)),
            rate: Some(Rate::from_bps(rate * 1_000)),
            ..Change::default()
        };
        link.changes = vec![change(0, low), change(every_ms / 2, high)];
    }
}

pub(crate) fn loss(probability: f64) -> impl FnOnce(&mut LinkConfig) {
    move |link| link.loss = LossModel::Random(Probability::new(probability).expect("below 1"))
}

/// The client knows its rate, from the host's monitor or an earlier fetch.
pub(crate) fn known(mut link: WebLink) -> WebLink {
    link.facts.rate_hint = Some(link.wide.mean_rate());
    link.facts.latency_hint = Some(link.wide.delay * 4);
    link
}

/// A neighbour's, reached over a local network.
pub(crate) fn lent(mut link: WebLink) -> WebLink {
    link.local = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(50)),
        delay: ms(2),
        ..LinkConfig::wire()
    };
    link
}

/// A fetch by one link.
pub(crate) fn alone(link: &WebLink, size: Bytes) -> Fetched {
    fetch(std::slice::from_ref(link), WebPlan::SHIPPED, size, SEED)
}

/// How long links need together at least, each beginning at once with its part, which was known
/// beforehand; of what each does alone.
pub(crate) fn bound(alone: &[Fetched], size: Bytes) -> Duration {
    let came = |fetched: &Fetched, at: Duration| {
        let count = fetched.arrivals.partition_point(|(when, _)| *when <= at);
        count
            .checked_sub(1)
            .map_or(0, |last| fetched.arrivals[last].1)
    };
    let moments = alone.iter().flat_map(|fetched| &fetched.arrivals);
    let mut moments: Vec<Duration> = moments.map(|(at, _)| *at).collect();
    moments.sort();
    let is_less = |at: &Duration| alone.iter().map(|one| came(one, *at)).sum::<u64>() < size.get();
    moments[moments.partition_point(is_less)]
}
