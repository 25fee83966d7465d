//! Classes of streams: what may not take a link does not take it, whatever happens, and what is
//! redundant feels nothing when a link dies.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{ClassId, ClassRule, DatagramOrder, PathId, PathPolicy, ReadState, StreamId};
use tabane_netem::{LinkConfig, LinkSpec, LossModel, Probability, RateModel};
use tabane_sim::{JobId, LinkId, Pace, Setup, Side, Transfer, UdpLoad, World};

const WIFI: LinkId = LinkId(0);
const PHONE: LinkId = LinkId(1);

fn class(number: u8) -> ClassId {
    ClassId::new(number).expect("in range")
}

fn link(name: &str, delay_ms: u64) -> LinkSpec {
    let config = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(20)),
        queue: Bytes::kilo(100),
        delay: Duration::from_millis(delay_ms),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

/// Wi-Fi and a phone of 20 Mbit/s each, a second after the session began.
fn world(seed: u64) -> World {
    let mut setup = Setup::new(Seed(seed), vec![link("wifi", 10), link("phone", 25)]);
    // Trains of probes are large packets; what is counted here is to be data or nothing.
    setup.client.probes = false;
    setup.server.probes = false;
    let mut world = World::new(setup);
    world.connect();
    world.run_until(Instant::from_millis(1_000));
    world
}

fn path(world: &World, link: LinkId) -> PathId {
    world.paths(Side::Client)[link.0].path.id
}

fn set_class(world: &mut World, number: u8, links: Option<&[LinkId]>, redundant: bool) {
    let paths = links.map(|links| links.iter().map(|link| path(world, *link)).collect());
    let now = world.now();
    world.with_session(Side::Client, |session| {
        session.set_class(now, class(number), ClassRule { paths, redundant });
    });
}

/// A job of the class that begins now.
fn add(world: &mut World, number: u8, transfer: Transfer) -> JobId {
    let starts_at = world.now() + Duration::from_millis(1);
    let job = world.add(Transfer {
        starts_at,
        ..transfer
    });
    world.classify(job, class(number));
    job
}

fn run(world: &mut World, ms: u64) {
    world.run_until(world.now() + Duration::from_millis(ms));
}

/// What an end has sent over the phone.
fn by_phone(world: &World, side: Side) -> Bytes {
    world.paths(side)[PHONE.0].path.sent
}

const fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

/// Acknowledgements, keep-alives and searches for the largest packet while nothing is sent that
/// may take the phone; a single packet of data more would be seen.
fn idle(side: Side, ms: u64) -> Bytes {
    let mut world = world(1);
    run(&mut world, 200);
    let before = by_phone(&world, side);
    run(&mut world, ms);
    by_phone(&world, side) - before
}

#[test]
fn a_forbidden_link_carries_no_byte_from_the_first_one_on_and_through_cuts_and_loss() {
    for (transfer, sender) in [
        (Transfer::upload(), Side::Client),
        (Transfer::download(), Side::Server),
    ] {
        let mut world = world(1);
        set_class(&mut world, 1, Some(&[WIFI]), false);
        run(&mut world, 200);
        let before = by_phone(&world, sender);
        let job = add(&mut world, 1, transfer);
        run(&mut world, 4_000);
        let now = world.now();
        world.network_mut().set_outage(now, WIFI, true);
        run(&mut world, 2_000);
        let held = world.job(job).read(other(sender));
        run(&mut world, 1_000);
        assert_eq!(world.job(job).read(other(sender)), held, "it waits");
        let now = world.now();
        world.network_mut().set_outage(now, WIFI, false);
        run(&mut world, 3_000);
        let read = world.job(job).read(other(sender));
        assert!(read > held + Bytes::mega(4), "{read} after {held}");
        let used = by_phone(&world, sender) - before;
        // Acknowledgements of the other end are small; a tenth of a percent of the data is not.
        let least = idle(sender, 10_000);
        assert!(
            used < least + Bytes::new(3_000),
            "{used} by the phone, {least} when idle"
        );
    }
}

