//! How a path may be used: priorities, shares and caps, as the client wishes, in both directions.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{ControllerKind, PathId, PathPolicy};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};
use tabane_sim::{JobId, LinkId, Pace, Setup, Side, Transfer, World};

fn link(name: &str) -> LinkSpec {
    let config = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(20)),
        queue: Bytes::kilo(100),
        delay: Duration::from_millis(10),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

/// Wi-Fi and a phone of 20 Mbit/s each; the phone is used as `policy` says.
fn world(policy: PathPolicy, transfer: Transfer) -> (World, JobId) {
    let mut world = World::new(Setup::new(Seed(1), vec![link("wifi"), link("phone")]));
    world.connect();
    world.run_until(Instant::from_millis(500));
    apply(&mut world, policy);
    world.run_until(Instant::from_millis(1_000));
    let starts_at = world.now() + Duration::from_millis(1);
    let job = world.add(Transfer {
        starts_at,
        ..transfer
    });
    (world, job)
}

fn phone(world: &World) -> PathId {
    world.paths(Side::Client)[1].path.id
}

fn apply(world: &mut World, policy: PathPolicy) {
    let phone = phone(world);
    let now = world.now();
    world.with_session(Side::Client, |session| {
        session
            .set_path_policy(now, phone, policy)
            .expect("a valid policy");
    });
}

/// What an end has sent over the phone.
fn sent(world: &World, side: Side) -> Bytes {
    world.paths(side)[1].path.sent
}

/// What is sent over the phone by `side` while the world runs on for so many seconds.
fn sent_in(world: &mut World, side: Side, seconds: u64) -> Rate {
    let before = sent(world, side);
    let span = Duration::from_secs(seconds);
    world.run_until(world.now() + span);
    Rate::of(sent(world, side) - before, span)
}

const SECOND_CHOICE: PathPolicy = PathPolicy {
    weight: 1.0,
    backup: false,
    metered: false,
    priority: 1,
    send_cap: None,
    receive_cap: None,
};

/// A probe of a full packet now and then, and nothing else.
const SILENCE: Rate = Rate::from_bps(20_000);

#[test]
fn while_the_first_priority_carries_the_demand_the_second_carries_nothing() {
    let (mut world, job) = world(SECOND_CHOICE, Transfer::download());
    world.set_pace(job, Side::Client, Pace::Limited(Rate::from_mbps(8)));
    let used = sent_in(&mut world, Side::Server, 20);
    assert!(used < SILENCE, "{used}");
    let read = Rate::of(world.job(job).read(Side::Client), Duration::from_secs(20));
    assert!(read > Rate::from_bps(7_800_000), "{read}");
}

#[test]
fn a_greater_demand_brings_the_second_in_and_a_smaller_one_sends_it_away() {
    let (mut world, job) = world(SECOND_CHOICE, Transfer::download());
    let at_first = sent_in(&mut world, Side::Server, 1);
    assert!(at_first < Rate::from_mbps(2), "{at_first}");
    sent_in(&mut world, Side::Server, 2);
    let used = sent_in(&mut world, Side::Server, 5);
    assert!(used > Rate::from_mbps(18), "{used}");
    world.set_pace(job, Side::Client, Pace::Limited(Rate::from_mbps(8)));
    sent_in(&mut world, Side::Server, 10);
    let used = sent_in(&mut world, Side::Server, 10);
    assert!(used < SILENCE, "{used}");
}

#[test]
fn without_the_first_priority_the_second_carries_all_at_once() {
    let (mut world, job) = world(SECOND_CHOICE, Transfer::download());
    world.set_pace(job, Side::Client, Pace::Limited(Rate::from_mbps(8)));
    sent_in(&mut world, Side::Server, 2);
    world.lose_interface(LinkId(0));
    let before = world.job(job).read(Side::Client);
    world.run_until(world.now() + Duration::from_secs(2));
    let rate = Rate::of(
        world.job(job).read(Side::Client) - before,
        Duration::from_secs(2),
    );
    assert!(rate > Rate::from_bps(7_500_000), "{rate}");
}

#[test]
fn a_cap_holds_in_both_directions() {
    let capped = PathPolicy {
        send_cap: Some(Rate::from_mbps(2)),
        receive_cap: Some(Rate::from_mbps(5)),
        ..PathPolicy::default()
    };
    for (transfer, side, cap) in [
        (Transfer::download(), Side::Server, 5_000_000),
        (Transfer::upload(), Side::Client, 2_000_000),
    ] {
        let (mut world, _) = world(capped, transfer);
        sent_in(&mut world, side, 1);
        let used = sent_in(&mut world, side, 10).as_bps();
        assert!(
            used > cap * 93 / 100 && used < cap * 103 / 100,
            "{used} of {cap}"
        );
        let whole = world
            .outcome(other(side))
            .goodput_between(Instant::from_millis(3_000), world.now());
        assert!(whole.as_bps() > (20_000_000 + cap) * 93 / 100, "{whole}");
        apply(&mut world, PathPolicy::default());
        sent_in(&mut world, side, 2);
        let free = sent_in(&mut world, side, 4);
        assert!(free > Rate::from_mbps(18), "{free} when the cap is lifted");
    }
}

#[test]
fn a_change_is_felt_within_100_ms() {
    let (mut world, _) = world(PathPolicy::default(), Transfer::download());
    sent_in(&mut world, Side::Server, 3);
    let nothing = PathPolicy {
        weight: 0.0,
        ..PathPolicy::default()
    };
    apply(&mut world, nothing);
    world.run_until(world.now() + Duration::from_millis(30));
    let used = sent_in(&mut world, Side::Server, 5);
    assert!(used < SILENCE, "{used}");
}

const fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

/// R-M/TCP takes the mean way back over all paths for this path's own. What that grows by when
/// answers have to return by a slower path is no queue on the way there.
#[test]
fn a_longer_way_back_is_no_queue() {
    let mut far = link("phone");
    (far.up.delay, far.down.delay) = (Duration::from_millis(80), Duration::from_millis(80));
    (far.up.queue, far.down.queue) = (Bytes::kilo(400), Bytes::kilo(400));
    let mut setup = Setup::new(Seed(1), vec![far, link("wifi")]);
    for config in [&mut setup.client, &mut setup.server] {
        config.controller = ControllerKind::RmTcp;
    }
    let mut world = World::new(setup);
    world.connect();
    world.run_until(Instant::from_millis(1_000));
    // All goes by the phone, and answers return by the wifi, which is nearer.
    let (now, wifi) = (world.now(), world.paths(Side::Client)[1].path.id);
    world.with_session(Side::Client, |session| {
        let policy = PathPolicy {
            backup: true,
            ..PathPolicy::default()
        };
        session
            .set_path_policy(now, wifi, policy)
            .expect("a valid policy");
    });
    world.add(Transfer {
        starts_at: Instant::from_millis(1_001),
        ..Transfer::upload()
    });
    let rate_in = |world: &mut World, seconds| {
        let sent = |world: &World| world.paths(Side::Client)[0].path.sent;
        let (before, span) = (sent(world), Duration::from_secs(seconds));
        world.run_until(world.now() + span);
        Rate::of(sent(world) - before, span)
    };
    rate_in(&mut world, 30);
    let by_wifi = rate_in(&mut world, 5);
    assert!(by_wifi > Rate::from_mbps(10), "{by_wifi} of 20 Mbit/s");
    world.lose_interface(LinkId(1));
    rate_in(&mut world, 30);
    let by_phone = rate_in(&mut world, 10);
    assert!(by_phone > Rate::from_mbps(17), "{by_phone} of 20 Mbit/s");
}
