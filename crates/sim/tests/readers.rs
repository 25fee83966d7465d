//! Readers that stop reading: their streams wait, and nobody else's.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{DropReason, SessionConfig};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};
use tabane_sim::{JobId, Pace, Setup, Side, Transfer, World};

fn link(name: &str) -> LinkSpec {
    let config = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(50)),
        queue: Bytes::kilo(200),
        delay: Duration::from_millis(10),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

fn setup() -> Setup {
    Setup::new(Seed(1), vec![link("a"), link("b")])
}

/// Downloads that stall after a second, and one that begins later.
fn world(stalled: usize) -> (World, JobId) {
    let mut world = World::new(setup());
    world.connect();
    for _ in 0..stalled {
        world.add(Transfer::download());
    }
    world.run_until(Instant::from_millis(1_000));
    for job in 0..stalled {
        world.set_pace(JobId(job), Side::Client, Pace::Stalled);
    }
    let starts_at = Instant::from_millis(3_000);
    let job = world.add(Transfer {
        starts_at,
        ..Transfer::download()
    });
    world.run_until(Instant::from_millis(8_000));
    (world, job)
}

#[test]
fn stalled_streams_leave_the_links_and_the_memory_to_others() {
    for stalled in [1, 2, 4, 8, 40] {
        let (mut world, job) = world(stalled);
        let rate = Rate::of(world.job(job).read(Side::Client), Duration::from_secs(5));
        assert!(rate > Rate::from_mbps(85), "{stalled} stalled: {rate}");
        for job in 0..stalled {
            world.set_pace(JobId(job), Side::Client, Pace::Eager);
        }
        let from = world.now() + Duration::from_secs(1);
        world.run_until(from + Duration::from_secs(2));
        let rate = world
            .outcome(Side::Client)
            .goodput_between(from, world.now());
        assert!(rate > Rate::from_mbps(90), "{stalled} resumed: {rate}");
    }
}

#[test]
fn a_reader_slower_than_the_links_sets_the_pace_and_nothing_is_sent_in_vain() {
    let mut world = World::new(setup());
    world.connect();
    let job = world.add(Transfer::download());
    let pace = Rate::from_mbps(8);
    world.set_pace(job, Side::Client, Pace::Limited(pace));
    world.run_until(Instant::from_millis(10_000));
    let read = world.job(job).read(Side::Client);
    let rate = Rate::of(read, Duration::from_secs(10));
    assert!(rate > pace.scaled(0.97) && rate <= pace, "{rate}");
    let session = world.session(Side::Client).expect("a session");
    assert_eq!(session.snapshot(world.now()).drops.of(DropReason::Shed), 0);
    // What is ahead of the reader stays within the first window and a half.
    assert!(world.receive_memory_max(Side::Client) <= Bytes::mega(2));
}

#[test]
fn little_memory_costs_speed_and_never_more_memory() {
    for (kilobytes, least) in [(256, 60), (1_000, 85), (4_000, 85)] {
        let mut setup = setup();
        let limit = Bytes::kilo(kilobytes);
        setup.client = SessionConfig {
            receive_memory: limit,
            ..SessionConfig::default()
        };
        setup.sample_interval = Duration::from_micros(200);
        let mut world = World::new(setup);
        world.connect();
        let job = world.add(Transfer::download());
        world.run_until(Instant::from_millis(3_000));
        world.set_pace(job, Side::Client, Pace::Stalled);
        world.run_until(Instant::from_millis(6_000));
        world.set_pace(job, Side::Client, Pace::Eager);
        world.run_until(Instant::from_millis(10_000));
        let held = world.receive_memory_max(Side::Client);
        assert!(held <= limit + Bytes::new(3_000), "{limit}: held {held}");
        let from = Instant::from_millis(8_000);
        let rate = world
            .outcome(Side::Client)
            .goodput_between(from, world.now());
        assert!(
            rate > Rate::from_mbps(least),
            "{limit}: {rate} after the stall"
        );
    }
}

/// What was granted at first is on its way when its reader stops. Streams held then had it shed,
/// and sent again whenever the program's socket took a little more: 290 kB of 230 were drawn.
#[test]
fn who_stops_within_the_first_grant_draws_that_and_no_more() {
    const READERS: usize = 20;
    let mut world = World::new(setup());
    world.connect();
    let jobs: Vec<_> = (0..READERS)
        .map(|_| world.add(Transfer::download()))
        .collect();
    for ms in 0..3_000 {
        world.run_until(Instant::from_millis(ms));
        for &job in &jobs {
            if world.job(job).read(Side::Client) > Bytes::kilo(30) {
                world.set_pace(job, Side::Client, Pace::Stalled);
            }
        }
    }
    let session = world.session(Side::Client).expect("a session");
    let snapshot = session.snapshot(world.now());
    assert_eq!(snapshot.drops.of(DropReason::Shed), 0);
    let drawn: u64 = (snapshot.paths.iter())
        .map(|path| path.received.get())
        .sum();
    let each = drawn / READERS as u64;
    assert!(each < 256_000, "{each} bytes each");
}
