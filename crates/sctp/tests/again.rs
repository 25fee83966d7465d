//! One association after the other, each accepted into an endpoint of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tabane_sctp::{
    EndpointId, Event, Families, Incoming, LinkId, Message, PathTuple, Sent, Settings, Stack,
};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 1));
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 2, 2));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 101, 1));
const REMOTE: SocketAddr = SocketAddr::new(THERE, 9_899);
const LINK: LinkId = LinkId(1);

fn turn(stack: &mut Stack) {
    // The library looks at the machine's clock as well.
    std::thread::sleep(Duration::from_millis(1));
    stack.handle_timers(Duration::from_millis(1));
    while let Some(transmit) = stack.poll_transmit() {
        let payload = &transmit.payload;
        match transmit.path {
            Some(_) => stack.handle_packet(LinkId(0), THERE, SocketAddr::new(HERE, 9_000), payload),
            None => stack.handle_packet(LINK, HERE, REMOTE, payload),
        }
    }
}

fn event(stack: &mut Stack, endpoint: EndpointId, wanted: fn(&Event) -> bool) -> Event {
    for _ in 0..20_000 {
        while let Some(incoming) = stack.poll_event(endpoint) {
            if let Incoming::Event(event) = incoming
                && wanted(&event)
            {
                return event;
            }
        }
        turn(stack);
    }
    panic!("in vain");
}

fn heard(stack: &mut Stack, endpoint: EndpointId) -> Vec<u8> {
    for _ in 0..20_000 {
        while let Some(incoming) = stack.poll_event(endpoint) {
            if let Incoming::Piece(piece) = incoming {
                return piece.data.to_vec();
            }
        }
        turn(stack);
    }
    panic!("in vain");
}

#[test]
fn associations_follow_each_other() {
    let mut stack = Stack::start(&Settings::default()).unwrap();
    let listener = stack
        .open(
            Families::V4,
            &[THERE, OTHER, IpAddr::V4(Ipv4Addr::LOCALHOST)],
            4_000,
            0,
        )
        .unwrap();
    stack.listen(listener).unwrap();
    let up = |event: &Event| matches!(event, Event::Up { .. });
    let closed = |event: &Event| matches!(event, Event::Closed { .. });
    for _ in 0..4 {
        let sender = stack.open(Families::V4, &[HERE, SECOND], 0, 0).unwrap();
        let way = PathTuple {
            link: LINK,
            remote: REMOTE,
        };
        let association = stack.connect(sender, &[way], 4_000).unwrap();
        event(&mut stack, sender, up);
        let Event::Up {
            association: theirs,
            ..
        } = event(&mut stack, listener, up)
        else {
            unreachable!("it is one")
        };
        let accepted = stack.accept(listener, theirs).unwrap();
        // Both ways, also by the accepted endpoint.
        for (from, to, by) in [(sender, accepted, association), (accepted, sender, theirs)] {
            let message = Message {
                data: b"hello",
                stream: 0,
                protocol: 9,
                path: None,
            };
            assert_eq!(stack.send(from, by, message).unwrap(), Sent::Queued);
            assert_eq!(heard(&mut stack, to), b"hello");
        }
        stack.shutdown(sender, association).unwrap();
        event(&mut stack, sender, closed);
        event(&mut stack, accepted, closed);
        // After the end there is nothing to read, however often one asks.
        for endpoint in [sender, accepted] {
            assert!(stack.poll_event(endpoint).is_none());
        }
        stack.close(sender);
        stack.close(accepted);
    }
}
