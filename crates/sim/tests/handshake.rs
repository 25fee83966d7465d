//! Beginnings and ends of sessions on good links, bad links and among strangers.

use std::net::SocketAddr;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{
    CloseReason, DropReason, Identity, PathError, RetryPolicy, SessionConfig, SessionStatus,
};
use tabane_netem::{Direction, LinkConfig, LinkSpec, LossModel, Probability, RateModel};
use tabane_sim::{Admission, Captured, JobState, LinkId, SERVER, Setup, Side, Transfer, World};

const SECOND: Duration = Duration::from_secs(1);

fn config(mbit: u64, delay_ms: u64) -> LinkConfig {
    LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(mbit)),
        queue: Bytes::kilo(100),
        delay: Duration::from_millis(delay_ms),
        ..LinkConfig::wire()
    }
}

fn links(count: usize) -> Vec<LinkSpec> {
    let link = |index: usize| {
        let config = config(20, 10 + 5 * index as u64);
        LinkSpec {
            name: format!("{index}"),
            up: config.clone(),
            down: config,
        }
    };
    (0..count).map(link).collect()
}

fn setup(count: usize) -> Setup {
    Setup::new(Seed(1), links(count))
}

/// A world whose client began to connect.
fn connecting(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.connect();
    world
}

/// A world that is connected over all its links.
fn connected(count: usize) -> World {
    let mut world = connecting(setup(count));
    world.run_for(2 * SECOND);
    assert!(world.connected_at().is_some());
    assert_eq!(world.paths_up().values().filter(|up| **up).count(), count);
    world
}

fn reason(world: &World, side: Side) -> Option<CloseReason> {
    world.host(side).closed().values().next().cloned()
}

#[track_caller]
fn transfers(world: &mut World) {
    let (up, down) = (Bytes::kilo(300), Bytes::kilo(300));
    let job = world.add(Transfer {
        up,
        down,
        starts_at: world.now(),
    });
    let limit = world.now() + 20 * SECOND;
    assert!(
        world.run_while(limit, |world| !world.job(job).is_over()),
        "it does not end"
    );
    assert_eq!(world.job(job).state(Side::Client), JobState::Finished);
    assert_eq!(world.job(job).state(Side::Server), JobState::Finished);
}

#[test]
fn one_round_trip_and_a_half_lets_a_client_in() {
    let mut world = connecting(setup(1));
    world.run_for(SECOND);
    let at = world.connected_at().expect("connected");
    // Two round trips of 20 ms: TLS, then the client's hello.
    assert!(at < Instant::from_millis(45), "{at}");
    transfers(&mut world);
}

#[test]
fn another_key_than_the_pinned_one_is_refused_at_both_ends() {
    let mut setup = setup(2);
    setup.pinned = Some(Identity::from_seed([9; 32]).public_key());
    let mut world = connecting(setup);
    world.run_for(15 * SECOND);
    assert_eq!(
        reason(&world, Side::Client),
        Some(CloseReason::WrongPeerKey)
    );
    assert!(matches!(
        reason(&world, Side::Server),
        Some(CloseReason::HandshakeFailed(_))
    ));
    assert_eq!(world.host(Side::Server).late_events(), 0);
}

#[test]
fn a_wrong_token_is_refused_with_a_reason_and_a_right_one_is_not() {
    for (token, right) in [(Some(b"no"), false), (None, false), (Some(b"ok"), true)] {
        let mut setup = setup(2);
        setup.admission = Admission::Token(b"ok".to_vec());
        setup.token = token.map(|token| token.to_vec());
        let mut world = connecting(setup);
        world.run_for(3 * SECOND);
        assert_eq!(world.connected_at().is_some(), right, "{token:?}");
        let expected = (!right).then_some(CloseReason::Unauthorised);
        assert_eq!(reason(&world, Side::Client), expected, "{token:?}");
    }
}

#[test]
fn a_relay_of_another_version_is_named_unless_something_was_heard_of_ours() {
    let mut world = World::new(setup(1));
    world.network_mut().capture();
    world.connect();
    world.run_for(Duration::from_millis(12));
    let first = world.network_mut().take_captured().remove(0);
    let offer = |versions: &[u32]| {
        let mut packet = vec![0xc0, 0, 0, 0, 0];
        packet.extend_from_slice(&first.data[5..13]);
        versions
            .iter()
            .for_each(|version| packet.extend_from_slice(&version.to_be_bytes()));
        packet
    };
    let tuple = world.network().client_tuple(LinkId(0));
    world.inject(Side::Client, tuple, offer(&[1, 7]));
    assert_eq!(
        reason(&world, Side::Client),
        None,
        "our own version is among them: a forgery"
    );
    let mut other = World::new(setup(1));
    other.connect();
    other.inject(Side::Client, tuple, offer(&[7, 8]));
    let theirs = vec![7, 8];
    assert_eq!(
        reason(&other, Side::Client),
        Some(CloseReason::VersionMismatch { theirs })
    );
    world.run_for(SECOND);
    world.inject(Side::Client, tuple, offer(&[7]));
    assert_eq!(
        reason(&world, Side::Client),
        None,
        "too late to be believed"
    );
    transfers(&mut world);
}

