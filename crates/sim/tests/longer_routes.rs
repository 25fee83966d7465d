//! A link with jitter gets another route, as satellites give one every 15 s: its rate, its length
//! and nothing else change. It is used as far as before, with default settings.

use std::fmt::Write as _;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_netem::{
    Change, JitterShape, LinkConfig, LinkSpec, LossModel, Outage, Probability, Radio, RadioKind,
    RateModel,
};
use tabane_sim::{Setup, Side, Transfer, World};

const RATE_BEFORE: Rate = Rate::from_bps(54_800_000);
const RATE: Rate = Rate::from_bps(65_760_000);
const DELAY_BEFORE: Duration = Duration::from_millis(18);
const DELAY: Duration = Duration::from_millis(32);
const QUEUE: Duration = Duration::from_millis(130);
/// For so long nothing passes while the route changes.
const GAP: Duration = Duration::from_millis(60);
const CHANGES: Duration = Duration::from_millis(8_400);
const LOOKED_AT: [Instant; 2] = [Instant::from_millis(10_000), Instant::from_millis(20_000)];
/// Of the rate; a tenth is what the headers and the losses cost.
const USED: f64 = 0.8;

fn link(shape: JitterShape) -> LinkSpec {
    let probability = |it| Probability::new(it).expect("between 0 and 1");
    let way = |part: u64| LinkConfig {
        rate: RateModel::Constant(Rate::from_bps(RATE_BEFORE.as_bps() / part)),
        queue: Bytes::new(RATE_BEFORE.amount_in(QUEUE).get() / part),
        delay: DELAY_BEFORE,
        jitter: Duration::from_millis(8),
        jitter_shape: shape,
        loss: LossModel::GilbertElliott {
            good_to_bad: probability(0.0005),
            bad_to_good: probability(0.1),
            loss_good: probability(0.0005),
            loss_bad: probability(0.5),
        },
        changes: vec![Change {
            at: CHANGES,
            every: None,
            rate: Some(Rate::from_bps(RATE.as_bps() / part)),
            delay: Some(DELAY),
            loss: None,
        }],
        outages: vec![Outage {
            at: CHANGES - GAP,
            lasts: GAP,
            every: None,
        }],
    };
    LinkSpec {
        name: "satellite".into(),
        up: way(8),
        down: way(1),
    }
}

#[test]
fn a_route_that_becomes_longer_is_not_taken_for_a_queue() {
    let mut table = String::from("part of the rate that is used\n");
    let mut is_well = true;
    for shape in [JitterShape::Exponential, JitterShape::Correlated] {
        for seed in 0..3 {
            let mut world = World::new(Setup::new(Seed(seed), vec![link(shape)]));
            world.connect();
            world.add(Transfer::download());
            let [from, until] = LOOKED_AT;
            world.run_until(until);
            let carried = world.outcome(Side::Client).goodput_between(from, until);
            let used = carried.as_bps() as f64 / RATE.as_bps() as f64;
            is_well &= used >= USED;
            let _ = writeln!(table, "{shape:?}, seed {seed}: {used:.2}");
        }
    }
    println!("{table}");
    assert!(is_well, "{table}");
}

/// A handover to a route that is longer than the one before by less than is allowed for others'
/// queues: the window sank for five seconds, from 26 to 9 of 40 Mbit/s, and nothing got shorter.
#[test]
fn a_window_that_sinks_for_nothing_has_the_route_looked_at() {
    let radio = Radio {
        kind: RadioKind::Handovers,
        seed: 50_006,
    };
    let mut world = World::new(Setup::new(Seed(radio.seed), vec![radio.link()]));
    world.connect_by_each_link();
    world.add(Transfer::download());
    let [from, until] = [21_500, 24_000].map(Instant::from_millis);
    world.run_until(until);
    let carried = world.outcome(Side::Client).goodput_between(from, until);
    println!("{radio}: {} Mbit/s of some 40", carried.as_mbps_f64());
    assert!(carried >= Rate::from_mbps(24), "{carried:?}");
}
