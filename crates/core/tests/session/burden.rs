//! What a peer that was let in can make a session's turns cost.

use std::time::Duration as Real;

use tabane_base::Duration;
use tabane_core::{ClassId, TransmitBatch};

use crate::pair::Pair;

/// A session with so many streams on which nothing is under way, in sixteen classes.
fn idle(streams: usize) -> Pair {
    let mut pair = Pair::connected();
    let ids: Vec<_> = (0..streams).map(|_| pair.open_stream()).collect();
    let last = ids[streams - 1];
    // The last one opens all before it.
    pair.write(last, b"hello");
    pair.run(Duration::from_millis(500));
    let (now, class) = (pair.now, ClassId::new(15).expect("a class"));
    pair.session().set_stream_class(now, last, class);
    pair.run(Duration::from_millis(500));
    assert!(pair.server_session().snapshot(now).streams >= streams);
    pair
}

/// What a hundred looks take in which the relay finds nothing to send.
#[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
fn looks(pair: &mut Pair) -> Real {
    let now = pair.now;
    let session = pair.server_session();
    let mut batch = TransmitBatch::new(100_000);
    let since = std::time::Instant::now();
    for _ in 0..100 {
        assert!(!session.poll_transmit(now, &mut batch), "all was said");
    }
    since.elapsed()
}

/// The least of many rounds by turns, however busy the machine.
#[test]
fn idle_streams_cost_a_turn_nothing() {
    let (mut few, mut many) = (idle(1), idle(4_096));
    let rounds = (0..50).map(|_| (looks(&mut few), looks(&mut many)));
    let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
    let (one, all) = least.expect("fifty");
    println!("100 looks: {one:?} with one stream, {all:?} with 4,096");
    assert!(all < 5 * one, "{one:?} with one stream, {all:?} with 4,096");
}