#[test]
fn others_use_both_links_meanwhile_and_do_not_wait() {
    let mut world = world(2);
    set_class(&mut world, 1, Some(&[WIFI]), false);
    let backup = add(&mut world, 1, Transfer::download());
    let browsing = add(&mut world, 0, Transfer::download());
    run(&mut world, 5_000);
    let seen = |world: &World| [backup, browsing].map(|job| world.job(job).read(Side::Client));
    let before = seen(&world);
    run(&mut world, 5_000);
    let after = seen(&world);
    let [backup_rate, rate] =
        [0, 1].map(|i| Rate::of(after[i] - before[i], Duration::from_secs(5)));
    // Whoever has Wi-Fi alone has about all of it, and the others the rest: the links are full. A
    // stream that waits for a repeated packet at one end of the time counts what it held.
    let whole = rate.as_bps() + backup_rate.as_bps();
    assert!(whole > 36_000_000, "{rate} beside {backup_rate}");
    for rate in [rate, backup_rate] {
        assert!(rate > Rate::from_mbps(14), "{rate} of {whole}");
    }
    // Without Wi-Fi the one waits and the other goes on.
    let now = world.now();
    world.network_mut().set_outage(now, WIFI, true);
    run(&mut world, 1_000);
    let before = seen(&world);
    run(&mut world, 4_000);
    let after = seen(&world);
    assert_eq!(before[0], after[0]);
    let rate = Rate::of(after[1] - before[1], Duration::from_secs(4));
    assert!(rate > Rate::from_mbps(17), "{rate}");
}

/// The longest time without anything read in the next `ms`.
fn longest_silence(world: &mut World, job: JobId, ms: u64) -> Duration {
    let mut longest = Duration::ZERO;
    let mut last = (world.now(), world.job(job).read(Side::Client));
    for _ in 0..ms {
        run(world, 1);
        let read = world.job(job).read(Side::Client);
        if read > last.1 {
            last = (world.now(), read);
        }
        longest = longest.max(world.now() - last.0);
    }
    longest
}

#[test]
fn a_redundant_stream_feels_nothing_of_a_cut() {
    for lost in [WIFI, PHONE] {
        let mut world = world(3);
        // That the phone costs money is no reason to leave out copies that were asked for.
        let costly = PathPolicy {
            priority: 1,
            metered: true,
            ..PathPolicy::default()
        };
        let (now, phone) = (world.now(), path(&world, PHONE));
        world.with_session(Side::Client, |session| {
            session.set_path_policy(now, phone, costly).expect("valid");
        });
        set_class(&mut world, 2, None, true);
        let call = add(&mut world, 2, Transfer::download());
        world.set_pace(call, Side::Client, Pace::Limited(Rate::from_mbps(4)));
        run(&mut world, 3_000);
        let usual = longest_silence(&mut world, call, 2_000);
        let now = world.now();
        world.network_mut().set_outage(now, lost, true);
        let silence = longest_silence(&mut world, call, 2_000);
        assert!(
            silence <= usual + Duration::from_millis(20),
            "{lost:?}: {silence:?} after {usual:?}"
        );
    }
}

#[test]
fn a_redundant_flow_loses_no_datagram_through_a_cut_and_loss() {
    for from in [Side::Client, Side::Server] {
        let mut world = world(4);
        set_class(&mut world, 3, None, true);
        // Flows are counted from 1: the second one is the client's second stream's.
        let jobs: Vec<_> = (0..2)
            .map(|_| {
                let bytes = Transfer {
                    up: Bytes::new(10),
                    down: Bytes::MAX,
                    ..Transfer::upload()
                };
                let job = add(&mut world, 3, bytes);
                world.set_pace(job, Side::Client, Pace::Limited(Rate::from_bps(1_000)));
                job
            })
            .collect();
        run(&mut world, 500);
        assert_eq!(world.job(jobs[1]).stream().map(|id| id.get()), Some(2));
        let starts_at = world.now();
        let load = UdpLoad {
            from,
            size: 1_000,
            rate: Rate::from_mbps(2),
            order: DatagramOrder::AtOnce,
            starts_at,
            ends_at: starts_at,
        };
        world.add_flow(load);
        world.add_flow(UdpLoad {
            ends_at: starts_at + Duration::from_secs(4),
            ..load
        });
        run(&mut world, 1_000);
        let now = world.now();
        world.network_mut().set_outage(now, WIFI, true);
        run(&mut world, 1_000);
        let now = world.now();
        world.network_mut().set_outage(now, WIFI, false);
        for direction in [tabane_netem::Direction::Up, tabane_netem::Direction::Down] {
            let link = world.network_mut().link_mut(WIFI, direction);
            link.set_loss(
                now,
                LossModel::Random(Probability::new(0.2).expect("in range")),
            );
        }
        run(&mut world, 3_000);
        let outcome = world.flows()[1].outcome(
            starts_at,
            starts_at + Duration::from_secs(4),
            Duration::from_millis(60),
        );
        assert_eq!(outcome.delivered, 1.0, "{from:?}: {outcome:?}");
    }
}

