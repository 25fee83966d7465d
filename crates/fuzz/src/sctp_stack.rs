//! The SCTP stack itself, usrsctp below `tabane_sctp`, between peers that say anything.
//!
//! Input: records of an operation and its operands. One peer has come to our listener, another one
//! was called by us; both stand, know the tags, and say whatever chunks they like under right
//! checksums. A stranger knows no tag. Afterwards a newcomer must still be let in.
//!
//! There is one stack in a process, so what it keeps of ended associations is kept from one input
//! to the next. It is C from the system's package, without coverage: what guides libFuzzer is our
//! own code, and the corpus.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tabane_base::Duration;
use tabane_sctp::{
    AssociationId, EndpointId, Event, Families, Incoming, LinkId, Message, PathTuple, Settings,
    Stack, Transmit,
};

/// Our address of each family.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 1));
const HERE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 100, 0, 0, 0, 1));
/// Where the three others are; the called one has a second way.
const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2));
const CALLED: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 2, 0, 0, 0, 2));
const NEWCOMER: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 3, 0, 0, 0, 2));
const UDP: u16 = 9_899;
const LISTENER_PORT: u16 = 4_000;
const CALLER_PORT: u16 = 4_001;
const PEER_PORT: u16 = 5_000;
/// Verification tag that each of the others has chosen.
const TAG: u32 = 0x0102_0304;
const FIRST_TSN: u32 = 100;
const COMMON_HEADER: usize = 12;
const CHUNK_HEADER: usize = 4;

/// Chunk types (RFC 9260 §3.2).
mod chunk {
    pub(super) const DATA: u8 = 0;
    pub(super) const INIT: u8 = 1;
    pub(super) const INIT_ACK: u8 = 2;
    pub(super) const SACK: u8 = 3;
    pub(super) const COOKIE_ECHO: u8 = 10;
    pub(super) const COOKIE_ACK: u8 = 11;
}
/// A parameter (RFC 9260 §3.3.3.1).
const STATE_COOKIE: u16 = 7;

thread_local! {
    static STACK: RefCell<Option<Stack>> = const { RefCell::new(None) };
}

/// Somebody else: what we know of the association as they see it.
#[derive(Default)]
struct Other {
    /// Ours, without which nothing is believed.
    tag: Option<u32>,
    cookie: Vec<u8>,
    stands: bool,
    /// The next number of what they send, and the last of what they got.
    next: u32,
    last: u32,
}

struct World<'a> {
    stack: &'a mut Stack,
    listener: EndpointId,
    caller: EndpointId,
    associations: Vec<(EndpointId, AssociationId)>,
    others: [Other; 3],
}

/// CRC32c, bit by bit (RFC 9260 appendix A).
fn checksum(packet: &[u8]) -> [u8; 4] {
    let mut sum = !0_u32;
    for byte in packet {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
        }
    }
    (!sum).to_le_bytes()
}

fn packet(to: u16, tag: u32, chunks: &[u8]) -> Vec<u8> {
    let mut packet = PEER_PORT.to_be_bytes().to_vec();
    packet.extend(to.to_be_bytes());
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(chunks);
    let sum = checksum(&packet);
    packet[8..COMMON_HEADER].copy_from_slice(&sum);
    packet
}

fn chunk(kind: u8, flags: u8, value: &[u8]) -> Vec<u8> {
    let mut chunk = vec![kind, flags];
    chunk.extend(((CHUNK_HEADER + value.len()) as u16).to_be_bytes());
    chunk.extend(value);
    chunk.resize(chunk.len().next_multiple_of(4), 0);
    chunk
}

/// Tag, window, streams out and in, first number: of INIT and its answer.
fn setup(kind: u8, parameters: &[u8]) -> Vec<u8> {
    let mut value = TAG.to_be_bytes().to_vec();
    value.extend(100_000_u32.to_be_bytes());
    value.extend([0, 10, 0, 10]);
    value.extend(FIRST_TSN.to_be_bytes());
    value.extend(parameters);
    chunk(kind, 0, &value)
}

