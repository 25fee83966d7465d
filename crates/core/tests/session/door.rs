//! Who begins a session with a relay that knows nobody, and who keeps whom from it.

use tabane_base::{Duration, Instant};
use tabane_core::{
    Endpoint, FourTuple, Identity, Inquiry, InquiryAnswer, PublicKey, RetryPolicy, ServerConfig,
    SessionConfig, SessionHandle, TransmitBatch, forge_first_packet,
};

use super::pair::{Pair, SERVER, client_address, client_tuple};

/// A relay that knows nobody, and clients with an address each that have not heard of it.
struct Door {
    now: Instant,
    server: Endpoint,
    key: PublicKey,
    clients: Vec<Endpoint>,
}

impl Door {
    fn new(limits: ServerConfig) -> Self {
        let identity = Identity::from_seed([1; 32]);
        let key = identity.public_key();
        let config = SessionConfig::default();
        let server = Endpoint::server(identity, config, limits, [2; 32]).expect("valid");
        Self {
            now: Instant::from_millis(1_000),
            server,
            key,
            clients: Vec::new(),
        }
    }

    /// What the relay says to a datagram from address `n`, apart from sessions.
    fn say(&mut self, n: u32, mut datagram: Vec<u8>) -> Option<Vec<u8>> {
        let tuple = FourTuple {
            socket: SERVER,
            local_ip: None,
            remote: client_address(n),
        };
        self.server.handle_datagram(self.now, tuple, &mut datagram);
        let mut batch = TransmitBatch::new(100_000);
        self.server.poll_transmit(self.now, &mut batch);
        let answer = batch.iter().next();
        answer.map(|transmit| transmit.contents.to_vec())
    }

    /// How many bytes the relay's sessions have to send.
    fn sessions_say(&mut self) -> usize {
        let mut batch = TransmitBatch::new(100_000);
        for handle in self.server.handles() {
            let session = self.server.session_mut(handle).expect("not reaped");
            while session.poll_transmit(self.now, &mut batch) {}
        }
        batch.iter().map(|transmit| transmit.contents.len()).sum()
    }

    fn first_flight(&mut self, client: usize, handle: SessionHandle) -> Vec<u8> {
        let now = self.now;
        let session = self.clients[client].session_mut(handle).expect("open");
        session.handle_timeout(now);
        let mut batch = TransmitBatch::new(100_000);
        while session.poll_transmit(now, &mut batch) {}
        let first = batch.iter().next().expect("a flight");
        first.contents[..first.segment_size].to_vec()
    }

    /// A new client at address `n`, its session and the first that it says.
    fn beginning(&mut self, n: u32) -> (SessionHandle, Vec<u8>) {
        let me = Identity::from_seed([3; 32]);
        let mut seed = [4; 32];
        seed[..8].copy_from_slice(&self.clients.len().to_be_bytes());
        let mut client = Endpoint::client(me, SessionConfig::default(), seed).expect("valid");
        let handle = client.connect(self.now, self.key, None, vec![client_tuple(n)]);
        let handle = handle.expect("a link");
        self.clients.push(client);
        let first = self.first_flight(self.clients.len() - 1, handle);
        (handle, first)
    }

    /// A client at address `n` begins, and proves its address if it is asked to. Whether the relay
    /// has begun a session with it.
    fn begin(&mut self, n: u32) -> bool {
        let before = self.server.counters().accepted;
        let (handle, first) = self.beginning(n);
        let client = self.clients.len() - 1;
        if let Some(mut retry) = self.say(n, first) {
            self.clients[client].handle_datagram(self.now, client_tuple(n), &mut retry);
            let second = self.first_flight(client, handle);
            self.say(n, second);
        }
        self.server.counters().accepted > before
    }

    /// Relay's sessions with the client at address `n` that have not ended.
    fn sessions(&self) -> usize {
        let handles = self.server.handles().into_iter();
        let sessions = handles.filter_map(|handle| self.server.session(handle));
        sessions.filter(|session| !session.is_closed()).count()
    }
}

#[test]
fn one_address_does_not_keep_everybody_else_out() {
    const LIMIT: usize = 8;
    let mut door = Door::new(ServerConfig {
        max_handshakes: LIMIT,
        retry: RetryPolicy::UnderLoad(2),
        ..ServerConfig::default()
    });
    for _ in 0..LIMIT {
        assert!(door.begin(0), "there is room");
    }
    assert!(!door.begin(0), "an address displaces nobody for itself");
    for n in 1..5 {
        assert!(door.begin(n), "{n}");
        assert_eq!(door.sessions(), LIMIT);
    }
    assert!(door.server.poll_ended().is_some(), "the driver is told");
    // Four of the first address, one each of the others; the oldest of who has most goes.
    assert!(
        door.begin(1) && door.begin(2),
        "nobody has more than two then"
    );
    assert!(!door.begin(3), "all have as much as they would");
}

#[test]
fn a_flood_does_not_keep_newcomers_from_proving_themselves() {
    let mut door = Door::new(ServerConfig {
        retry: RetryPolicy::Always,
        ..ServerConfig::default()
    });
    let mut resets = 0;
    for n in 0..5_000_u32 {
        let mut stray = vec![0x40; 60];
        stray[1..5].copy_from_slice(&n.to_be_bytes());
        resets += usize::from(door.say(n % 8, stray).is_some());
    }
    assert_eq!(resets, 1_000);
    assert!(door.begin(0), "strays used up what Retries need");
}

