//! A laptop that is closed in the middle of transfers, and a relay whose machine stands still.
//!
//! Time goes on for who sleeps (`CLOCK_BOOTTIME`): on waking every timer is long due at once. For
//! less than the idle timeout the session goes on where it stood; after longer it is over at both
//! ends, and nothing is sent in a storm either way.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{CloseReason, ControllerKind};
use tabane_netem::{LinkConfig, LinkSpec, LossModel, RateModel};
use tabane_sim::{JobId, Setup, Side, Transfer, World};

const SIDES: [Side; 2] = [Side::Client, Side::Server];
/// 10 MB each way over 20 + 20 Mbit/s take two seconds and a bit.
const FILE: Bytes = Bytes::mega(10);

fn world(seed: u64) -> World {
    world_with(seed, ControllerKind::Tabane)
}

fn world_with(seed: u64, controller: ControllerKind) -> World {
    let link = |name: &str, delay_ms: u64| {
        let config = LinkConfig {
            rate: RateModel::Constant(Rate::from_mbps(20)),
            queue: Bytes::kilo(150),
            delay: Duration::from_millis(delay_ms),
            loss: LossModel::None,
            ..LinkConfig::wire()
        };
        LinkSpec {
            name: name.to_owned(),
            up: config.clone(),
            down: config,
        }
    };
    let links = vec![link("near", 10), link("far", 40)];
    let mut setup = Setup::new(Seed(seed), links);
    setup.client.controller = controller;
    setup.server.controller = controller;
    let mut world = World::new(setup);
    world.connect();
    world.add(Transfer {
        down: FILE,
        up: FILE,
        ..Transfer::download()
    });
    world
}

/// Runs into the transfer, and has `side` sleep for `span`; `phase` is where its probes stand then.
fn sleep_amid(world: &mut World, side: Side, span: Duration, phase: u64) {
    world.run_until(Instant::from_millis(1_000 + 7 * phase));
    assert!(world.job(JobId(0)).read(Side::Client) > Bytes::kilo(500));
    world.suspend(side);
    world.run_for(span + Duration::from_millis(137 * phase));
    world.wake(side);
}

#[test]
fn a_short_sleep_is_only_a_pause() {
    for (seed, side) in (0..16).zip(SIDES.into_iter().cycle()) {
        for seconds in [1, 5, 60, 280] {
            let mut world = world(seed);
            sleep_amid(&mut world, side, Duration::from_secs(seconds), seed);
            let woken = world.now();
            let limit = woken + Duration::from_secs(60);
            world.run_while(limit, |world| !world.all_over());
            let text = format!("seed {seed}, {side:?} asleep for {seconds} s");
            assert!(world.all_over(), "{text}: the transfer stands");
            for side in SIDES {
                assert!(world.host(side).closed().is_empty(), "{text}");
            }
            // Two seconds of transfer were left, and the windows have to open again.
            let took = world.now() - woken;
            println!("{text}: over {took:?} after waking");
            assert!(took < Duration::from_secs(4), "{text}: over {took:?} later");
        }
    }
}

#[test]
fn a_night_ends_the_session_at_both_ends_without_a_storm() {
    for (seed, side) in (0..).zip(SIDES) {
        let mut world = world(seed);
        let timeouts = |world: &World| SIDES.map(|side| world.host(side).timeouts());
        world.run_until(Instant::from_millis(1_000));
        world.suspend(side);
        world.run_for(Duration::from_secs(8 * 3_600));
        let [sent, before] = [SIDES.map(|side| world.host(side).sent()), timeouts(&world)];
        world.wake(side);
        world.run_for(Duration::from_secs(10));
        for end in SIDES {
            let reasons: Vec<_> = world.host(end).closed().values().collect();
            assert_eq!(
                reasons,
                [&CloseReason::IdleTimeout],
                "{end:?}, {side:?} slept"
            );
        }
        for (index, end) in SIDES.into_iter().enumerate() {
            let more = world.host(end).sent() - sent[index];
            let woken = timeouts(&world)[index] - before[index];
            assert!(
                more <= 10 && woken <= 10,
                "{end:?}: {more} datagrams sent, {woken} timers when {side:?} woke"
            );
        }
    }
}

/// As when a virtual machine goes on elsewhere. One-way times are differences of two clocks.
#[test]
fn a_clock_that_leaps_costs_no_rate() {
    for controller in ControllerKind::ALL {
        let last = |leaps: &dyn Fn(&mut World)| {
            let mut world = world_with(3, controller);
            world.run_until(Instant::from_millis(1_500));
            leaps(&mut world);
            let limit = world.now() + Duration::from_secs(120);
            assert!(world.run_while(limit, |world| !world.all_over()));
            world.now()
        };
        let without = last(&|_| ());
        for side in SIDES {
            for millis in [60, 400, 2_000] {
                let with = last(&|world| world.leap(side, Duration::from_millis(millis)));
                let text = format!("{controller:?}, {side:?} leaps {millis} ms: {with}");
                // Answers that were under way seem to have taken so long.
                let most = without + Duration::from_millis(1_500);
                assert!(with <= most, "{text}, without {without}");
            }
        }
    }
}