/// Kind and value of each chunk, or of each parameter with two bytes of kind.
fn chunks(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let [a, b, high, low, ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some(value) = rest.get(CHUNK_HEADER..length) else {
            break;
        };
        found.push((u16::from_be_bytes([*a, *b]), value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    found
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|it| it.first_chunk());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}

impl<'a> World<'a> {
    fn new(stack: &'a mut Stack) -> Self {
        let mut open = |port| {
            let opened = stack.open(Families::Both, &[HERE6, HERE], port, 7);
            opened.expect("it was closed")
        };
        let (listener, caller) = (open(LISTENER_PORT), open(CALLER_PORT));
        stack.listen(listener).expect("nobody else listens");
        let way = |link| PathTuple {
            link: LinkId(link),
            remote: SocketAddr::new(CALLED, UDP),
        };
        let called = stack.connect(caller, &[way(1), way(2)], PEER_PORT);
        let called = called.expect("a way");
        let mut world = Self {
            stack,
            listener,
            caller,
            associations: vec![(caller, called)],
            others: Default::default(),
        };
        world.others.iter_mut().for_each(|it| it.next = FIRST_TSN);
        world.knock(0);
        world.turn();
        world
    }

    fn knock(&mut self, who: usize) {
        self.say(who, Some(0), &setup(chunk::INIT, &[]));
    }

    /// Chunks in a packet of somebody's, under this tag, or the right one.
    fn say(&mut self, who: usize, tag: Option<u32>, chunks: &[u8]) {
        let (host, to) = match who {
            0 => (GUEST, LISTENER_PORT),
            1 => (CALLED, CALLER_PORT),
            _ => (NEWCOMER, LISTENER_PORT),
        };
        let link = LinkId(u32::from(who == 1));
        let tag = tag.or(self.others[who].tag).unwrap_or(0);
        let from = SocketAddr::new(host, UDP);
        let here = if host.is_ipv6() { HERE6 } else { HERE };
        let packet = packet(to, tag, chunks);
        self.stack.handle_packet(link, here, from, &packet);
    }

    /// Everything there is to send and to read, and what the others answer while they are set up.
    fn turn(&mut self) {
        for turn in 0.. {
            assert!(turn < 100_000, "it always has something to send");
            let Some(transmit) = self.stack.poll_transmit() else {
                break;
            };
            self.hear(&transmit);
        }
        for endpoint in [self.listener, self.caller] {
            while let Some(incoming) = self.stack.poll_event(endpoint) {
                if let Incoming::Event(Event::Up { association, .. }) = incoming {
                    self.associations.push((endpoint, association));
                }
            }
        }
    }

    fn hear(&mut self, transmit: &Transmit) {
        let who = match transmit.remote.ip() {
            GUEST => 0,
            CALLED => 1,
            NEWCOMER => 2,
            // An address that one of them has named.
            _ => return,
        };
        for (kind, value) in chunks(&transmit.payload[COMMON_HEADER..]) {
            let other = &mut self.others[who];
            match (kind >> 8) as u8 {
                chunk::INIT if !other.stands => {
                    other.tag = Some(word(value, 0));
                    let cookie = [0, STATE_COOKIE as u8, 0, 8, 1, 2, 3, 4];
                    self.say(who, None, &setup(chunk::INIT_ACK, &cookie));
                }
                chunk::INIT_ACK if !other.stands => {
                    other.tag = Some(word(value, 0));
                    let parameters = chunks(value.get(16..).unwrap_or(&[]));
                    let mut parameters = parameters.into_iter();
                    let cookie = parameters.find(|(kind, _)| *kind == STATE_COOKIE);
                    other.cookie = cookie.map(|it| it.1.to_vec()).unwrap_or_default();
                    let echo = chunk(chunk::COOKIE_ECHO, 0, &other.cookie);
                    self.say(who, None, &echo);
                }
                chunk::COOKIE_ECHO if !other.stands => {
                    other.stands = true;
                    self.say(who, None, &chunk(chunk::COOKIE_ACK, 0, &[]));
                }
                chunk::COOKIE_ACK => other.stands = true,
                chunk::DATA => other.last = word(value, 0),
                _ => {}
            }
        }
    }

    fn operate(&mut self, operation: u8, operand: u8, said: &[u8]) {
        let who = usize::from(operation >> 7);
        match operation % 8 {
            // Whatever they like.
            0 | 1 => self.say(who, None, said),
            // Time.
            2 => {
                let span = Duration::from_millis(u64::from(operand) * 20);
                self.stack.handle_timers(span);
            }
            // Without the right tag.
            3 => self.say(who, Some(word(said, 0)), said.get(4..).unwrap_or(&[])),
            // Data whose number is near the next one's: in order, ahead, again.
            4 => {
                let number = self.others[who]
                    .next
                    .wrapping_add(u32::from(operand & 0x0f));
                let value = [&number.to_be_bytes(), said].concat();
                self.say(who, None, &chunk(chunk::DATA, operand >> 4, &value));
                self.others[who].next += u32::from(operand & 0x0f == 0);
            }
            // An acknowledgement of what was sent, or of some more; with gaps of their choice.
            5 => {
                let last = self.others[who].last.wrapping_add(u32::from(operand % 8));
                let last = last.wrapping_sub(4).to_be_bytes();
                let gaps = ((said.len() / 4) as u16).to_be_bytes();
                let value = [&last, &[0, 1, 0, 0][..], &gaps, &[0, 0], said].concat();
                self.say(who, None, &chunk(chunk::SACK, 0, &value));
            }
            // We send.
            6 => {
                let at = usize::from(operand) % self.associations.len();
                let (endpoint, association) = self.associations[at];
                let message = Message {
                    data: &vec![operand; usize::from(operand) * 30],
                    stream: u16::from(operand & 1),
                    protocol: 1,
                    path: None,
                };
                // It may have ended.
                let _ = self.stack.send(endpoint, association, message);
            }
            _ => {
                let at = usize::from(operand >> 1) % self.associations.len();
                let (endpoint, association) = self.associations[at];
                let _ = match operand & 1 {
                    0 => self.stack.shutdown(endpoint, association),
                    _ => self.stack.abort(endpoint, association),
                };
            }
        }
        self.turn();
    }

    /// Somebody new is let in, whatever the others have said.
    fn newcomer_is_in(&mut self) -> bool {
        (0..20).any(|_| {
            if !self.others[2].stands {
                self.knock(2);
            }
            self.turn();
            self.stack.handle_timers(Duration::from_millis(100));
            self.turn();
            self.others[2].stands
        })
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    STACK.with_borrow_mut(|slot| {
        let start = || Stack::start(&Settings::default()).expect("one thread runs this target");
        let stack = slot.get_or_insert_with(start);
        let mut world = World::new(stack);
        let mut rest = data;
        while let [operation, operand, length, tail @ ..] = rest {
            let (said, after) = tail.split_at(usize::from(*length).min(tail.len()));
            world.operate(*operation, *operand, said);
            rest = after;
        }
        assert!(world.newcomer_is_in(), "a newcomer is not let in");
        for (endpoint, association) in world.associations.clone() {
            let _ = world.stack.abort(endpoint, association);
        }
        for endpoint in [world.listener, world.caller] {
            world.stack.close(endpoint);
        }
        world.turn();
        // What waits for its time to be forgotten.
        world.stack.handle_timers(Duration::from_secs(10));
        world.turn();
    });
}
