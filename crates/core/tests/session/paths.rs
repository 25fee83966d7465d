//! A session's paths: opened, measured, left alone at rest, given up.

use tabane_base::Duration;
use tabane_core::{Event, Session, SessionStatus, SocketId, TransmitBatch};

use super::pair::{DELAY, Pair, client_tuple};

#[test]
fn a_second_path_is_validated_and_used() {
    let mut pair = Pair::connected();
    let path = pair.open_path(1);
    pair.run(Duration::from_millis(100));
    assert!(
        pair.events.contains(&Event::PathUp(path)),
        "{:?}",
        pair.events
    );
    assert!(
        pair.server_events.contains(&Event::PathUp(path)),
        "{:?}",
        pair.server_events
    );
}

/// ACK [P-5.2] of one packet of a path that arrived at this time by the peer's clock.
fn ack(path: u64, number: u64, at_us: u64) -> Vec<u8> {
    let mut frame = vec![0x02];
    for n in [path, number, 0, at_us, 0, 0, 0] {
        frame.extend_from_slice(&(n | 0xc000_0000_0000_0000).to_be_bytes());
    }
    frame
}

/// One-way times are the peer's word.
#[test]
fn paths_may_be_said_to_be_as_far_apart_as_numbers_go() {
    let mut pair = Pair::connected();
    pair.open_path(1);
    pair.run(Duration::from_millis(100));
    let stream = pair.open_stream();
    // Half of all nanoseconds, from below and from above: signed, the largest and the smallest.
    let half_us = (1_u64 << 63) / 1_000;
    for round in 0..10 {
        let now = pair.now + Duration::from_millis(round * 5);
        let session = pair.session();
        _ = session.write(now, stream, &[7; 5_000]).expect("open");
        let mut batch = TransmitBatch::new(100_000);
        while session.poll_transmit(now, &mut batch) {}
        let paths = session.snapshot(now).paths;
        for (path, at_us) in paths.iter().zip([half_us, half_us + 2_000_000]) {
            let last = path.sent_packets - 1;
            session.fuzz_frames(now, &ack(path.id.get().into(), last, at_us));
        }
        assert_eq!(session.snapshot(now).status, SessionStatus::Connected);
    }
}

/// Acknowledgements of the slow link return by the fast one.
#[test]
fn the_round_trip_of_a_link_is_its_own_and_costs_nothing_at_rest() {
    let millis = Duration::from_millis;
    let mut pair = Pair::new(None, None);
    pair.delays[1] = millis(30);
    pair.run(millis(200));
    pair.open_path(1);
    pair.run(millis(1_500));
    // The link's own, and by acknowledgements.
    let seen = |pair: &mut Pair| {
        let now = pair.now;
        let slow = pair.session().snapshot(now).paths.remove(1);
        let (own, _) = slow.link_round_trip().expect("measured");
        (own, slow.rtt_min)
    };
    assert_eq!(seen(&mut pair).0, millis(60));
    // As it is later, for whoever looks while the path is in use.
    pair.delays[1] = millis(45);
    let id = pair.open_stream();
    pair.write(id, &[7; 2_000_000]);
    pair.run(millis(300));
    let now = pair.now;
    assert!(pair.session().measure_round_trips(now));
    pair.run(millis(500));
    let (own, by_acks) = seen(&mut pair);
    assert_eq!(own, millis(90));
    assert!(by_acks < millis(70), "{by_acks:?}");
    let now = pair.now;
    assert!(!pair.session().measure_round_trips(now), "too often");
    // The question's answer does not make the path busy for the next.
    pair.run(millis(2_000));
    let now = pair.now;
    assert!(!pair.session().measure_round_trips(now), "talks to itself");
    pair.run(millis(3_000));
    let now = pair.now;
    assert!(!pair.session().measure_round_trips(now), "woken from rest");
}

/// Nobody knows yet what a path delivers on which hardly anything was sent: what its window would
/// be in a round trip of 2 ms, all the 600 ms of the other one, were 2 MB.
#[test]
fn a_fresh_path_beside_a_far_one_does_not_let_a_stream_hold_what_it_never_delivered() {
    let mut pair = Pair::new(None, None);
    pair.delays[0] = Duration::from_millis(1);
    pair.delays[1] = Duration::from_millis(300);
    pair.run(Duration::from_millis(200));
    pair.open_path(1);
    pair.run(Duration::from_millis(1_500));
    let id = pair.open_stream();
    let now = pair.now;
    let windows = pair.session().snapshot(now).paths;
    let windows: u64 = windows.iter().map(|path| path.cwnd.get()).sum();
    let limit = pair.session().stream_limit(id) as u64;
    assert!(
        limit < 4 * windows + 32_000,
        "{limit} bytes, {windows} in flight"
    );
}

