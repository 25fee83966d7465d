//! A stack that talks to itself: a sender with two links, and a listener with one address or two.
//! Packets are handed over at once and in order. Time is the machine's, since the library looks at
//! its clock as well. One stack a process, so every test here is a part of one function.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use tabane_sctp::{
    AssociationId, EndpointId, Event, Incoming, LinkId, Message, PathState, PathTuple, SctpError,
    Sent, Settings, Stack, Transmit,
};

const SENDER_PORT: u16 = 4_001;
const PORT: u16 = 4_000;
const UDP: u16 = 9_899;
const STRANGE_UDP: u16 = 7_777;
const TICK: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(60);
const SENDERS_INDICATION: u32 = 17;
const INDICATION: u32 = 23;
/// The chunk that tells of a change of addresses (RFC 5061 §4.1.1).
const ASCONF: u8 = 0xc1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;

fn link_address(link: u32) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, u8::try_from(link).unwrap(), 2)
}

/// The listener's addresses; its sockets are its link 0.
const HOME: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(192, 168, 101, 1);

struct Network {
    stack: Stack,
    ticked_at: Instant,
    sender: EndpointId,
    listener: EndpointId,
    /// Links that lose everything.
    cut: Vec<u32>,
    /// Links whose packets arrive from another address than they left by.
    translated: Vec<u32>,
    /// How often the sender was told that nobody knows it.
    disowned: usize,
    /// What the sender says of its addresses stays under way here, where there is a place for it.
    late: Option<Vec<Transmit>>,
    /// User data by link of the sender's.
    carried: BTreeMap<u32, usize>,
    received: Vec<u8>,
    news: Vec<Event>,
    /// What somebody else says after each packet of the sender's, in its name, from another port.
    forged: Option<Vec<u8>>,
    /// Packets to another port than the sender's.
    misled: usize,
}

impl Network {
    fn new(stack: Stack, sender: EndpointId, listener: EndpointId) -> Self {
        Self {
            stack,
            ticked_at: Instant::now(),
            sender,
            listener,
            cut: Vec::new(),
            translated: Vec::new(),
            disowned: 0,
            late: None,
            carried: BTreeMap::new(),
            received: Vec::new(),
            news: Vec::new(),
            forged: None,
            misled: 0,
        }
    }

    /// Hands over all packets there are. `false`: nothing happened.
    fn turn(&mut self) -> bool {
        let elapsed = self.ticked_at.elapsed();
        if elapsed >= TICK {
            self.ticked_at += elapsed;
            self.stack.handle_timers(elapsed);
        }
        let mut busy = false;
        while let Some(transmit) = self.stack.poll_transmit() {
            busy = true;
            match transmit.path {
                Some(_) => self.deliver(transmit),
                // From the listener, to an address of one of the sender's links.
                None => {
                    let link = u32::from(transmit.remote.ip().octets()[2]);
                    // What answers an INIT goes where that came from.
                    let is_misled = transmit.remote.port() != UDP;
                    self.misled +=
                        usize::from(is_misled && !has_chunk(&transmit.payload, INIT_ACK));
                    if self.cut.contains(&link) {
                        continue;
                    }
                    self.disowned += usize::from(has_chunk(&transmit.payload, ABORT));
                    let from = SocketAddrV4::new(transmit.local.unwrap(), UDP);
                    let (to, payload) = (link_address(link), &transmit.payload);
                    self.stack.handle_packet(LinkId(link), to, from, payload);
                }
            }
        }
        for endpoint in [self.sender, self.listener] {
            while let Some(incoming) = self.stack.poll_event(endpoint) {
                busy = true;
                match incoming {
                    Incoming::Event(event) => self.news.push(event),
                    Incoming::Piece(piece) => self.received.extend_from_slice(piece.data),
                }
            }
        }
        busy
    }

