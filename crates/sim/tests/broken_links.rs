//! Links beyond reason, under every scheduler with every controller.
//!
//! Rates fall to zero and delays jump between nothing and five seconds, one direction dies alone
//! so that what arrives is never acknowledged, one link or all. The world checks every byte, every
//! timer and the driving contract meanwhile; memory stays within its limits, and once the links
//! are whole again everything that was begun ends. A seed decides what happens when;
//! `TABANE_SEED=7 cargo test -p tabane-sim --test broken_links` runs one alone.

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, Seed};
use tabane_core::{ControllerKind, DatagramOrder, SchedulerKind};
use tabane_netem::{Direction, LinkConfig, LinkSpec, LossModel, RateModel};
use tabane_sim::{LinkId, Setup, Side, Transfer, UdpLoad, World};

/// What is done to links per run, one each 400 ms.
const BLOWS: u64 = 25;
const PAUSE: Duration = Duration::from_millis(400);
/// What was sent while all was dead is repeated within a few probe timeouts, which count in the
/// round trips of five seconds that were measured.
const HEALING: Duration = Duration::from_secs(90);
/// Received data may take so much; a packet more, with its bookkeeping.
const MEMORY: Bytes = Bytes::kilo(500);
const PACKET_MEMORY: Bytes = Bytes::new(2 * (1_500 + 64));
/// What waits for order, and what waits to leave: limits of core.
const HELD_MAX: Bytes = Bytes::mega(9);
const QUEUED_MAX: Bytes = Bytes::new(512 * 1024 + 65_536);

#[test]
fn broken_links_break_nothing_else() {
    let chosen = chosen_seed();
    let kinds = SchedulerKind::ALL.into_iter();
    let pairs = kinds.flat_map(|kind| ControllerKind::ALL.map(|controller| (kind, controller)));
    for (seed, (scheduler, controller)) in (0..).zip(pairs) {
        if chosen.is_none_or(|chosen| chosen == seed) {
            println!("TABANE_SEED={seed}: {scheduler}, {controller}");
            run(Seed(seed), scheduler, controller);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how one seed is run alone")]
fn chosen_seed() -> Option<u64> {
    let text = std::env::var("TABANE_SEED").ok();
    text.map(|text| text.parse().expect("a number"))
}

fn link(name: &str, mbps: u64, delay_ms: u64) -> LinkSpec {
    let config = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(mbps)),
        queue: Bytes::kilo(100),
        delay: Duration::from_millis(delay_ms),
        loss: LossModel::None,
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

fn run(seed: Seed, scheduler: SchedulerKind, controller: ControllerKind) {
    let mut rng = seed.rng("blows");
    let links = vec![link("a", 10, 10), link("b", 5, 40), link("c", 2, 0)];
    let mut setup = Setup::new(seed, links);
    for config in [&mut setup.client, &mut setup.server] {
        config.scheduler = scheduler;
        config.controller = controller;
        config.receive_memory = MEMORY;
    }
    let mut world = World::new(setup);
    world.connect();
    world.run_for(Duration::from_secs(1));
    for side in [Side::Client, Side::Server] {
        world.add_flow(UdpLoad {
            from: side,
            size: 1_000,
            rate: Rate::from_mbps(6),
            order: DatagramOrder::Within(Duration::from_millis(25)),
            starts_at: Instant::EPOCH,
            ends_at: Instant::EPOCH + PAUSE * BLOWS as u32,
        });
    }
    for _ in 0..BLOWS {
        strike(&mut world, &mut rng);
        world.add(Transfer {
            up: Bytes::new(rng.below(100_000)),
            down: Bytes::new(rng.below(100_000)),
            starts_at: world.now(),
        });
        world.run_for(PAUSE);
        check(seed, &world);
    }
    heal(&mut world);
    let limit = world.now() + HEALING;
    let done = world.run_while(limit, |world| !world.all_over());
    check(seed, &world);
    assert!(done, "{seed}: {scheduler} with {controller} never ends");
}

/// Does something to a direction of a link.
fn strike(world: &mut World, rng: &mut Rng) {
    let now = world.now();
    let id = LinkId(rng.below(world.network().len() as u64) as usize);
    let direction = [Direction::Up, Direction::Down][rng.below(2) as usize];
    let link = world.network_mut().link_mut(id, direction);
    match rng.below(6) {
        0 => link.set_rate(now, Rate::ZERO),
        1 => link.set_rate(now, Rate::from_bps(1)),
        2 => link.set_delay(now, Duration::ZERO),
        3 => link.set_delay(now, Duration::from_millis(2_500)),
        4 => link.set_outage(now, true),
        _ => {
            link.set_outage(now, false);
            link.set_rate(now, Rate::from_mbps(1 + rng.below(1_000)));
        }
    }
}

fn heal(world: &mut World) {
    let now = world.now();
    for id in (0..world.network().len()).map(LinkId) {
        for direction in [Direction::Up, Direction::Down] {
            let link = world.network_mut().link_mut(id, direction);
            link.set_outage(now, false);
            link.set_rate(now, Rate::from_mbps(10));
            link.set_delay(now, Duration::from_millis(20));
        }
    }
}

fn check(seed: Seed, world: &World) {
    for side in [Side::Client, Side::Server] {
        let host = world.host(side);
        let closed = host.closed();
        assert!(closed.is_empty(), "{seed}: {side:?} ended: {closed:?}");
        let jobs = world.jobs().len() as u64;
        let most = MEMORY + Bytes::new(PACKET_MEMORY.get() * (1 + jobs));
        let held = host.receive_memory_max();
        assert!(held <= most, "{seed}: {side:?} holds {held}");
        let Some(session) = world.session(side) else {
            continue;
        };
        let snapshot = session.snapshot(world.now());
        assert!(snapshot.datagrams_held <= HELD_MAX, "{seed}: {side:?}");
        assert!(snapshot.datagrams_queued <= QUEUED_MAX, "{seed}: {side:?}");
    }
}
