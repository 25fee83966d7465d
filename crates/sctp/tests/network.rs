//! A stack that talks to itself: a sender with two links, and a listener with one address or two.
//! Packets are handed over at once and in order. Time is the machine's, since the library looks at
//! its clock as well. One stack a process, so every test here is a part of one function.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use tabane_sctp::{
    AssociationId, EndpointId, Event, Families, Incoming, LinkId, Message, PathState, PathTuple,
    SctpError, Sent, Settings, Stack, Transmit,
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

/// By which addresses the same is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cast {
    V4,
    V6,
    /// Links of either family by turns, those of IPv4 with private addresses or with global ones.
    PrivateAndV6,
    GlobalAndV6,
}

/// Tells a process of this program which, by its name.
const CAST: &str = "TABANE_TEST_CAST";

impl Cast {
    fn of_this_process() -> Self {
        let named = std::env::var(CAST).unwrap_or_default();
        let all = [Self::V6, Self::PrivateAndV6, Self::GlobalAndV6];
        let named = all.into_iter().find(|cast| format!("{cast:?}") == named);
        named.unwrap_or(Self::V4)
    }

    fn is_v6(self, network: u32) -> bool {
        match self {
            Self::V4 => false,
            Self::V6 => true,
            Self::PrivateAndV6 | Self::GlobalAndV6 => network.is_multiple_of(2),
        }
    }

    fn address(self, network: u32, host: u8) -> IpAddr {
        let third = u8::try_from(network).unwrap();
        match self.is_v6(network) {
            true => Ipv6Addr::new(0xfd00, 0, 0, third.into(), 0, 0, 0, host.into()).into(),
            false if self == Self::GlobalAndV6 => Ipv4Addr::new(198, 51, third, host).into(),
            false => Ipv4Addr::new(192, 168, third, host).into(),
        }
    }

    fn link(self, link: u32) -> IpAddr {
        self.address(link, 2)
    }

    /// The listener's addresses; its sockets are its link 0.
    fn homes(self) -> [IpAddr; 2] {
        [self.address(101, 1), self.address(102, 1)]
    }

    /// The one of them that a link leads to.
    fn home(self, link: u32) -> IpAddr {
        let [first, second] = self.homes();
        match self.is_v6(link) == first.is_ipv6() {
            true => first,
            false => second,
        }
    }

    /// The one that a link leads to as well, if there is another.
    fn other_home(self, link: u32) -> IpAddr {
        let [first, second] = self.homes();
        match self.is_v6(link) == second.is_ipv6() {
            true => second,
            false => first,
        }
    }

    fn way(self, link: u32) -> PathTuple {
        way(link, self.home(link))
    }
}

/// The network that an address is in.
fn network_of(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => v4.octets()[2].into(),
        IpAddr::V6(v6) => v6.segments()[3].into(),
    }
}

struct Network {
    cast: Cast,
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
            cast: Cast::of_this_process(),
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
                    let link = network_of(transmit.remote.ip());
                    // What answers an INIT goes where that came from.
                    let is_misled = transmit.remote.port() != UDP;
                    self.misled +=
                        usize::from(is_misled && !has_chunk(&transmit.payload, INIT_ACK));
                    if self.cut.contains(&link) {
                        continue;
                    }
                    self.disowned += usize::from(has_chunk(&transmit.payload, ABORT));
                    let from = SocketAddr::new(transmit.local.unwrap(), UDP);
                    let (to, payload) = (self.cast.link(link), &transmit.payload);
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
        let is_translated = self.translated.contains(&link);
        let from = self.cast.address(link, if is_translated { 77 } else { 2 });
        let (to, payload) = (transmit.remote.ip(), &transmit.payload);
        let socket = SocketAddr::new(from, UDP);
        self.stack.handle_packet(LinkId(0), to, socket, payload);
        if let Some(forged) = &self.forged {
            let socket = SocketAddr::new(from, STRANGE_UDP);
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

fn way(link: u32, host: IpAddr) -> PathTuple {
    PathTuple {
        link: LinkId(link),
        remote: SocketAddr::new(host, UDP),
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 3 % 251) as u8).collect()
}

/// A process of its own for each, since there is one stack in a process.
#[test]
fn ipv6_makes_no_difference() {
    for cast in [Cast::V6, Cast::PrivateAndV6, Cast::GlobalAndV6] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "paths_come_go_and_are_all_used", "--nocapture"]);
        let output = again.env(CAST, format!("{cast:?}")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed"), "{cast:?}: {output:?}");
    }
}

#[test]
fn paths_come_go_and_are_all_used() {
    let mut stack = Stack::start(&Settings::default()).unwrap();
    assert!(matches!(
        Stack::start(&Settings::default()),
        Err(SctpError::Twice)
    ));
    let cast = Cast::of_this_process();
    let families = match cast {
        Cast::V4 => Families::V4,
        Cast::V6 | Cast::PrivateAndV6 | Cast::GlobalAndV6 => Families::Both,
    };
    let (locals, homes) = ([cast.link(1), cast.link(2)], cast.homes());
    let sender = stack.open(families, &locals, SENDER_PORT, SENDERS_INDICATION);
    let sender = sender.unwrap();
    let listener = stack.open(families, &homes, PORT, INDICATION).unwrap();
    stack.listen(listener).unwrap();
    let taken = stack.open(families, &homes[..1], PORT, INDICATION);
    assert!(matches!(taken, Err(SctpError::Refused(_))), "{taken:?}");
    // Two links towards one address of the peer's, if that is of their family.
    let ways = [cast.way(1), cast.way(2)];
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
    let from = SocketAddr::new(world.cast.link(1), UDP);
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
        world
            .stack
            .handle_packet(LinkId(0), world.cast.home(1), from, &packet);
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
    listed.sort_by_key(|home| network_of(*home));
    assert_eq!(listed, world.cast.homes());
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
    // Whatever header is before it, a packet is of 1,400 bytes at most.
    let mtu = match world.cast {
        Cast::PrivateAndV6 => 1_372,
        Cast::V4 | Cast::V6 | Cast::GlobalAndV6 => 1_392,
    };
    for path in world.stack.paths(world.sender) {
        assert!(path.cwnd.get() > 3_000 && path.mtu == mtu, "{path:?}");
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
    let (sender, cast) = (world.sender, world.cast);
    let third = way(3, cast.other_home(3));
    world.late = Some(Vec::new());
    world
        .stack
        .add_local(sender, LinkId(3), cast.link(3))
        .unwrap();
    let path = world.stack.add_way(sender, third).unwrap();
    assert_eq!(world.stack.add_way(sender, third), Some(path));
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
    let (local, way) = (world.cast.link(4), world.cast.way(4));
    world.stack.add_local(sender, LinkId(4), local).unwrap();
    world.translated.push(4);
    let path = world.stack.add_way(sender, way).unwrap();
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
    let (local, way) = (world.cast.link(5), world.cast.way(5));
    world.stack.add_local(sender, LinkId(5), local).unwrap();
    let path = world.stack.add_way(sender, way).unwrap();
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