    /// From the sender: the datagram comes from its link's address.
    fn deliver(&mut self, transmit: Transmit) {
        let link = transmit.link.unwrap().0;
        if self.cut.contains(&link) {
            return;
        }
        if let Some(late) = &mut self.late
            && has_chunk(&transmit.payload, ASCONF)
        {
            late.push(transmit);
            return;
        }
        let data = tabane_sctp::packet::data_bytes(&transmit.payload);
        *self.carried.entry(link).or_default() += data;
        let mut from = link_address(link);
        if self.translated.contains(&link) {
            from = Ipv4Addr::from(u32::from(from) + 75);
        }
        let (to, payload) = (*transmit.remote.ip(), &transmit.payload);
        let socket = SocketAddrV4::new(from, UDP);
        self.stack.handle_packet(LinkId(0), to, socket, payload);
        if let Some(forged) = &self.forged {
            let socket = SocketAddrV4::new(from, STRANGE_UDP);
            self.stack.handle_packet(LinkId(0), to, socket, forged);
        }
    }

    /// Takes turns until it is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(
                Instant::now() < deadline,
                "in vain: {what}; {:?}",
                self.news
            );
            if !self.turn() {
                // Nothing but time makes anything happen.
                std::thread::sleep(TICK);
            }
        }
    }

    fn association(&self) -> AssociationId {
        let up = |event: &Event| match event {
            Event::Up { association, .. } => Some(*association),
            _ => None,
        };
        self.news.iter().find_map(up).expect("it is up")
    }

    /// Sends `data` in messages of 1,200 bytes, and takes turns until it is all there.
    fn transfer(&mut self, association: AssociationId, data: &[u8]) {
        self.received.clear();
        for piece in data.chunks(1_200) {
            let message = Message {
                data: piece,
                stream: 0,
                protocol: 7,
                path: None,
            };
            self.until("room for a message", |world| {
                let sent = world.stack.send(world.sender, association, message);
                sent.unwrap() == Sent::Queued
            });
        }
        self.until("all data", |world| world.received.len() >= data.len());
        assert!(self.received == data, "other bytes, or another order");
    }
}

fn has_chunk(packet: &[u8], kind: u8) -> bool {
    let mut at = 12;
    while let Some(header) = packet.get(at..at + 4) {
        if header[0] == kind {
            return true;
        }
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        at += len.max(4).next_multiple_of(4);
    }
    false
}

fn way(link: u32, host: Ipv4Addr) -> PathTuple {
    PathTuple {
        link: LinkId(link),
        remote: SocketAddrV4::new(host, UDP),
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 3 % 251) as u8).collect()
}

#[test]
fn paths_come_go_and_are_all_used() {
    let mut stack = Stack::start(&Settings::default()).unwrap();
    assert!(matches!(
        Stack::start(&Settings::default()),
        Err(SctpError::Twice)
    ));
    let locals = [link_address(1), link_address(2)];
    let sender = stack
        .open(&locals, SENDER_PORT, SENDERS_INDICATION)
        .unwrap();
    let listener = stack.open(&[HOME, SECOND], PORT, INDICATION).unwrap();
    stack.listen(listener).unwrap();
    let taken = stack.open(&[HOME], PORT, INDICATION);
    assert!(matches!(taken, Err(SctpError::Refused(_))), "{taken:?}");
    // Two links towards one address of the peer's.
    let ways = [way(1, HOME), way(2, HOME)];
    stack.connect(sender, &ways, PORT).unwrap();
    let mut world = Network::new(stack, sender, listener);
    damage(&mut world);
    world.until("an association", |world| {
        let up = |event: &&Event| matches!(event, Event::Up { .. });
        world.news.iter().filter(up).count() == 2
    });
    both_learn_who_the_other_is(&world);
    let association = world.association();
    both_links_carry(&mut world, association);
    who_does_not_know_the_tag_moves_nobody(&mut world, association);
    a_cut_link_is_left_and_comes_back(&mut world, association);
    a_link_that_comes_is_used(&mut world, association);
    who_knows_one_address_not_ends_nothing(&mut world, association);
    all_links_are_replaced_at_once(&mut world, association);
    an_end_is_heard_of(&mut world, association);
}

