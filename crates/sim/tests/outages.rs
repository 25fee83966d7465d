//! One of two links passes nothing for two seconds: how soon afterwards both carry again what they
//! carried before, with default settings.

use std::fmt::Write as _;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};
use tabane_sim::{LinkId, Setup, Side, Transfer, World};

const BEGINS: Instant = Instant::from_millis(5_000);
const LASTS: Duration = Duration::from_millis(2_000);
const STEP: Duration = Duration::from_millis(100);
/// What is carried is looked at for so long at a time: what waited in the outage comes at once.
const SPAN: Duration = Duration::from_millis(500);
/// Back is who carries so much of the rate before.
const BACK: f64 = 0.9;
const BACK_WITHIN: Duration = Duration::from_secs(1);

/// Rate in Mbit/s and delay in ms of both links.
const PAIRS: [[(u64, u64); 2]; 5] = [
    [(50, 10), (50, 10)],
    [(50, 10), (10, 50)],
    [(20, 100), (20, 30)],
    [(5, 40), (20, 20)],
    [(100, 25), (8, 30)],
];

fn link(name: &str, (mbps, delay_ms): (u64, u64)) -> LinkSpec {
    let rate = Rate::from_mbps(mbps);
    let config = LinkConfig {
        rate: RateModel::Constant(rate),
        queue: rate
            .amount_in(Duration::from_millis(150))
            .max(Bytes::kilo(60)),
        delay: Duration::from_millis(delay_ms),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

/// How long after the end of an outage on one of a pair until both are back.
fn time_back(pair: [(u64, u64); 2], out: LinkId) -> Option<Duration> {
    let links = vec![link("a", pair[0]), link("b", pair[1])];
    let mut world = World::new(Setup::new(Seed(5), links));
    world.connect();
    world.add(Transfer::download());
    let ends = BEGINS + LASTS;
    for (at, cut) in [(BEGINS, true), (ends, false)] {
        world.run_until(at);
        world.network_mut().set_outage(at, out, cut);
    }
    let steps = 50;
    world.run_until(ends + STEP * steps + SPAN);
    let outcome = world.outcome(Side::Client);
    let rate = |from: Instant, span| outcome.goodput_between(from, from + span).as_mbps_f64();
    let before = rate(BEGINS - LASTS, LASTS);
    let mut after = (0..steps).map(|step| STEP * step);
    after.find(|after| rate(ends + *after, SPAN) >= before * BACK)
}

#[test]
fn after_an_outage_both_links_carry_again_within_a_second() {
    let mut table = String::from("links, Mbit/s and ms  out  back after\n");
    let mut is_late = false;
    for pair in PAIRS {
        for out in [LinkId(0), LinkId(1)] {
            let back = time_back(pair, out);
            is_late |= back.is_none_or(|back| back > BACK_WITHIN);
            let [(rate, delay), (other_rate, other_delay)] = pair;
            let links = format!("{rate:3} {delay:3} + {other_rate:3} {other_delay:3}");
            let _ = writeln!(table, "{links:20}  {:3}  {back:?}", out.0);
        }
    }
    println!("{table}");
    assert!(!is_late, "\n{table}");
}
