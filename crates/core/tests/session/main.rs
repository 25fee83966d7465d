//! Two endpoints joined by a perfect wire: the public interface, end to end.
//!
//! Networks that drop, delay and reorder are the simulator's business.

mod burden;
mod door;
mod pair;
mod paths;
mod silence;

use tabane_base::Duration;
use tabane_core::{CloseReason, ConnectError, DatagramOrder, Event, FlowId, Identity, ReadState};

use pair::{Pair, client_tuple};

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

    let id = pair.open_stream();
    let request: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
    let mut written = 0;
    let mut read = Vec::new();
    for _ in 0..1_000 {
        let now = pair.now;
        if written < request.len() {
            written += pair.write(id, &request[written..]);
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
    let stream = pair.open_stream();
    pair.write(stream, b"before");
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
    pair.write(stream, b" and after");
    let now = pair.now;
    pair.session().finish(now, stream).expect("open");
    pair.run(Duration::from_secs(1));
    let read = pair.server_session().peek(stream);
    assert_eq!(read, Ok(ReadState::Data(b"before and after")));
    assert_eq!(told(&pair), 1);
}

#[test]
fn datagrams_of_any_size_arrive() {
    let mut pair = Pair::connected();
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
