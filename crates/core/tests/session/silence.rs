//! Paths on which nothing comes back: when that is the path's doing, and how soon it is noticed.

use tabane_base::Duration;
use tabane_core::{CloseReason, Event, FourTuple, Identity, PathStatus, SocketId};

use super::pair::{DELAY, Pair, client_address, client_tuple};

/// Two paths, and a packet of each that waits for its answer; then nothing for a tenth of a second.
fn unheard() -> Pair {
    let mut pair = Pair::connected();
    let second = pair.open_path(1);
    pair.run(Duration::from_millis(300));
    assert!(pair.events.contains(&Event::PathUp(second)));
    let id = pair.open_stream();
    let request = vec![7; 100_000];
    assert!(pair.write(id, &request) > 0);
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
    let mut pair = Pair::connected();
    let goes_on_at = pair.now + Duration::from_millis(2_400);
    let second = pair.open_path(1);
    let id = pair.open_stream();
    let write = |pair: &mut Pair| assert_eq!(pair.write(id, &[7; 1_000]), 1_000);
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
    assert_eq!(pair.write(id, &[7; 1_000]), 1_000);
    while paths(&mut pair)[0].status == PathStatus::Active {
        pair.run(STEP);
        let took = pair.now.since(gone_at);
        assert!(took < Duration::from_secs(5), "unnoticed for {took:?}");
    }
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