#[test]
fn a_changed_rule_moves_running_streams_within_100_ms() {
    let mut world = world(5);
    set_class(&mut world, 1, None, false);
    let job = add(&mut world, 1, Transfer::download());
    run(&mut world, 3_000);
    let before = by_phone(&world, Side::Server);
    run(&mut world, 1_000);
    assert!(by_phone(&world, Side::Server) - before > Bytes::mega(2));
    set_class(&mut world, 1, Some(&[WIFI]), false);
    run(&mut world, 100);
    let before = by_phone(&world, Side::Server);
    run(&mut world, 2_000);
    let used = by_phone(&world, Side::Server) - before;
    assert!(used < Bytes::new(6_000), "{used}");
    // And a stream that is taken out of its class is like any other.
    world.classify(job, class(0));
    run(&mut world, 100);
    let before = by_phone(&world, Side::Server);
    run(&mut world, 2_000);
    assert!(by_phone(&world, Side::Server) - before > Bytes::mega(4));
}

/// Has the server write to a stream as fast as it goes, and the client read it, for a while; what
/// was read.
fn pour(world: &mut World, stream: StreamId, ms: u64) -> Bytes {
    let mut read = 0;
    for _ in 0..ms / 20 {
        let now = world.now();
        world.with_session(Side::Server, |session| {
            session.write(now, stream, &[7; 500_000]).expect("open");
        });
        run(world, 20);
        let now = world.now();
        world.with_session(Side::Client, |session| {
            while let Ok(ReadState::Data(data)) = session.peek(stream) {
                let len = data.len();
                read += len;
                session.consume(now, stream, len);
            }
        });
    }
    Bytes::from(read)
}

#[test]
fn what_the_server_opens_is_of_the_class_of_who_asked_until_the_client_says_otherwise() {
    let mut world = world(7);
    set_class(&mut world, 1, Some(&[WIFI]), false);
    run(&mut world, 200);
    let now = world.now();
    let mut asked_by = None;
    world.with_session(Side::Client, |session| {
        let id = session.open_stream(now).expect("connected");
        session.set_stream_class(now, id, class(1));
        session.write(now, id, b"send me something").expect("open");
        asked_by = Some(id);
    });
    run(&mut world, 200);
    let before = by_phone(&world, Side::Server);
    let now = world.now();
    let mut opened = None;
    world.with_session(Side::Server, |session| {
        opened = session.open_stream_for(now, asked_by.expect("opened")).ok();
    });
    let opened = opened.expect("connected");
    let read = pour(&mut world, opened, 3_000);
    assert!(read > Bytes::mega(4), "{read}");
    let used = by_phone(&world, Side::Server) - before;
    let least = idle(Side::Server, 3_000);
    assert!(
        used < least + Bytes::new(3_000),
        "{used} by the phone, {least} when idle"
    );
    // At the client it was ordinary all the time, and saying so must not be taken for nothing new.
    let now = world.now();
    world.with_session(Side::Client, |session| {
        session.set_stream_class(now, opened, ClassId::ORDINARY);
        session.write(now, opened, b"by any link").expect("open");
    });
    let before = by_phone(&world, Side::Server);
    pour(&mut world, opened, 3_000);
    let used = by_phone(&world, Side::Server) - before;
    assert!(used > Bytes::mega(2), "{used} by the phone");
}