/// What is no SCTP, or was damaged on the way, changes nothing.
fn damage(world: &mut Network) {
    let from = SocketAddrV4::new(link_address(1), UDP);
    let mut seed = 0x1234_5678_u64;
    for len in 0..200 {
        let mut packet: Vec<u8> = (0..len)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        if len > 4 {
            packet[2..4].copy_from_slice(&PORT.to_be_bytes());
        }
        world.stack.handle_packet(LinkId(0), HOME, from, &packet);
    }
    assert!(world.stack.bad_checksums() > 100);
}

fn both_learn_who_the_other_is(world: &Network) {
    let told: Vec<u32> = world
        .news
        .iter()
        .filter_map(|event| match event {
            Event::Adaptation { indication, .. } => Some(*indication),
            _ => None,
        })
        .collect();
    assert!(
        told.contains(&INDICATION) && told.contains(&SENDERS_INDICATION),
        "{told:?}"
    );
    let mut listed = world.stack.listed(world.sender).to_vec();
    listed.sort();
    assert_eq!(listed, [HOME, SECOND]);
    assert_eq!(world.stack.paths(world.sender).len(), 2);
}

fn both_links_carry(world: &mut Network, association: AssociationId) {
    world.until("both paths", |world| {
        let paths = world.stack.paths(world.sender);
        paths.iter().all(|path| path.state == PathState::Active)
    });
    world.transfer(association, &bytes(600_000));
    let carried = world.carried.clone();
    assert!(
        carried[&1] > 100_000 && carried[&2] > 100_000,
        "{carried:?}"
    );
    for path in world.stack.paths(world.sender) {
        assert!(path.cwnd.get() > 3_000 && path.mtu == 1_392, "{path:?}");
        assert!(path.rto >= Duration::from_millis(600), "{path:?}");
    }
}

/// RFC 6951 §5.4: the tag is looked at before a port is learnt.
fn who_does_not_know_the_tag_moves_nobody(world: &mut Network, association: AssociationId) {
    const INIT: [u8; 20] = [1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4];
    const HEARTBEAT: [u8; 8] = [4, 0, 0, 8, 0, 1, 0, 4];
    for (tag, chunk) in [(0x1122_3344, &HEARTBEAT[..]), (0, &INIT[..])] {
        world.forged = Some(packet_of(tag, chunk));
        world.transfer(association, &bytes(50_000));
        world.forged = None;
        assert_eq!(world.misled, 0, "{chunk:?}");
    }
    // An empty parameter, from which usrsctp 0.9.5 does not come back.
    let empty = [
        &[1, 0, 0, 28][..],
        &INIT[4..],
        &[0xc0, 0, 0, 4, 0x80, 8, 0, 0],
    ]
    .concat();
    world.forged = Some(packet_of(0, &empty));
    world.transfer(association, &bytes(50_000));
    world.forged = None;
    assert!(world.stack.bad_lists() > 0);
}

/// A packet in the sender's name.
fn packet_of(tag: u32, chunk: &[u8]) -> Vec<u8> {
    let [a, b] = SENDER_PORT.to_be_bytes();
    let [c, d] = PORT.to_be_bytes();
    let mut packet = vec![a, b, c, d];
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(chunk);
    // CRC32c, bit by bit.
    let sum = packet.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
        })
    });
    packet[8..12].copy_from_slice(&(!sum).to_le_bytes());
    packet
}

fn a_cut_link_is_left_and_comes_back(world: &mut Network, association: AssociationId) {
    world.cut.push(2);
    world.transfer(association, &bytes(200_000));
    world.until("the cut path to be given up", |world| {
        let paths = world.stack.paths(world.sender);
        paths.iter().any(|path| path.state == PathState::Inactive)
    });
    world.cut.clear();
    world.until("the path to come back", |world| {
        let paths = world.stack.paths(world.sender);
        paths.iter().all(|path| path.state == PathState::Active)
    });
}

