//! The promises of a link: rate, order, conservation, bounds; then whatever chance thinks of.

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, Seed};

use super::*;
use crate::loss::Probability;

const MTU: Bytes = Bytes::new(1500);
const MS: fn(u64) -> Instant = Instant::from_millis;

#[test]
fn fifty_megabits_for_twenty_seconds_are_exact() {
    for size in [1500, 1473, 40] {
        let size = Bytes::new(size);
        let mut link = Link::new(config(50, 10, 200), Seed(1), Instant::EPOCH);
        let end = Instant::from_millis(20_000);
        // Offered at about 1.6 times the rate, on ticks that share no factor with packet times.
        let mut now = Instant::EPOCH;
        while now < end {
            for _ in 0..(10_000 / size.get()).max(1) {
                let _ = link.handle_packet(now, (), size);
            }
            while link.poll_output(now).is_some() {}
            now += Duration::from_nanos(1_000_003);
        }
        while link.poll_output(end).is_some() {}
        let got = link.snapshot().delivered.bytes.get() as f64;
        let expected = 50e6 / 8.0 * (20.0 - 0.010);
        assert!(
            (got / expected - 1.0).abs() < 0.001,
            "{size}: {got} {expected}"
        );
    }
}

#[test]
fn a_trace_passes_its_mean_and_no_more() {
    let text: String = (1..=1000)
        .map(|ms| format!("{}\n", ms * ms / 1000 + 1))
        .collect();
    let trace = Trace::parse(&text).unwrap();
    let mut link = Link::new(
        LinkConfig {
            rate: RateModel::Trace(Arc::new(trace.clone())),
            queue: Bytes::kilo(100),
            ..LinkConfig::wire()
        },
        Seed(1),
        Instant::EPOCH,
    );
    let end = Instant::EPOCH + trace.period() * 20;
    let mut now = Instant::EPOCH;
    while now <= end {
        for _ in 0..60 {
            let _ = link.handle_packet(now, (), Bytes::new(1400));
        }
        while link.poll_output(now).is_some() {}
        now += Duration::from_millis(1);
    }
    let got = link.snapshot().delivered.bytes.get() as f64;
    let expected = trace.mean_rate().amount_in(trace.period() * 20).get() as f64;
    assert!((got / expected - 1.0).abs() < 0.001, "{got} {expected}");
}

#[test]
fn timeouts_lead_straight_to_each_arrival() {
    let mut link = Link::new(config(12, 10, 200), Seed(1), Instant::EPOCH);
    for id in 0..3 {
        link.handle_packet(Instant::EPOCH, id, MTU).unwrap();
    }
    let mut arrivals = Vec::new();
    let mut polls = 0;
    while let Some(at) = link.poll_timeout() {
        polls += 1;
        while let Some(id) = link.poll_output(at) {
            arrivals.push((id, at));
        }
    }
    assert_eq!(arrivals, [(0, MS(11)), (1, MS(12)), (2, MS(13))]);
    assert_eq!(polls, 3);
}

#[test]
fn an_outage_swallows_what_leaves_the_transmitter_in_it() {
    let mut config = config(12, 0, 200);
    config.outages = vec![Outage {
        at: Duration::from_micros(1_500),
        lasts: Duration::from_millis(2),
        every: None,
    }];
    let mut link = Link::new(config, Seed(1), Instant::EPOCH);
    for id in 0..6 {
        link.handle_packet(Instant::EPOCH, id, MTU).unwrap();
    }
    assert_eq!(drain(&mut link, MS(10)), [0, 3, 4, 5]);
    link.set_outage(MS(10), true);
    link.handle_packet(MS(10), 6, MTU).unwrap();
    assert!(drain(&mut link, MS(20)).is_empty());
    link.set_outage(MS(20), false);
    link.handle_packet(MS(20), 7, MTU).unwrap();
    assert_eq!(drain(&mut link, MS(30)), [7]);
    assert_eq!(link.snapshot().outage.packets, 3);
}

