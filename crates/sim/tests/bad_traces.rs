//! Links that no radio should be, and some are: traces of a millisecond, a second's packets at
//! once, no rate for minutes. Nothing panics, queues keep their limits, data goes on.

use std::sync::Arc;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_netem::{Change, Direction, LinkConfig, LinkSpec, RateModel, Trace};
use tabane_sim::{LinkId, Setup, Side, Transfer, World};

const QUEUE: Bytes = Bytes::kilo(300);

fn link(name: &str, rate: RateModel, changes: Vec<Change>) -> LinkSpec {
    let config = LinkConfig {
        rate,
        queue: QUEUE,
        delay: Duration::from_millis(20),
        changes,
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: LinkConfig {
            rate: RateModel::Constant(Rate::from_mbps(10)),
            changes: Vec::new(),
            ..config.clone()
        },
        down: config,
    }
}

fn traced(lines: &str) -> LinkSpec {
    let trace = Trace::parse(lines).expect("the trace is sound");
    link("traced", RateModel::Trace(Arc::new(trace)), Vec::new())
}

fn download(links: Vec<LinkSpec>, seconds: u64) -> World {
    let mut world = World::new(Setup::new(Seed(16), links));
    world.connect();
    world.add(Transfer::download());
    world.run_until(Instant::from_millis(seconds * 1_000));
    for link in (0..world.network().len()).map(LinkId) {
        let most = world.network().counters(link, Direction::Down).queued_max;
        assert!(most <= QUEUE, "{most} waited on {link:?}");
    }
    world
}

/// Mbit/s that arrived between two seconds.
fn goodput(world: &World, from: u64, to: u64) -> f64 {
    let at = |seconds: u64| Instant::from_millis(seconds * 1_000);
    let outcome = world.outcome(Side::Client);
    outcome.goodput_between(at(from), at(to)).as_mbps_f64()
}

#[test]
fn a_trace_of_one_millisecond_is_a_steady_link() {
    let world = download(vec![traced("1\n")], 5);
    // 1,500 bytes a millisecond are 12 Mbit/s, headers included.
    let found = goodput(&world, 1, 5);
    assert!((10.5..12.0).contains(&found), "{found} Mbit/s");
}

#[test]
fn a_link_that_delivers_a_second_at_once_starves_nobody() {
    let world = download(vec![traced(&"1000\n".repeat(1_000))], 30);
    // At most the queue and the packet before it come through at once. Our `bbr` has 0.08 Mbit/s
    // there.
    let most = QUEUE.bits() as f64 / 1e6;
    for from in (6..30).step_by(3) {
        let found = goodput(&world, from, from + 3);
        assert!(
            found > most / 20.0,
            "{found} Mbit/s from {from} s on, of {most}"
        );
    }
}

#[test]
fn no_rate_for_minutes_stops_one_link_alone() {
    let change = |seconds, mbps| Change {
        at: Duration::from_secs(seconds),
        rate: Some(Rate::from_mbps(mbps)),
        ..Change::default()
    };
    let steady = || RateModel::Constant(Rate::from_mbps(8));
    let dead = link("dead", steady(), vec![change(3, 0), change(123, 8)]);
    let world = download(vec![dead, link("steady", steady(), Vec::new())], 140);
    let (before, without, after) = (
        goodput(&world, 1, 3),
        goodput(&world, 6, 123),
        goodput(&world, 130, 140),
    );
    assert!(before > 14.0, "{before} Mbit/s before");
    assert!(without > 7.0, "{without} Mbit/s without the link");
    assert!(after > 14.0, "{after} Mbit/s afterwards");
}
