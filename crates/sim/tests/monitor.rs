//! Packet pairs over modelled links: how well they measure, and what they cost.
//!
//! The whole table of precision is compared with `monitor.txt`, so that a change shows in review;
//! accept one by `TABANE_BLESS=1 cargo test -p tabane-sim --test monitor`.

use std::fmt::Write as _;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, Seed};
use tabane_core::{PathPolicy, PathSnapshot, SessionConfig};
use tabane_netem::{Direction, LinkConfig, LinkSpec, LossModel, RateModel};
use tabane_sim::{LinkId, Setup, Side, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const LINK: LinkId = LinkId(0);

fn config(rate: Rate) -> LinkConfig {
    LinkConfig {
        rate: RateModel::Constant(rate),
        queue: Bytes::kilo(100).max(rate.amount_in(MS(40))),
        delay: MS(10),
        ..LinkConfig::wire()
    }
}

fn world(seed: u64, up: LinkConfig, down: LinkConfig, client: SessionConfig) -> World {
    let name = "link".to_owned();
    let mut setup = Setup::new(Seed(seed), vec![LinkSpec { name, up, down }]);
    setup.server.probes = client.probes;
    setup.client = client;
    let mut world = World::new(setup);
    world.connect();
    world
}

fn path(world: &World, side: Side) -> PathSnapshot {
    let session = world.session(side).expect("a session");
    session.snapshot(world.now()).paths[0].clone()
}

// Precision.

/// What disturbs the measurement.
#[derive(Clone, Copy)]
enum Trouble {
    None,
    /// Others load the link to half, in packets of 1500 bytes at random times.
    Cross,
    /// Each packet is late by up to so much; order is kept.
    Jitter(Duration),
    /// Acknowledgements come back in heaps.
    AckHeaps,
    Loss,
}

const ROWS: [(&str, Trouble); 6] = [
    ("nothing", Trouble::None),
    ("cross 50 %", Trouble::Cross),
    ("jitter 0.2 ms", Trouble::Jitter(Duration::from_micros(200))),
    ("jitter 2 ms", Trouble::Jitter(Duration::from_millis(2))),
    ("ack heaps", Trouble::AckHeaps),
    ("loss 2 %", Trouble::Loss),
];

const RATES_MBPS: [u64; 7] = [1, 5, 10, 50, 100, 500, 1_000];

#[test]
fn bandwidth_is_measured_as_well_as_before() {
    let mut table = String::from("up Mbit/s      ");
    for rate in RATES_MBPS {
        let _ = write!(table, "{rate:9}");
    }
    table.push('\n');
    let mut failures = String::new();
    for (name, trouble) in ROWS {
        let _ = write!(table, "{name:15}");
        for mbps in RATES_MBPS {
            let measured = measure(mbps, trouble);
            let shown = measured.map_or_else(
                || "-".to_owned(),
                |rate| format!("{:.2}", rate.as_mbps_f64()),
            );
            let _ = write!(table, "{shown:>9}");
            let error = measured.map_or(1.0, |rate| rate.as_mbps_f64() / mbps as f64 - 1.0);
            if !matches!(trouble, Trouble::Jitter(_)) && error.abs() > 0.03 {
                let _ = writeln!(failures, "{name}, {mbps} Mbit/s: {shown}");
            }
        }
        table.push('\n');
    }
    print!("{table}");
    assert!(failures.is_empty(), "off by more than 3 %:\n{failures}");
    compare(&table);
}

/// What the client makes of its way up after some trains that were asked for.
fn measure(mbps: u64, trouble: Trouble) -> Option<Rate> {
    let rate = Rate::from_mbps(mbps);
    let (mut up, mut down) = (config(rate), config(Rate::from_mbps(20)));
    match trouble {
        Trouble::None | Trouble::Cross => {}
        Trouble::Jitter(jitter) => up.jitter = jitter,
        Trouble::AckHeaps => down.jitter = MS(20),
        Trouble::Loss => {
            up.loss = LossModel::Random(tabane_netem::Probability::new(0.02).expect("a share"))
        }
    }
    let mut world = world(1, up, down, SessionConfig::default());
    world.run_until(Instant::from_millis(500));
    world.with_session(Side::Client, |session| {
        let id = session.snapshot(Instant::EPOCH).paths[0].id;
        let now = Instant::from_millis(500);
        session.measure_path(now, id, 24).expect("there is a path");
    });
    let end = Instant::from_millis(5_500);
    let mut rng = Seed(mbps).rng("cross");
    if let Trouble::Cross = trouble {
        cross(&mut world, rate.scaled(0.5), end, &mut rng);
    }
    world.run_until(end);
    path(&world, Side::Client).pair_out
}

/// Others send at `rate` on the way up until enough trains have passed.
fn cross(world: &mut World, rate: Rate, end: Instant, rng: &mut Rng) {
    let packet = Bytes::new(1_500);
    let gap = rate.time_for(packet).as_secs_f64();
    let sent = |world: &World| path(world, Side::Client).sent_packets;
    let before = sent(world);
    while world.now() < end && (sent(world) < before + 60 || rate < Rate::from_mbps(100)) {
        let wait = -gap * (1.0 - rng.unit()).ln();
        world.run_for(Duration::from_secs_f64(wait));
        world.send_foreign(LINK, Direction::Up, packet);
    }
}

#[expect(clippy::disallowed_methods, reason = "the table of record is a file")]
fn compare(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/monitor.txt");
    if std::env::var_os("TABANE_BLESS").is_some() {
        std::fs::write(path, table).expect("the tree can be written to");
        return;
    }
    let known = std::fs::read_to_string(path).expect("the table of record is committed");
    assert_eq!(known, table, "accept with TABANE_BLESS=1");
}

#[test]
fn both_directions_are_learnt_from_one_request() {
    let (up, down) = (config(Rate::from_mbps(5)), config(Rate::from_mbps(200)));
    let mut world = world(2, up, down, SessionConfig::default());
    world.run_until(Instant::from_millis(500));
    world.with_session(Side::Client, |session| {
        let id = session.snapshot(Instant::EPOCH).paths[0].id;
        let now = Instant::from_millis(500);
        session.measure_path(now, id, 10).expect("there is a path");
    });
    world.run_until(Instant::from_millis(3_000));
    let near = |rate: Option<Rate>, mbps: f64| {
        let found = rate.map_or(0.0, Rate::as_mbps_f64);
        assert!((found / mbps - 1.0).abs() < 0.03, "{found}, not {mbps}");
    };
    let (client, server) = (path(&world, Side::Client), path(&world, Side::Server));
    near(client.pair_out, 5.0);
    near(client.pair_in, 200.0);
    near(server.pair_out, 200.0);
    near(server.pair_in, 5.0);
}

// Cost.

/// Ten minutes.
const LONG: Duration = Duration::from_secs(600);

/// A world whose application says something small every now and then, or nothing at all; with the
/// IP bytes that went up and down.
fn carried(rate: Rate, chatter: Option<Duration>, probes: bool) -> (World, [u64; 2]) {
    let client = SessionConfig {
        probes,
        ..SessionConfig::default()
    };
    let mut world = world(3, config(rate), config(rate), client);
    let end = Instant::EPOCH + LONG;
    while let Some(interval) = chatter
        && world.now() + interval < end
    {
        world.run_for(interval);
        world.send_datagram(Side::Client, 64);
    }
    world.run_until(end);
    let bytes = |way| world.network().counters(LINK, way).offered.bytes.get();
    let bytes = [bytes(Direction::Up), bytes(Direction::Down)];
    (world, bytes)
}

#[test]
fn probes_stay_below_a_thousandth_of_the_link() {
    for kbps in [256, 1_000, 5_000, 50_000, 500_000] {
        let rate = Rate::from_bps(kbps * 1_000);
        for chatter in [None, Some(MS(700)), Some(MS(30_000))] {
            let (world, with) = carried(rate, chatter, true);
            let (_, without) = carried(rate, chatter, false);
            let most = rate.amount_in(LONG).get() / 1_000;
            for (with, without) in with.into_iter().zip(without) {
                let cost = with.saturating_sub(without);
                assert!(cost <= most, "{rate}, {chatter:?}: {cost} of {most} bytes");
            }
            // And they measure.
            let found = path(&world, Side::Client)
                .pair_out
                .map_or(0.0, Rate::as_mbps_f64);
            let share = found * 1_000.0 / kbps as f64;
            assert!(
                (0.97..1.03).contains(&share),
                "{rate}, {chatter:?}: {found}"
            );
            assert!(path(&world, Side::Client).rtt_measured);
        }
    }
}

#[test]
fn an_idle_session_wakes_the_radio_no_more_often_for_probes() {
    let wakings = |probes: bool| {
        let client = SessionConfig {
            probes,
            ..SessionConfig::default()
        };
        let rate = Rate::from_mbps(20);
        let mut world = world(4, config(rate), config(rate), client);
        world.run_until(Instant::from_millis(5_000));
        world.network_mut().capture();
        world.run_until(Instant::EPOCH + LONG);
        let mut last = Instant::EPOCH;
        let mut wakings = 0;
        for captured in world.network_mut().take_captured() {
            wakings += u32::from(captured.at.since(last) > MS(2_000));
            last = captured.at;
        }
        wakings
    };
    let (with, without) = (wakings(true), wakings(false));
    assert!(
        without > 10 && with <= without,
        "{with}, {without} without probes"
    );
}

#[test]
fn a_metered_path_is_not_probed_unless_that_is_allowed() {
    for (side, allowed) in [
        (Side::Client, false),
        (Side::Server, false),
        (Side::Client, true),
    ] {
        let client = SessionConfig {
            probe_metered: allowed,
            ..SessionConfig::default()
        };
        let rate = Rate::from_mbps(20);
        let mut world = world(5, config(rate), config(rate), client);
        world.run_until(Instant::from_millis(200));
        let now = world.now();
        world.with_session(side, |session| {
            let id = session.snapshot(now).paths[0].id;
            let metered = PathPolicy {
                metered: true,
                ..PathPolicy::default()
            };
            session
                .set_path_policy(now, id, metered)
                .expect("there is a path");
        });
        for _ in 0..20 {
            world.run_for(MS(1_000));
            world.send_datagram(Side::Client, 64);
        }
        for side in [Side::Client, Side::Server] {
            let path = path(&world, side);
            let measured = path.pair_out.is_some() || path.pair_in.is_some();
            assert_eq!(measured, allowed, "{side:?}: {path:?}");
        }
    }
}

#[test]
fn an_end_that_takes_no_probes_gets_none() {
    let rate = Rate::from_mbps(20);
    let link = LinkSpec {
        name: "link".to_owned(),
        up: config(rate),
        down: config(rate),
    };
    let mut setup = Setup::new(Seed(6), vec![link]);
    setup.server.probes = false;
    let mut world = World::new(setup);
    world.connect();
    world.run_until(Instant::from_millis(60_000));
    assert_eq!(path(&world, Side::Client).pair_out, None);
    assert!(path(&world, Side::Client).rtt_measured);
}

#[test]
fn readings_tell_what_happened() {
    let rate = Rate::from_mbps(20);
    let mut world = world(7, config(rate), config(rate), SessionConfig::default());
    world.add(tabane_sim::Transfer::upload());
    let (mut delivered, mut sent, mut trains, mut round_trips) = (Bytes::ZERO, 0, 0, Vec::new());
    for millis in (0..5_000).step_by(5) {
        let now = Instant::from_millis(millis);
        world.run_until(now);
        world.with_session(Side::Client, |session| {
            while let Some(reading) = session.poll_reading(now) {
                delivered += reading.delivered;
                sent += reading.sent;
                trains += reading.trains.len();
                round_trips.extend(reading.round_trip);
            }
        });
    }
    let path = path(&world, Side::Client);
    let close = |part: u64, whole: u64| part <= whole && part * 100 >= whole * 98;
    assert!(
        close(delivered.get(), path.acked.get()),
        "{delivered} of {}",
        path.acked
    );
    assert!(
        close(sent, path.sent_packets),
        "{sent} of {}",
        path.sent_packets
    );
    assert!(trains >= 4, "{trains} trains");
    let least = round_trips.iter().map(|(_, least)| *least).min();
    assert!(
        round_trips.len() > 300 && least >= Some(MS(20)) && least < Some(MS(23)),
        "{least:?}"
    );
}