#[test]
fn a_client_of_another_version_is_told_ours_in_no_more_bytes_than_it_sent() {
    let mut world = World::new(setup(1));
    let stranger = world.network().server_tuple(LinkId(0));
    let mut packet = vec![0; 1_200];
    packet[..5].copy_from_slice(&[0xc0, 0, 0, 0, 99]);
    world.inject(Side::Server, stranger, packet.clone());
    assert_eq!(world.host(Side::Server).sent(), 1);
    world.inject(Side::Server, stranger, packet[..1_100].to_vec());
    assert_eq!(
        world.host(Side::Server).sent(),
        1,
        "a small one gets no answer"
    );
    let drops = &world.host(Side::Server).endpoint().counters().drops;
    assert_eq!(drops.of(DropReason::UnknownVersion), 2);
}

#[test]
fn a_relay_that_always_asks_for_proof_gets_it() {
    let mut setup = setup(2);
    setup.accept.retry = RetryPolicy::Always;
    let mut world = connecting(setup);
    world.run_for(SECOND);
    let at = world.connected_at().expect("connected");
    assert!(at < Instant::from_millis(65), "three round trips: {at}");
    assert_eq!(world.host(Side::Server).endpoint().counters().retries, 1);
    transfers(&mut world);
}

#[test]
fn a_retry_token_is_worth_nothing_to_another_address() {
    let mut setup = setup(1);
    setup.accept.retry = RetryPolicy::Always;
    let mut world = World::new(setup);
    world.network_mut().capture();
    world.connect();
    world.run_for(Duration::from_millis(35));
    let captured = world.network_mut().take_captured();
    let mut initials = captured.iter().filter(|c| c.to == Side::Server);
    let with_token = initials
        .next_back()
        .expect("the second Initial carries the token");
    let accepted = world.host(Side::Server).endpoint().counters().accepted;
    assert_eq!(accepted, 1);
    // A second server of the same key, so that only the token can make a difference.
    world.restart_server();
    let thief = SocketAddr::from(([203, 0, 113, 9], 1_000));
    let tuple = tabane_core::FourTuple {
        remote: thief,
        ..with_token.tuple
    };
    world.inject(Side::Server, tuple, with_token.data.clone());
    let counters = world.host(Side::Server).endpoint().counters();
    assert_eq!(
        (counters.accepted, counters.drops.of(DropReason::BadToken)),
        (0, 1)
    );
    world.inject(Side::Server, with_token.tuple, with_token.data.clone());
    assert_eq!(world.host(Side::Server).endpoint().counters().accepted, 1);
}

#[test]
fn heavy_loss_on_every_link_delays_the_handshake_only() {
    for seed in 0..40 {
        let mut setup = setup(2);
        setup.seed = Seed(seed);
        for link in &mut setup.links {
            for way in [&mut link.up, &mut link.down] {
                way.loss = LossModel::Random(Probability::new(0.3).expect("below one"));
            }
        }
        setup.client.handshake_timeout = 30 * SECOND;
        setup.server.handshake_timeout = 30 * SECOND;
        let mut world = connecting(setup);
        let limit = Instant::EPOCH + 20 * SECOND;
        let done = world.run_while(limit, |world| world.connected_at().is_none());
        assert!(done, "seed {seed}: not connected after {limit}");
        transfers(&mut world);
    }
}

#[test]
fn dead_first_links_cost_one_repetition_each_and_are_used_once_they_work() {
    let mut world = World::new(setup(3));
    for link in [LinkId(0), LinkId(1)] {
        world.network_mut().set_outage(Instant::EPOCH, link, true);
    }
    world.connect();
    world.run_for(2 * SECOND);
    let at = world.connected_at().expect("connected over the third link");
    assert!(at < Instant::from_millis(900), "{at}");
    transfers(&mut world);
    for link in [LinkId(0), LinkId(1)] {
        let now = world.now();
        world.network_mut().set_outage(now, link, false);
    }
    world.run_for(4 * SECOND);
    assert_eq!(world.paths_up().values().filter(|up| **up).count(), 3);
}

