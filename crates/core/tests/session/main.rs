//! Two endpoints joined by a perfect wire: the public interface, end to end.
//!
//! Networks that drop, delay and reorder are the simulator's business.

mod door;
mod pair;

use tabane_base::{Duration, Instant};
use tabane_core::{
    CloseReason, ConnectError, DatagramOrder, Endpoint, Event, FlowId, FourTuple, Identity,
    Inquiry, InquiryAnswer, PathStatus, ReadState, ServerConfig, SessionConfig, SessionStatus,
    SocketId, TransmitBatch,
};

use pair::{DELAY, Pair, SERVER, client_address, client_tuple};

#[test]
fn connects_and_carries_a_stream_both_ways() {
    let mut pair = Pair::new(None, Some(b"secret".to_vec()));
    pair.run(Duration::from_millis(200));
    assert!(pair.events.contains(&Event::Connected), "{:?}", pair.events);
    let token = Some(b"secret".to_vec());
    let shown = pair
        .server_events
        .iter()
        .any(|event| matches!(event, Event::Authorise { token: shown, .. } if *shown == token));
    assert!(shown, "{:?}", pair.server_events);

    let now = pair.now;
    let id = pair.session().open_stream(now).expect("connected");
    let request: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
    let mut written = 0;
    let mut read = Vec::new();
    for _ in 0..1_000 {
        let now = pair.now;
        if written < request.len() {
            written += pair
                .session()
                .write(now, id, &request[written..])
                .expect("open");
            if written == request.len() {
                pair.session().finish(now, id).expect("open");
            }
        }
        pair.run(Duration::from_millis(5));
        let now = pair.now;
        loop {
            match pair.server_session().peek(id) {
                Ok(ReadState::Data(data)) => {
                    let n = data.len();
                    read.extend_from_slice(data);
                    pair.server_session().consume(now, id, n);
                }
                Ok(ReadState::Finished) => {
                    assert_eq!(read, request);
                    pair.server_session().finish(now, id).expect("open");
                    pair.run(Duration::from_millis(100));
                    assert_eq!(pair.session().peek(id), Ok(ReadState::Finished));
                    let streams = pair.session().snapshot(now).streams;
                    assert_eq!(streams, 0, "both sides are done");
                    assert!(pair.session().peek(id).is_err());
                    return;
                }
                _ => break,
            }
        }
    }
    panic!("only {} of {} bytes arrived", read.len(), request.len());
}