/// Both are looked at all the time, and a stream is open on which nothing passes.
#[test]
fn two_ends_at_rest_have_nothing_to_say() {
    let mut pair = Pair::connected();
    pair.open_path(1);
    pair.run(Duration::from_millis(300));
    let id = pair.open_stream();
    assert_eq!(pair.write(id, &[7; 100_000]), 100_000);
    let mut sent = Vec::new();
    for _ in 0..60 {
        for _ in 0..5 {
            let now = pair.now;
            pair.session().measure_round_trips(now);
            pair.server_session().measure_round_trips(now);
            pair.run(Duration::from_millis(200));
        }
        let now = pair.now;
        let packets = |session: &Session| {
            let paths = session.snapshot(now).paths.into_iter();
            paths.map(|path| path.sent_packets).sum::<u64>()
        };
        sent.push(packets(pair.session()) + packets(pair.server_session()));
    }
    // Keep-alives of two paths, every 15 s, with what answers them; it was 8 packets a second.
    let spoken = sent[4..]
        .windows(2)
        .filter(|seconds| seconds[1] > seconds[0]);
    let spoken = spoken.count();
    assert!(spoken <= 8, "in {spoken} of 55 s: {sent:?}");
}

/// A peer that asks without end, and acknowledges nothing of what it is told.
#[test]
fn answers_that_nobody_acknowledges_take_no_memory() {
    let mut pair = Pair::connected();
    for n in 0..1_000_u64 {
        let now = pair.now;
        let mut challenge = vec![0x1a];
        challenge.extend_from_slice(&n.to_be_bytes());
        pair.server_session().fuzz_frames(now, &challenge);
        pair.drain();
        pair.wire.clear();
    }
    let now = pair.now;
    let path = pair.server_session().snapshot(now).paths.remove(0);
    assert!(path.sent_packets > 1_000, "{}", path.sent_packets);
    // Of 1.2 MB that were sent.
    assert!(path.in_flight.get() < 500_000, "{}", path.in_flight);
}

/// As a link that comes and goes while nothing leaves: news of closed paths that fill packets.
#[test]
fn however_many_paths_are_given_up_at_once_the_other_end_hears_of_each() {
    let mut pair = Pair::connected();
    let now = pair.now;
    for _ in 0..1_000 {
        let session = pair.session();
        let path = session.open_path(now, client_tuple(1)).expect("room");
        session.close_path(now, path).expect("it is open");
    }
    pair.drain();
    let largest = pair.wire.iter().map(|(.., datagram)| datagram.len()).max();
    assert!(largest.is_some_and(|len| len <= 1_500), "{largest:?}");
    pair.run(Duration::from_millis(500));
    let path = pair.open_path(1);
    pair.run(Duration::from_millis(100));
    assert!(pair.server_events.contains(&Event::PathUp(path)));
}

/// As with modems that have addresses and no network: none of what is tried meanwhile arrives, nor
/// can be told of while nothing carries.
#[test]
fn a_session_whose_every_path_is_gone_comes_back_after_whatever_was_tried_in_vain() {
    let mut pair = Pair::connected();
    let now = pair.now;
    pair.session().handle_socket_lost(now, SocketId(0));
    for _ in 0..1_000 {
        let path = pair.open_path(1);
        pair.drain();
        pair.wire.clear();
        pair.session().close_path(now, path).expect("it is open");
    }
    let path = pair.open_path(1);
    pair.run(Duration::from_millis(100));
    assert!(pair.events.contains(&Event::PathUp(path)));
}

/// The other way around, what is tried makes a path at the server each time.
#[test]
fn a_session_comes_back_after_a_while_in_which_nothing_came_from_the_server() {
    let mut pair = Pair::connected();
    let now = pair.now;
    pair.session().handle_socket_lost(now, SocketId(0));
    // Given up by nobody.
    let kept = pair.open_path(2);
    for _ in 0..100 {
        let path = pair.open_path(1);
        for _ in 0..100 {
            pair.run(DELAY * 3 / 5);
            pair.wire.retain(|(_, to_server, ..)| *to_server);
        }
        let now = pair.now;
        pair.session().close_path(now, path).expect("it is open");
    }
    let path = pair.open_path(1);
    pair.run(Duration::from_millis(100));
    assert!(pair.events.contains(&Event::PathUp(path)));
    // Nor has it made room for the others.
    pair.run(Duration::from_millis(3_500));
    assert!(pair.events.contains(&Event::PathUp(kept)));
    let now = pair.now;
    assert_eq!(pair.server_session().snapshot(now).paths.len(), 2);
}

/// Every other one of those tried arrives: what is forgotten at the server has gaps.
#[test]
fn however_many_paths_are_tried_in_vain_the_server_bears_with_it() {
    let mut pair = Pair::connected();
    let now = pair.now;
    pair.session().handle_socket_lost(now, SocketId(0));
    for _ in 0..1_000 {
        for arrives in [true, false] {
            let path = pair.open_path(1);
            match arrives {
                true => pair.run(DELAY),
                false => pair.drain(),
            }
            pair.wire.clear();
            let now = pair.now;
            pair.session().close_path(now, path).expect("it is open");
        }
    }
    let now = pair.now;
    let seen = pair.server_session().snapshot(now);
    assert_eq!(seen.status, SessionStatus::Connected);
    assert_eq!(seen.paths.len(), 16);
}