#[test]
fn a_relay_that_is_not_there_is_given_up_in_time() {
    let mut world = World::new(setup(2));
    for link in [LinkId(0), LinkId(1)] {
        world.network_mut().set_outage(Instant::EPOCH, link, true);
    }
    world.connect();
    let timeout = SessionConfig::default().handshake_timeout;
    world.run_for(timeout + SECOND);
    assert_eq!(
        reason(&world, Side::Client),
        Some(CloseReason::HandshakeTimeout)
    );
}

#[test]
fn a_client_learns_of_a_restart_from_whatever_it_sends_next() {
    // With something to say, and with nothing but its keep-alive.
    for talks in [true, false] {
        let mut world = connected(2);
        world.restart_server();
        if talks {
            world.add(Transfer {
                up: Bytes::kilo(50),
                down: Bytes::ZERO,
                starts_at: world.now(),
            });
        }
        world.run_for(SessionConfig::default().keep_alive + 2 * SECOND);
        assert_eq!(
            reason(&world, Side::Client),
            Some(CloseReason::StatelessReset),
            "{talks}"
        );
        let counters = world.host(Side::Server).endpoint().counters();
        assert!(counters.resets > 0);
        // It may begin anew at once.
        world.connect();
        world.run_for(SECOND);
        let session = world.session(Side::Client).expect("a new session");
        assert_eq!(
            session.snapshot(world.now()).status,
            SessionStatus::Connected
        );
    }
}

#[test]
fn garbage_is_counted_never_answered_beyond_its_size_and_never_fatal() {
    let mut world = connected(2);
    let mut rng = Seed(5).rng("garbage");
    let answered_before = world.host(Side::Server).sent();
    let mut received = 0_u64;
    for round in 0..3_000 {
        let mut data = vec![0; 1 + rng.below(1_500) as usize];
        rng.fill(&mut data);
        if round % 3 == 0 {
            // Shaped like our packets as far as strangers can tell.
            data[0] = [0x40, 0xc0, 0xd0, 0xe0][rng.below(4) as usize] | data[0] & 0x0f;
            let version = data.len().min(5);
            data[1..version].copy_from_slice(&[0, 0, 0, 1][..version - 1]);
        }
        received += data.len() as u64;
        let to_server = world.network().server_tuple(LinkId(0));
        let to_client = world.network().client_tuple(LinkId(0));
        world.inject(Side::Server, to_server, data.clone());
        world.inject(Side::Client, to_client, data);
    }
    for side in [Side::Client, Side::Server] {
        let counters = world.host(side).endpoint().counters();
        let drops: u64 = counters.drops.iter().map(|(_, count)| count).sum();
        assert!(drops >= 3_000, "{side:?} counted {drops}");
        assert_eq!(reason(&world, side), None);
    }
    let exchanged = world.network().exchanged();
    let sent: u64 = exchanged
        .values()
        .map(|counts| counts.from_server.get())
        .sum();
    assert!(sent < received, "{sent} bytes answer {received}");
    let answers = world.host(Side::Server).sent() - answered_before;
    assert!(answers <= 1_010, "{answers} answers within a second");
    transfers(&mut world);
}

#[test]
fn replayed_packets_are_counted_and_change_nothing() {
    let mut world = World::new(setup(2));
    world.network_mut().capture();
    world.connect();
    world.run_for(SECOND);
    transfers(&mut world);
    let captured = world.network_mut().take_captured();
    assert!(captured.len() > 300);
    let before: Vec<_> = [Side::Client, Side::Server]
        .map(|side| world.outcome(side).delivered())
        .to_vec();
    for Captured {
        to, tuple, data, ..
    } in captured
    {
        world.inject(to, tuple, data);
    }
    world.run_for(SECOND);
    for (side, before) in [Side::Client, Side::Server].into_iter().zip(before) {
        let drops = &world.host(side).endpoint().counters().drops;
        assert!(drops.of(DropReason::Replayed) > 100, "{side:?}: {drops:?}");
        assert_eq!(world.outcome(side).delivered(), before);
        assert_eq!(reason(&world, side), None);
    }
    transfers(&mut world);
}

#[test]
fn an_address_gets_at_most_three_times_its_bytes_before_it_is_proved() {
    for seed in 0..40 {
        let mut setup = setup(4);
        setup.seed = Seed(seed);
        for link in &mut setup.links {
            link.up.loss = LossModel::Random(Probability::new(0.2).expect("below one"));
        }
        let mut world = connecting(setup);
        world.add(Transfer::download());
        for step in 0..20 {
            world.run_for(Duration::from_millis(150));
            // Everything that comes from a new port is a stranger again.
            world.network_mut().rebind(LinkId(step % 4), step % 3 == 0);
        }
        for (address, counts) in world.network().exchanged() {
            let ratio = counts.amplification;
            assert!(
                ratio <= 3.0,
                "seed {seed}: {address} got {ratio} times what it sent"
            );
        }
    }
}

