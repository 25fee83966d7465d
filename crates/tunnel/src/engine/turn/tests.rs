//! Who is looked at once a socket takes data again.

use std::net::UdpSocket as StdUdpSocket;

use tabane_core::{FourTuple, Identity, SessionConfig};
use tabane_linux::UdpBind;
use tabane_linux::udp::BoundUdp;

use super::*;

/// A state with so many sessions that begin at one address, over one socket.
fn begun(sessions: usize, relay: &StdUdpSocket) -> (State, Vec<SessionHandle>) {
    let identity = Identity::from_seed([7; 32]);
    let peer = identity.public_key();
    let endpoint = Endpoint::client(identity, SessionConfig::default(), [9; 32]);
    let mut state = State::new(endpoint.unwrap(), HostMonitor::default()).unwrap();
    let local = "127.0.0.1:0".parse().unwrap();
    let interface = None;
    let bound = BoundUdp::bind(UdpBind { interface, local }).unwrap();
    let tuple = FourTuple {
        socket: state.sockets.adopt("lo", bound, None, false).unwrap(),
        local_ip: None,
        remote: relay.local_addr().unwrap(),
    };
    let begin = |_| {
        let now = state.now();
        let handle = state.endpoint.connect(now, peer, None, vec![tuple]);
        state.host(handle.unwrap()).handle
    };
    let handles = (0..sessions).map(begin).collect();
    (state, handles)
}

/// A relay's one socket is full again and again while anybody receives as fast as the link goes: a
/// thousand others that have nothing to send are not looked at each time.
#[test]
fn once_a_socket_takes_data_again_those_go_on_whom_it_kept_from_it() {
    let relay = StdUdpSocket::bind("127.0.0.1:0").unwrap();
    crate::block_on(async {
        let (mut state, handles) = begun(100, &relay);
        state.sockets.block();
        let kept = [handles[3], handles[50]];
        kept.iter().for_each(|handle| state.touch(*handle));
        assert!(!state.drain());
        assert!(state.touched.is_empty());
        poll_fn(|cx| match state.go_on(cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        assert_eq!(state.touched, kept);
    })
    .unwrap();
}

/// What a thousand looks take at who goes by a connection, beside so many sessions.
fn looked(sessions: usize, relay: &StdUdpSocket) -> std::time::Duration {
    let (mut state, _) = begun(sessions, relay);
    let (stream, _other) = tokio::io::duplex(64);
    let remote = relay.local_addr().unwrap();
    let carrier = state.sockets.streams.attach("lo", Box::new(stream), remote);
    let look = |_| {
        let since = std::time::Instant::now();
        for _ in 0..1_000 {
            assert!(!state.carries_client(carrier));
        }
        since.elapsed()
    };
    (0..20).map(look).min().expect("twenty")
}

/// One whose connection fills and drains, or strangers who connect and say nothing, are not paid
/// for by a look at all others.
#[test]
fn a_connection_that_carries_nobody_costs_no_look_at_all_sessions() {
    let relay = StdUdpSocket::bind("127.0.0.1:0").unwrap();
    crate::block_on(async {
        let (one, all) = (looked(1, &relay), looked(1_000, &relay));
        println!("1,000 looks: {one:?} beside one session, {all:?} beside 1,000");
        assert!(all < 10 * one.max(std::time::Duration::from_micros(10)));
    })
    .unwrap();
}

#[test]
fn sessions_that_come_and_go_by_one_connection_are_forgotten() {
    let relay = StdUdpSocket::bind("127.0.0.1:0").unwrap();
    crate::block_on(async {
        let (mut state, handles) = begun(1_000, &relay);
        let (stream, _other) = tokio::io::duplex(64);
        let remote = relay.local_addr().unwrap();
        let streams = &mut state.sockets.streams;
        let carrier = streams.attach("lo", Box::new(stream), remote);
        for handle in &handles {
            streams.note_users(carrier, &[*handle], |_| false);
        }
        assert!(streams.users(carrier, |_| true).len() < 100);
    })
    .unwrap();
}
