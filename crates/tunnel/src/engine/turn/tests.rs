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