#[test]
fn a_second_path_is_validated_and_used() {
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
    let now = pair.now;
    let path = pair
        .session()
        .open_path(now, client_tuple(1))
        .expect("connected");
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

/// One-way times are the peer's word (shared/design/security.md, L17).
#[test]
fn paths_may_be_said_to_be_as_far_apart_as_numbers_go() {
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
    let now = pair.now;
    let second = pair.session().open_path(now, client_tuple(1));
    second.expect("connected");
    pair.run(Duration::from_millis(100));
    let now = pair.now;
    let stream = pair.session().open_stream(now).expect("connected");
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
    let now = pair.now;
    let path = pair.session().open_path(now, client_tuple(1));
    path.expect("connected");
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
    let now = pair.now;
    let id = pair.session().open_stream(now).expect("connected");
    let _ = pair.session().write(now, id, &[7; 2_000_000]);
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
    let now = pair.now;
    let path = pair.session().open_path(now, client_tuple(1));
    path.expect("connected");
    pair.run(Duration::from_millis(1_500));
    let now = pair.now;
    let id = pair.session().open_stream(now).expect("connected");
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
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
    let now = pair.now;
    let second = pair.session().open_path(now, client_tuple(1));
    second.expect("connected");
    pair.run(Duration::from_millis(300));
    let now = pair.now;
    let id = pair.session().open_stream(now).expect("connected");
    let n = pair.session().write(now, id, &[7; 100_000]);
    assert_eq!(n, Ok(100_000));
    let mut sent = Vec::new();
    for _ in 0..60 {
        for _ in 0..5 {
            let now = pair.now;
            pair.session().measure_round_trips(now);
            pair.server_session().measure_round_trips(now);
            pair.run(Duration::from_millis(200));
        }
        let now = pair.now;
        let packets = |session: &tabane_core::Session| {
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
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
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

/// Two paths, and a packet of each that waits for its answer; then nothing for a tenth of a second.
fn unheard() -> Pair {
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
    let now = pair.now;
    let second = pair.session().open_path(now, client_tuple(1));
    let second = second.expect("connected");
    pair.run(Duration::from_millis(300));
    assert!(pair.events.contains(&Event::PathUp(second)));
    let now = pair.now;
    let id = pair.session().open_stream(now).expect("connected");
    let request = vec![7; 100_000];
    assert!(pair.session().write(now, id, &request).expect("open") > 0);
    pair.drain();
    let now = pair.now;
    let sent = |n: u32| {
        pair.wire
            .iter()
            .any(|(_, up, tuple, _)| *up && tuple.remote == client_address(n))
    };
    assert!(sent(0) && sent(1), "both are in use at {now}");
    pair.now = now + Duration::from_millis(100);
    pair
}

fn falls_silent(pair: &Pair) -> bool {
    let is_down = |event: &Event| matches!(event, Event::PathDown(..));
    pair.events.iter().any(is_down)
}

#[test]
fn silence_while_the_driver_was_not_run_is_not_the_path_s() {
    // It ran, and heard nothing.
    let mut pair = unheard();
    let now = pair.now;
    pair.session().handle_timeout(now);
    pair.drain();
    assert!(falls_silent(&pair));
    // It did not run.
    let mut pair = unheard();
    let now = pair.now;
    pair.session().handle_stall(now);
    pair.session().handle_timeout(now);
    pair.drain();
    assert!(!falls_silent(&pair));
    // What waited for the other end arrives, and its answers.
    pair.run(Duration::from_millis(200));
    assert!(!falls_silent(&pair), "{:?}", pair.events);
}

#[test]
fn a_dead_path_is_found_out_by_a_driver_that_is_never_in_time() {
    let mut pair = unheard();
    for _ in 0..8 {
        let now = pair.now;
        pair.session().handle_stall(now);
        pair.session().handle_timeout(now);
        pair.drain();
        pair.wire.clear();
        pair.now = now + Duration::from_millis(100);
    }
    assert!(falls_silent(&pair));
}

/// A relay that stands still for a while and then is gone for good: what waited for it says nothing
/// of how long an answer takes by a path that was opened meanwhile.
#[test]
fn how_long_a_peer_stood_still_does_not_delay_that_a_new_path_s_end_is_noticed() {
    const STEP: Duration = Duration::from_millis(50);
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
    let goes_on_at = pair.now + Duration::from_millis(2_400);
    let now = pair.now;
    let second = pair.session().open_path(now, client_tuple(1));
    let second = second.expect("connected");
    let id = pair.session().open_stream(now).expect("connected");
    let write = |pair: &mut Pair| {
        let now = pair.now;
        assert_eq!(
            pair.session().write(now, id, &[7; 1_000]).expect("open"),
            1_000
        );
    };
    write(&mut pair);
    while pair.now < goes_on_at {
        pair.delays = [goes_on_at.since(pair.now) + DELAY; 9];
        pair.run(STEP);
    }
    pair.delays = [DELAY; 9];
    pair.run(Duration::from_millis(100));
    assert!(pair.events.contains(&Event::PathUp(second)));
    let is_in_use = |pair: &mut Pair| {
        let now = pair.now;
        let paths = pair.session().snapshot(now).paths;
        let mut active = paths
            .iter()
            .filter(|path| path.status == PathStatus::Active);
        active.any(|path| path.id == second)
    };
    assert!(is_in_use(&mut pair));
    pair.delays = [Duration::from_secs(3_600); 9];
    let gone_at = pair.now;
    write(&mut pair);
    while is_in_use(&mut pair) {
        pair.run(STEP);
        let took = pair.now.since(gone_at);
        assert!(
            took < Duration::from_millis(1_500),
            "unnoticed for {took:?}"
        );
    }
}

/// As after a peer has stood still: three probes of a path that was measured so would take 16 s.
#[test]
fn the_only_path_is_not_waited_for_any_longer_where_its_first_answer_took_a_second() {
    const STEP: Duration = Duration::from_millis(50);
    let mut pair = Pair::new(None, None);
    pair.delays = [Duration::from_millis(535); 9];
    let paths = |pair: &mut Pair| {
        let now = pair.now;
        pair.session().snapshot(now).paths
    };
    let id = loop {
        pair.run(STEP);
        let now = pair.now;
        if let Ok(id) = pair.session().open_stream(now) {
            break id;
        }
    };
    let path = &paths(&mut pair)[0];
    let pto = path.rtt_smoothed + 4 * path.rtt_variation;
    assert!(pto > Duration::from_secs(3), "{path:?}");
    pair.delays = [Duration::from_secs(3_600); 9];
    pair.wire.clear();
    let gone_at = pair.now;
    let written = pair.session().write(gone_at, id, &[7; 1_000]);
    assert_eq!(written.expect("open"), 1_000);
    while paths(&mut pair)[0].status == PathStatus::Active {
        pair.run(STEP);
        let took = pair.now.since(gone_at);
        assert!(took < Duration::from_secs(5), "unnoticed for {took:?}");
    }
}

/// As a link that comes and goes while nothing leaves: news of closed paths that fill packets.
#[test]
fn however_many_paths_are_given_up_at_once_the_other_end_hears_of_each() {
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
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
    let now = pair.now;
    let path = pair.session().open_path(now, client_tuple(1));
    let path = path.expect("room");
    pair.run(Duration::from_millis(100));
    assert!(pair.server_events.contains(&Event::PathUp(path)));
}

/// One link towards a relay of two addresses, whose interface goes before anything was heard.
#[test]
fn a_handshake_outlives_the_loss_of_its_only_link_and_ends_in_time() {
    let mut pair = Pair::new(None, None);
    let (now, key) = (pair.now, Identity::from_seed([1; 32]).public_key());
    let other = FourTuple {
        remote: client_address(7),
        ..client_tuple(0)
    };
    let tuples = vec![client_tuple(0), other];
    pair.handle = pair.client.connect(now, key, None, tuples).expect("links");
    pair.session().handle_socket_lost(now, SocketId(0));
    pair.drain();
    pair.wire.clear();
    while !pair.session().is_closed() {
        let (at, _) = pair.session().poll_timeout().expect("it gives up");
        pair.now = at;
        pair.session().handle_timeout(at);
        pair.drain();
        pair.wire.clear();
    }
    let reason = Event::Closed(CloseReason::HandshakeTimeout);
    pair.drain();
    assert!(pair.events.contains(&reason), "{:?}", pair.events);
}

#[test]
fn a_token_that_fits_into_no_packet_is_refused_at_once() {
    let mut pair = Pair::new(None, Some(vec![7; 512]));
    pair.run(Duration::from_millis(200));
    assert!(pair.events.contains(&Event::Connected), "{:?}", pair.events);
    let key = Identity::from_seed([1; 32]).public_key();
    let token = Some(vec![7; 513]);
    let refused = pair
        .client
        .connect(pair.now, key, token, vec![client_tuple(0)]);
    assert_eq!(refused, Err(ConnectError::TokenTooLong));
}

/// What shares a datagram with a session's packet must not keep that session from being drained.
#[test]
fn what_follows_a_packet_of_another_handshake_is_dropped_and_the_first_one_counts() {
    let mut pair = Pair::new(None, None);
    pair.drain();
    let (at, _, tuple, first) = pair.wire.remove(0);
    assert!(first[0] & 0x80 != 0, "a long header");
    let mut other = first.clone();
    other[5] ^= 1;
    let mut both = [first, other].concat();
    let handle = pair.server.handle_datagram(at, tuple, &mut both);
    assert!(handle.is_some_and(|handle| pair.server.session(handle).is_some()));
    assert_eq!(handle, pair.server.poll_incoming());
    assert_eq!(pair.server.handles().len(), 1);
    assert_eq!(pair.server.counters().accepted, 1);
}

#[test]
fn a_wrong_key_and_a_refusal_are_named() {
    let mut pair = Pair::new(Some(Identity::from_seed([9; 32]).public_key()), None);
    pair.run(Duration::from_secs(1));
    assert!(
        pair.events
            .contains(&Event::Closed(CloseReason::WrongPeerKey)),
        "{:?}",
        pair.events
    );
    let mut pair = Pair::new(None, None);
    pair.admit = false;
    pair.run(Duration::from_secs(1));
    assert!(
        pair.events
            .contains(&Event::Closed(CloseReason::Unauthorised)),
        "{:?}",
        pair.events
    );
}

#[test]
fn a_client_is_sent_away_once_whatever_is_lost_and_goes_on_with_what_it_has() {
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_secs(1));
    let now = pair.now;
    let stream = pair.session().open_stream(now).expect("room");
    pair.session().write(now, stream, b"before").expect("room");
    pair.run(Duration::from_millis(100));
    pair.server_session().send_away();
    // The first copy leaves, and is lost.
    pair.drain();
    assert!(pair.wire.iter().any(|(_, to_server, ..)| !to_server));
    pair.wire.clear();
    pair.server_session().send_away();
    pair.run(Duration::from_secs(3));
    let told = |pair: &Pair| {
        let events = pair.events.iter();
        events.filter(|event| **event == Event::SentAway).count()
    };
    assert_eq!(told(&pair), 1);
    let now = pair.now;
    pair.session()
        .write(now, stream, b" and after")
        .expect("room");
    pair.session().finish(now, stream).expect("open");
    pair.run(Duration::from_secs(1));
    let read = pair.server_session().peek(stream);
    assert_eq!(read, Ok(ReadState::Data(b"before and after")));
    assert_eq!(told(&pair), 1);
}

#[test]
fn datagrams_of_any_size_arrive() {
    let mut pair = Pair::new(None, None);
    pair.run(Duration::from_millis(200));
    let now = pair.now;
    for len in [0, 1, 1_200, 1_400, 5_000, 40_000] {
        pair.session()
            .send_datagram(now, FlowId(2), DatagramOrder::AtOnce, &vec![len as u8; len])
            .expect("room");
    }
    pair.run(Duration::from_secs(1));
    let lens: Vec<usize> = std::iter::from_fn(|| pair.server_session().poll_datagram())
        .map(|datagram| datagram.data.len())
        .collect();
    assert_eq!(lens, [0, 1, 1_200, 1_400, 5_000, 40_000]);
}

#[test]
fn only_who_lets_strangers_in_tells_whoever_asks_its_key() {
    let identity = Identity::from_seed([1; 32]);
    let key = identity.public_key();
    let now = Instant::from_millis(1_000);
    for (is_open, expected) in [
        (true, InquiryAnswer::Open(key)),
        (false, InquiryAnswer::Closed),
    ] {
        let config = ServerConfig {
            is_open,
            ..ServerConfig::default()
        };
        let session = SessionConfig::default();
        let server = Endpoint::server(identity.clone(), session, config, [2; 32]);
        let mut server = server.expect("valid");
        let tuple = FourTuple {
            socket: SERVER,
            local_ip: None,
            remote: client_address(0),
        };
        let inquiry = Inquiry::new(77);
        let mut question = inquiry.datagram();
        // A shorter one could be made to flood somebody else.
        let mut short = question[..question.len() - 1].to_vec();
        server.handle_datagram(now, tuple, &mut short);
        let mut batch = TransmitBatch::new(100_000);
        assert!(!server.poll_transmit(now, &mut batch));
        server.handle_datagram(now, tuple, &mut question);
        assert!(server.poll_transmit(now, &mut batch));
        let answer = batch.iter().next().expect("an answer");
        assert_eq!(answer.tuple, tuple);
        assert_eq!(inquiry.read_answer(answer.contents), Some(expected));
        assert!(server.handles().is_empty(), "nothing is kept");
    }
}

#[test]
fn strangers_are_kept_up_to_a_limit_and_leave_room_when_they_give_up() {
    const LIMIT: usize = 3;
    let identity = Identity::from_seed([1; 32]);
    let key = identity.public_key();
    let config = SessionConfig::default();
    let limits = ServerConfig {
        max_handshakes: LIMIT,
        ..ServerConfig::default()
    };
    let mut server = Endpoint::server(identity, config.clone(), limits, [2; 32]).expect("valid");
    let me = Identity::from_seed([3; 32]);
    let mut client = Endpoint::client(me, config.clone(), [4; 32]).expect("valid");
    let mut now = Instant::from_millis(1_000);
    let mut begin = |now, server: &mut Endpoint, n: u32| {
        let handle = client.connect(now, key, None, vec![client_tuple(n)]);
        let session = client.session_mut(handle.expect("a link")).expect("open");
        let mut batch = TransmitBatch::new(100_000);
        while session.poll_transmit(now, &mut batch) {}
        let tuple = FourTuple {
            socket: SERVER,
            local_ip: None,
            remote: client_address(n),
        };
        let first = batch.iter().next().expect("a first flight");
        let mut first = first.contents[..first.segment_size].to_vec();
        server.handle_datagram(now, tuple, &mut first).is_some()
    };
    for n in 0..20 {
        assert_eq!(begin(now, &mut server, n), (n as usize) < LIMIT, "{n}");
    }
    assert_eq!(server.handles().len(), LIMIT);

    now += config.handshake_timeout + Duration::from_millis(1);
    for handle in server.handles() {
        let session = server.session_mut(handle).expect("not reaped");
        session.handle_timeout(now);
        assert!(server.reap(now, handle));
    }
    assert!(begin(now, &mut server, 30), "there is room again");
}
