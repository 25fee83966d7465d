//! Associations that nobody takes, as strangers begin them while whoever listens is busy.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tabane_sctp::{
    AssociationId, EndpointId, Event, Families, Incoming, LinkId, PathTuple, Settings, Stack,
};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 1));
const REMOTE: SocketAddr = SocketAddr::new(THERE, 9_899);
const LINK: LinkId = LinkId(1);
const CROWD: usize = 200;

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

/// Those that have come up there.
fn come(stack: &mut Stack, endpoint: EndpointId) -> Vec<AssociationId> {
    let mut come = Vec::new();
    while let Some(incoming) = stack.poll_event(endpoint) {
        if let Incoming::Event(Event::Up { association, .. }) = incoming {
            come.push(association);
        }
    }
    come
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}

#[test]
fn associations_that_nobody_takes_are_few_and_others_come_once_there_is_room() {
    let mut stack = Stack::start(&Settings::default()).unwrap();
    let listener = stack.open(Families::V4, &[THERE], 4_000, 0).unwrap();
    stack.listen(listener).unwrap();
    let before = resident_kb();
    for _ in 0..CROWD {
        let sender = stack.open(Families::V4, &[HERE], 0, 0).unwrap();
        let way = PathTuple {
            link: LINK,
            remote: REMOTE,
        };
        stack.connect(sender, &[way], 4_000).unwrap();
    }
    // Everything has been said by then, and some of it again.
    (0..300).for_each(|_| turn(&mut stack));
    println!("{} kB more", resident_kb().saturating_sub(before));
    let mut there = come(&mut stack, listener);
    let mut all = there.len();
    println!("{all} of {CROWD} at once");
    assert!((1..=128).contains(&all), "{all}");
    for _ in 0..20_000 {
        for association in there {
            stack.abort(listener, association).unwrap();
        }
        turn(&mut stack);
        there = come(&mut stack, listener);
        all += there.len();
        if all == CROWD {
            return;
        }
    }
    panic!("{all} of {CROWD} in all");
}