/// What an address gets for a small packet is not what another one has sent before it.
#[test]
fn an_address_gets_nothing_for_what_came_from_another() {
    let mut door = Door::new(ServerConfig::default());
    let (_, first) = door.beginning(0);
    for _ in 0..3 {
        assert!(door.say(0, first.clone()).is_none(), "no proof is asked");
    }
    assert!(door.sessions_say() > 0, "the session answers");
    let attempt = first[5..13].try_into().expect("eight");
    let small = forge_first_packet(attempt, false, 9, &[1], 20);
    let size = small.len();
    assert_eq!(door.say(5, small), None);
    let answered = door.sessions_say();
    assert!(answered <= 3 * size, "{answered} bytes for {size}");
}

/// Who forges beginnings costs a handshake's keys each time; soon it must prove its address first.
#[test]
fn whoever_forges_beginnings_must_soon_prove_an_address() {
    const MOST: usize = 64;
    let mut door = Door::new(ServerConfig::default());
    let mut forged = 0;
    let mut asked = 0;
    for n in 0..1_000_u32 {
        let (_, mut initial) = door.beginning(n % 8);
        // Its tag, so that it is nobody's.
        *initial.last_mut().expect("full") ^= 1;
        match door.say(n % 8, initial) {
            Some(_) => asked += 1,
            None => forged += 1,
        }
    }
    assert_eq!((forged, asked), (MOST, 1_000 - MOST));
    assert!(door.begin(1), "who proves itself is let in");
}

/// What shares a datagram with a session's packet must not keep that session from being drained.
#[test]
fn what_follows_a_packet_of_another_handshake_is_dropped_and_the_first_one_counts() {
    let mut pair = Pair::new(None, None);
    pair.drain();
    let (at, _, tuple, first) = pair.wire.remove(0);
    assert!(first[0] & 0x80 != 0, "a long header");
    let mut other = first.clone();
    other[5] ^= 1;
    let mut both = [first, other].concat();
    let handle = pair.server.handle_datagram(at, tuple, &mut both);
    assert!(handle.is_some_and(|handle| pair.server.session(handle).is_some()));
    assert_eq!(handle, pair.server.poll_incoming());
    assert_eq!(pair.server.handles().len(), 1);
    assert_eq!(pair.server.counters().accepted, 1);
}

#[test]
fn only_who_lets_strangers_in_tells_whoever_asks_its_key() {
    let identity = Identity::from_seed([1; 32]);
    let key = identity.public_key();
    let now = Instant::from_millis(1_000);
    for (is_open, expected) in [
        (true, InquiryAnswer::Open(key)),
        (false, InquiryAnswer::Closed),
    ] {
        let config = ServerConfig {
            is_open,
            ..ServerConfig::default()
        };
        let session = SessionConfig::default();
        let server = Endpoint::server(identity.clone(), session, config, [2; 32]);
        let mut server = server.expect("valid");
        let tuple = FourTuple {
            socket: SERVER,
            local_ip: None,
            remote: client_address(0),
        };
        let inquiry = Inquiry::new(77);
        let mut question = inquiry.datagram();
        // A shorter one could be made to flood somebody else.
        let mut short = question[..question.len() - 1].to_vec();
        server.handle_datagram(now, tuple, &mut short);
        let mut batch = TransmitBatch::new(100_000);
        assert!(!server.poll_transmit(now, &mut batch));
        server.handle_datagram(now, tuple, &mut question);
        assert!(server.poll_transmit(now, &mut batch));
        let answer = batch.iter().next().expect("an answer");
        assert_eq!(answer.tuple, tuple);
        assert_eq!(inquiry.read_answer(answer.contents), Some(expected));
        assert!(server.handles().is_empty(), "nothing is kept");
    }
}

#[test]
fn strangers_are_kept_up_to_a_limit_and_leave_room_when_they_give_up() {
    const LIMIT: usize = 3;
    let identity = Identity::from_seed([1; 32]);
    let key = identity.public_key();
    let config = SessionConfig::default();
    let limits = ServerConfig {
        max_handshakes: LIMIT,
        ..ServerConfig::default()
    };
    let mut server = Endpoint::server(identity, config.clone(), limits, [2; 32]).expect("valid");
    let me = Identity::from_seed([3; 32]);
    let mut client = Endpoint::client(me, config.clone(), [4; 32]).expect("valid");
    let mut now = Instant::from_millis(1_000);
    let mut begin = |now, server: &mut Endpoint, n: u32| {
        let handle = client.connect(now, key, None, vec![client_tuple(n)]);
        let session = client.session_mut(handle.expect("a link")).expect("open");
        let mut batch = TransmitBatch::new(100_000);
        while session.poll_transmit(now, &mut batch) {}
        let tuple = FourTuple {
            socket: SERVER,
            local_ip: None,
            remote: client_address(n),
        };
        let first = batch.iter().next().expect("a first flight");
        let mut first = first.contents[..first.segment_size].to_vec();
        server.handle_datagram(now, tuple, &mut first).is_some()
    };
    for n in 0..20 {
        assert_eq!(begin(now, &mut server, n), (n as usize) < LIMIT, "{n}");
    }
    assert_eq!(server.handles().len(), LIMIT);

    now += config.handshake_timeout + Duration::from_millis(1);
    for handle in server.handles() {
        let session = server.session_mut(handle).expect("not reaped");
        session.handle_timeout(now);
        assert!(server.reap(now, handle));
    }
    assert!(begin(now, &mut server, 30), "there is room again");
}