#[test]
fn a_stolen_address_gets_nothing_but_challenges() {
    // Replies to a client whose answers never come back: the first Initial only.
    let mut world = World::new(setup(1));
    world.network_mut().capture();
    world.connect();
    world.run_for(Duration::from_millis(12));
    let captured = world.network_mut().take_captured();
    let victim = SocketAddr::from(([203, 0, 113, 5], 9));
    let tuple = tabane_core::FourTuple {
        remote: victim,
        ..captured[0].tuple
    };
    world.restart_server();
    for _ in 0..5 {
        world.inject(Side::Server, tuple, captured[0].data.clone());
        world.run_for(SECOND);
    }
    let sent = world.network().exchanged()[&victim].from_server.get();
    assert!(
        sent <= 3 * 5 * captured[0].data.len() as u64,
        "{sent} bytes"
    );
}

#[test]
fn sixteen_paths_and_no_more_and_no_id_twice() {
    let mut world = connected(1);
    let mut seen = vec![];
    for _ in 0..15 {
        seen.push(world.open_path(LinkId(0)).expect("room for sixteen"));
    }
    assert_eq!(world.open_path(LinkId(0)), Err(PathError::LimitReached));
    world.run_for(SECOND);
    assert_eq!(world.paths_up().values().filter(|up| **up).count(), 16);
    for round in 0..40 {
        world.close_path(Side::Client, seen[round % 15]);
        world.run_for(Duration::from_millis(100));
        let id = world.open_path(LinkId(0)).expect("one was closed");
        assert!(!seen.contains(&id), "{id} came back");
        seen[round % 15] = id;
        world.run_for(Duration::from_millis(200));
        assert_eq!(
            world.paths_up().get(&id),
            Some(&true),
            "round {round}: {id} is not up"
        );
    }
    let server = world
        .session(Side::Server)
        .expect("a session")
        .snapshot(world.now());
    assert_eq!(server.paths.len(), 16);
    transfers(&mut world);
}

#[test]
fn late_packets_of_a_closed_path_are_dropped_and_open_nothing() {
    let mut world = connected(2);
    world.network_mut().capture();
    transfers(&mut world);
    let captured = world.network_mut().take_captured();
    let second = *world.paths_up().keys().last().expect("two paths");
    world.close_path(Side::Client, second);
    world.run_for(SECOND);
    for Captured {
        to, tuple, data, ..
    } in captured
    {
        if to == Side::Server {
            world.inject(to, tuple, data);
        }
    }
    let drops = &world.host(Side::Server).endpoint().counters().drops;
    assert!(drops.of(DropReason::NoSuchPath) > 50, "{drops:?}");
    let server = world
        .session(Side::Server)
        .expect("a session")
        .snapshot(world.now());
    assert_eq!(server.paths.len(), 1);
}

#[test]
fn a_session_outlives_a_nat_that_forgets_both_ways_while_idle() {
    let mut world = connected(2);
    for link in [LinkId(0), LinkId(1)] {
        world.network_mut().rebind(link, true);
    }
    // Nothing is sent until the keep-alive; then the server learns the new addresses.
    world.run_for(SessionConfig::default().keep_alive + 3 * SECOND);
    transfers(&mut world);
    assert!(world.network().unroutable() < 20);
    let server = world
        .session(Side::Server)
        .expect("a session")
        .snapshot(world.now());
    assert!(
        server
            .paths
            .iter()
            .all(|path| path.tuple.remote.port() == 40_001),
        "{server:?}"
    );
}

#[test]
fn a_full_relay_says_so() {
    let mut setup = setup(1);
    setup.accept.max_sessions = 0;
    let mut world = connecting(setup);
    world.run_for(SECOND);
    let drops = &world.host(Side::Server).endpoint().counters().drops;
    assert!(drops.of(DropReason::Overloaded) > 0);
    assert_eq!(world.host(Side::Server).endpoint().handles().len(), 0);
}

#[test]
fn the_watch_on_amplification_sees_something() {
    let mut world = connected(1);
    world.run_for(SECOND);
    let counts = world
        .network()
        .exchanged()
        .values()
        .next()
        .expect("an address");
    assert!(counts.amplification > 0.3, "{counts:?}");
    assert_eq!(world.network().client_tuple(LinkId(0)).remote, SERVER);
    let up = world.network().counters(LinkId(0), Direction::Up);
    assert!(up.delivered.packets > 5);
}