#[test]
fn rate_zero_holds_packets_until_it_changes() {
    let mut config = config(0, 5, 200);
    config.changes = vec![Change {
        at: Duration::from_secs(1),
        rate: Some(Rate::from_mbps(12)),
        delay: Some(Duration::from_millis(2)),
        ..Change::default()
    }];
    let mut link = Link::new(config, Seed(1), Instant::EPOCH);
    link.handle_packet(Instant::EPOCH, 1, MTU).unwrap();
    assert_eq!(
        link.poll_timeout(),
        Some(MS(1000)),
        "the change, not the packet"
    );
    assert!(drain(&mut link, MS(1000)).is_empty());
    assert_eq!(link.poll_timeout(), Some(MS(1003)));
    assert_eq!(drain(&mut link, MS(1003)), [1]);
    link.restart_schedule(MS(2000));
    link.handle_packet(MS(2000), 2, MTU).unwrap();
    assert!(
        drain(&mut link, MS(2999)).is_empty(),
        "restarted: rate zero again"
    );
    assert_eq!(drain(&mut link, MS(3003)), [2]);
}

#[test]
fn extremes_do_not_panic() {
    let rates = [
        Rate::ZERO,
        Rate::from_bps(1),
        Rate::from_bps(u64::MAX - 1),
        Rate::MAX,
    ];
    let delays = [Duration::ZERO, Duration::from_secs(5), Duration::MAX];
    for rate in rates {
        for delay in delays {
            for queue in [Bytes::ZERO, Bytes::MAX] {
                let config = LinkConfig {
                    rate: RateModel::Constant(rate),
                    queue,
                    delay,
                    jitter: delay,
                    ..LinkConfig::wire()
                };
                let mut link = Link::new(config, Seed(1), Instant::EPOCH);
                for (index, size) in [0, 1, 1500, u64::MAX].into_iter().enumerate() {
                    let _ = link.handle_packet(MS(index as u64), index, Bytes::new(size));
                }
                let _ = link.poll_timeout();
                let _ = drain(&mut link, MS(60_000));
                let _ = drain(&mut link, Instant::NEVER);
            }
        }
    }
}

#[test]
fn a_wire_passes_everything_at_once() {
    let mut link = Link::new(LinkConfig::wire(), Seed(1), Instant::EPOCH);
    for id in 0..100 {
        link.handle_packet(MS(1), id, MTU).unwrap();
    }
    assert_eq!(drain(&mut link, MS(1)), (0..100).collect::<Vec<_>>());
}

/// Any configuration, any input, polled at any times: order kept, nothing lost without a count,
/// the queue within its limit, no packet faster than its delay, and the same arrivals as a link
/// that is polled only at its own timeouts.
#[test]
fn whatever_happens_the_promises_hold() {
    for seed in (0..300).map(Seed) {
        let mut rng = seed.rng("test");
        let config = random_config(&mut rng);
        let input = random_input(&mut rng);
        let often = run(&config, seed, &input, Some(&mut rng));
        let lazily = run(&config, seed, &input, None);
        assert_eq!(often.0.len(), lazily.0.len(), "seed {seed}: {config:?}");
        assert_eq!(often.1, lazily.1, "seed {seed}: {config:?}");
        for ((early_id, early), (late_id, late)) in lazily.0.iter().zip(&often.0) {
            assert_eq!(early_id, late_id, "seed {seed}");
            assert!(
                early <= late,
                "seed {seed}: {early_id} at {early}, polled often {late}"
            );
        }
    }
}

type Arrivals = Vec<(usize, Instant)>;