/// The host gets a third link: the peer is told by ASCONF, and the way becomes a path.
fn a_link_that_comes_is_used(world: &mut Network, association: AssociationId) {
    let (sender, third) = (world.sender, link_address(3));
    world.late = Some(Vec::new());
    world.stack.add_local(sender, LinkId(3), third).unwrap();
    let path = world.stack.add_way(sender, way(3, SECOND)).unwrap();
    assert_eq!(world.stack.add_way(sender, way(3, SECOND)), Some(path));
    // Until the peer knows, nothing leaves that way: it would answer by an ABORT.
    world.transfer(association, &bytes(200_000));
    world.until("the news", |world| {
        world.late.as_ref().is_some_and(|late| !late.is_empty())
    });
    assert_eq!(world.carried.get(&3), None);
    for transmit in world.late.take().unwrap() {
        world.deliver(transmit);
    }
    world.until("the new path", |world| {
        let paths = world.stack.paths(world.sender);
        let new = paths.iter().find(|status| status.path == path).unwrap();
        new.state == PathState::Active
    });
    world.transfer(association, &bytes(600_000));
    assert!(world.carried[&3] > 50_000, "{:?}", world.carried);
    // And goes again.
    world.stack.set_way(sender, path, None);
    world.transfer(association, &bytes(100_000));
    assert_eq!(world.stack.paths(sender).len(), 2);
}

/// As behind a translator of addresses: the peer answers packets from an address that it was not
/// told of as it does those of strangers (RFC 9260 §8.4).
fn who_knows_one_address_not_ends_nothing(world: &mut Network, association: AssociationId) {
    let sender = world.sender;
    let local = link_address(4);
    world.stack.add_local(sender, LinkId(4), local).unwrap();
    world.translated.push(4);
    let path = world.stack.add_way(sender, way(4, HOME)).unwrap();
    world.until("the answer to a probe", |world| world.disowned > 0);
    world.transfer(association, &bytes(600_000));
    let paths = world.stack.paths(sender);
    let new = paths.iter().find(|status| status.path == path).unwrap();
    assert_eq!(new.state, PathState::Unconfirmed);
    world.stack.set_way(sender, path, None);
}

/// Every address that the peer knows is gone before another comes; data is under way.
fn all_links_are_replaced_at_once(world: &mut Network, association: AssociationId) {
    let sender = world.sender;
    world.cut = vec![1, 2, 3, 4];
    for status in world.stack.paths(sender) {
        world.stack.set_way(sender, status.path, None);
    }
    world.received.clear();
    for piece in bytes(200_000).chunks(1_200) {
        let message = Message {
            data: piece,
            stream: 0,
            protocol: 7,
            path: None,
        };
        let sent = world.stack.send(sender, association, message).unwrap();
        assert_eq!(sent, Sent::Queued);
    }
    let pause = Instant::now() + Duration::from_millis(700);
    world.until("a timeout", |_| Instant::now() > pause);
    assert!(world.received.is_empty());
    let local = link_address(5);
    world.stack.add_local(sender, LinkId(5), local).unwrap();
    let path = world.stack.add_way(sender, way(5, HOME)).unwrap();
    world.until("what was under way", |world| {
        world.received.len() >= 200_000
    });
    assert!(
        world.received == bytes(200_000),
        "other bytes, or another order"
    );
    world.transfer(association, &bytes(300_000));
    let paths = world.stack.paths(sender);
    let new = paths.iter().find(|status| status.path == path).unwrap();
    assert_eq!(new.state, PathState::Active);
}

fn an_end_is_heard_of(world: &mut Network, association: AssociationId) {
    world.stack.shutdown(world.sender, association).unwrap();
    world.until("the end", |world| {
        let closed = |event: &&Event| matches!(event, Event::Closed { .. });
        world.news.iter().filter(closed).count() == 2
    });
    let message = Message {
        data: b"late",
        stream: 0,
        protocol: 0,
        path: None,
    };
    assert!(
        world
            .stack
            .send(world.sender, association, message)
            .is_err()
    );
    world.stack.close(world.sender);
    while world.turn() {}
}
