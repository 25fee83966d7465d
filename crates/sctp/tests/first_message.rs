//! The endless loop of usrsctp 0.9.5: the first message of an association goes to another path than
//! the primary one, while CMT is off. Should it come back, the watchdog ends this test.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tabane_sctp::{
    Event, Families, Incoming, LinkId, Message, Multipath, PathState, PathTuple, Sent, Settings,
    Stack,
};

const HERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2)),
    IpAddr::V4(Ipv4Addr::new(192, 168, 2, 2)),
];
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 1));

#[test]
fn the_first_message_may_go_to_any_path() {
    let mut stack = Stack::start(&Settings {
        multipath: Multipath::Primary,
        ..Settings::default()
    })
    .unwrap();
    let sender = stack.open(Families::V4, &HERE, 4_001, 0).unwrap();
    let listener = stack.open(Families::V4, &[THERE], 4_000, 0).unwrap();
    stack.listen(listener).unwrap();
    let remote = SocketAddr::new(THERE, 9_899);
    let link = |number| LinkId(number);
    let ways = [1, 2].map(|number| PathTuple {
        link: link(number),
        remote,
    });
    let association = stack.connect(sender, &ways, 4_000).unwrap();
    let mut heard = Vec::new();
    let (mut up, mut sent, mut by_link) = (false, false, [0, 0]);
    for _ in 0..10_000 {
        // The library sees too little time pass rather than too much.
        std::thread::sleep(Duration::from_millis(1));
        stack.handle_timers(Duration::from_millis(1));
        while let Some(transmit) = stack.poll_transmit() {
            let (from, to, over) = match (transmit.path, transmit.link) {
                (Some(_), Some(LinkId(number))) => {
                    let index = number as usize - 1;
                    by_link[index] += tabane_sctp::packet::data_bytes(&transmit.payload);
                    (SocketAddr::new(HERE[index], 9_000), THERE, link(0))
                }
                _ => {
                    let to = transmit.remote.ip();
                    (remote, to, link(if to == HERE[0] { 1 } else { 2 }))
                }
            };
            stack.handle_packet(over, to, from, &transmit.payload);
        }
        while let Some(incoming) = stack.poll_event(sender) {
            up |= matches!(incoming, Incoming::Event(Event::Up { .. }));
        }
        while let Some(incoming) = stack.poll_event(listener) {
            if let Incoming::Piece(piece) = incoming {
                heard.extend_from_slice(piece.data);
            }
        }
        // The stack takes no message for a path that has not answered yet.
        let paths = stack.paths(sender);
        let second = paths.iter().find(|path| path.way == ways[1]).unwrap();
        if up && second.state == PathState::Active && !sent {
            let message = Message {
                data: b"first",
                stream: 0,
                protocol: 0,
                path: Some(second.path),
            };
            sent = stack.send(sender, association, message).unwrap() == Sent::Queued;
        }
        if heard == b"first" {
            assert_eq!(by_link, [0, 5]);
            return;
        }
    }
    panic!("up: {up}, sent: {sent}, heard: {heard:?}, by link: {by_link:?}");
}