/// Plays `input`; polls at random times between packets if given chance, else at timeouts.
fn run(
    config: &LinkConfig,
    seed: Seed,
    input: &[(Instant, Bytes)],
    mut chance: Option<&mut Rng>,
) -> (Arrivals, Counters) {
    let mut link = Link::new(config.clone(), seed, Instant::EPOCH);
    let mut arrivals = Vec::new();
    for (id, (at, size)) in input.iter().enumerate() {
        if let Some(rng) = &mut chance {
            if rng.chance(0.5) {
                collect(&mut link, *at, &mut arrivals);
            }
        } else {
            while let Some(due) = link.poll_timeout().filter(|due| due < at) {
                collect(&mut link, due, &mut arrivals);
            }
        }
        let _ = link.handle_packet(*at, id, *size);
        check(&link, seed);
    }
    for _ in 0..100_000 {
        let Some(due) = link.poll_timeout() else {
            break;
        };
        collect(&mut link, due, &mut arrivals);
        check(&link, seed);
    }
    for pair in arrivals.windows(2) {
        assert!(pair[0].0 < pair[1].0, "seed {seed}: order");
    }
    let least = config
        .changes
        .iter()
        .filter_map(|c| c.delay)
        .fold(config.delay, Duration::min);
    for (id, at) in &arrivals {
        assert!(
            at.since(input[*id].0) >= least,
            "seed {seed}: {id} too early"
        );
    }
    (arrivals, link.snapshot())
}

fn collect(link: &mut Link<usize>, at: Instant, arrivals: &mut Arrivals) {
    while let Some(id) = link.poll_output(at) {
        arrivals.push((id, link.now));
    }
}

fn check(link: &Link<usize>, seed: Seed) {
    let counters = link.snapshot();
    let mut sum = counters.delivered;
    sum += counters.dropped();
    sum += counters.inside;
    assert_eq!(counters.offered, sum, "seed {seed}: conservation");
    assert!(counters.queued <= link.config().queue, "seed {seed}: queue");
    assert!(
        counters.queued_max <= link.config().queue,
        "seed {seed}: queue"
    );
}

fn random_config(rng: &mut Rng) -> LinkConfig {
    let ms = |rng: &mut Rng, most: u64| Duration::from_micros(rng.below(most * 1000 + 1));
    let rate = match rng.below(4) {
        0 => RateModel::Constant(Rate::MAX),
        1 => {
            let mut at = 0;
            let text: String = (0..1 + rng.below(50))
                .map(|_| {
                    at += 1 + rng.below(10);
                    format!("{at}\n")
                })
                .collect();
            RateModel::Trace(Arc::new(Trace::parse(&text).unwrap()))
        }
        _ => RateModel::Constant(Rate::from_bps(1 + rng.below(100_000_000))),
    };
    let changes = (0..rng.below(4))
        .map(|_| Change {
            at: ms(rng, 500),
            every: rng
                .chance(0.5)
                .then(|| ms(rng, 300) + Duration::from_millis(1)),
            // Never zero: the run is to end.
            rate: rng
                .chance(0.5)
                .then(|| Rate::from_bps(10_000 + rng.below(50_000_000))),
            delay: rng.chance(0.5).then(|| ms(rng, 100)),
            loss: None,
        })
        .collect();
    let outages = (0..rng.below(3))
        .map(|_| Outage {
            at: ms(rng, 500),
            lasts: ms(rng, 50),
            every: None,
        })
        .collect();
    LinkConfig {
        rate,
        queue: Bytes::new(rng.below(100_000)),
        delay: ms(rng, 200),
        jitter: if rng.chance(0.5) {
            ms(rng, 20)
        } else {
            Duration::ZERO
        },
        jitter_shape: JitterShape::ALL[rng.below(4) as usize],
        loss: LossModel::Random(Probability::new(rng.unit() * 0.2).unwrap()),
        changes,
        outages,
    }
}

fn random_input(rng: &mut Rng) -> Vec<(Instant, Bytes)> {
    let mut at = Instant::EPOCH;
    (0..200)
        .map(|_| {
            if rng.chance(0.7) {
                at += Duration::from_micros(rng.below(5_000));
            }
            (at, Bytes::new(rng.below(1501)))
        })
        .collect()
}

fn config(mbps: u64, delay_ms: u64, queue_kb: u64) -> LinkConfig {
    LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(mbps)),
        queue: Bytes::kilo(queue_kb),
        delay: Duration::from_millis(delay_ms),
        ..LinkConfig::wire()
    }
}

fn drain<P>(link: &mut Link<P>, now: Instant) -> Vec<P> {
    std::iter::from_fn(|| link.poll_output(now)).collect()
}
