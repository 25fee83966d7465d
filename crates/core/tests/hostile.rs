//! Peers that a relay has let in and that mean harm: what they cost it in memory, and what a client
//! beside them loses.
//!
//! One binary with one test, because what the process takes of memory is measured. In virtual time:
//! `TABANE_MINUTES=10 cargo test -p tabane-core --test hostile -- --nocapture` runs longer and says
//! what it saw. Who has not been let in is the business of `session.rs`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, Seed};
use tabane_core::{
    Endpoint, Event, FourTuple, Identity, PublicKey, ReadState, ServerConfig, Session,
    SessionConfig, SessionHandle, SocketId, StreamId, TransmitBatch,
};

const TICK: Duration = Duration::from_millis(1);
/// Every client's link: one way, each way.
const DELAY: Duration = Duration::from_millis(10);
const RATE: Rate = Rate::from_mbps(20);
/// What each hostile peer says, in frames' bytes per tick: 100 Mbit/s.
const SAID: usize = 12_500;
/// A relay that sends as fast as it may keeps its keys for so long at least.
const KEYS_LAST: Duration = Duration::from_secs(300);
/// What one may cost: each of its hundred streams may hold what its path has under way, some times.
const MEMORY: u64 = 40 << 20;

/// What somebody does who has been let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Downloads, as anybody.
    Honest,
    /// Hears nothing any more, and asks without end.
    Deaf,
    /// Acknowledges what has not arrived.
    Optimist,
    /// Has no memory for anything that comes, and says nothing of a few packets.
    Shedder,
    /// Opens streams, and abandons them.
    Abandoner,
    /// Says anything at any moment.
    Babbler,
}

const HOSTILE: [Manner; 5] = [
    Manner::Deaf,
    Manner::Optimist,
    Manner::Shedder,
    Manner::Abandoner,
    Manner::Babbler,
];

/// Datagrams under way, in order, over a link of [`RATE`].
struct Wire {
    free_at: Instant,
    packets: VecDeque<(Instant, Vec<u8>)>,
}

impl Wire {
    fn send(&mut self, now: Instant, packet: &[u8]) {
        // As long a queue as most routers have.
        if self.free_at < now + Duration::from_millis(100) {
            self.free_at = self.free_at.max(now) + RATE.time_for(Bytes::from(packet.len()));
            self.packets
                .push_back((self.free_at + DELAY, packet.to_vec()));
        }
    }

    fn poll(&mut self, now: Instant) -> Option<Vec<u8>> {
        let due = self.packets.front().is_some_and(|(at, _)| *at <= now);
        due.then(|| self.packets.pop_front().expect("just seen").1)
    }
}

struct Client {
    manner: Manner,
    number: u8,
    endpoint: Endpoint,
    handle: SessionHandle,
    at_relay: Option<SessionHandle>,
    up: Wire,
    down: Wire,
    streams: Vec<StreamId>,
    received: u64,
    /// What it says of packets begins with this one.
    told_from: Option<u64>,
    /// How often it began anew, because it was sent away.
    returns: u32,
}

impl Client {
    fn new(now: Instant, number: u8, manner: Manner, relay: PublicKey) -> Self {
        let config = SessionConfig::default();
        let me = Identity::from_seed([10 + number; 32]);
        let mut endpoint = Endpoint::client(me, config, [number; 32]).expect("valid");
        let links = vec![relay_from(number)];
        let handle = endpoint.connect(now, relay, None, links).expect("a link");
        let wire = || Wire {
            free_at: now,
            packets: VecDeque::new(),
        };
        Self {
            manner,
            number,
            endpoint,
            handle,
            at_relay: None,
            up: wire(),
            down: wire(),
            streams: Vec::new(),
            received: 0,
            told_from: None,
            returns: 0,
        }
    }

    /// Its program: asks for as many streams as it may, and reads what comes.
    fn use_session(&mut self, now: Instant) {
        let most = if self.manner == Manner::Honest {
            1
        } else {
            100
        };
        let Some(session) = self.endpoint.session_mut(self.handle) else {
            return;
        };
        session.handle_timeout(now);
        while session.poll_event().is_some() {}
        while self.streams.len() < most
            && let Ok(id) = session.open_stream(now)
        {
            let _ = session.write(now, id, b"more");
            if self.manner == Manner::Abandoner {
                session.reset(now, id, 1);
                session.stop(now, id, 1);
            } else {
                self.streams.push(id);
            }
        }
        for id in &self.streams {
            while let Ok(ReadState::Data(data)) = session.peek(*id) {
                let n = data.len();
                session.consume(now, *id, n);
                self.received += n as u64;
            }
        }
    }
}

fn relay_from(number: u8) -> FourTuple {
    FourTuple {
        socket: SocketId(u32::from(number)),
        local_ip: None,
        remote: SocketAddr::from(([10, 78, 0, 1], 4_510)),
    }
}

fn at_relay(number: u8) -> FourTuple {
    let relay = relay_from(number).remote;
    FourTuple {
        socket: SocketId(100),
        local_ip: Some(relay.ip()),
        remote: SocketAddr::from(([10, 0, number, 2], 4_000)),
    }
}

/// What a hostile peer says in a tick beside what its session does.
fn say(
    session: &mut Session,
    now: Instant,
    manner: Manner,
    told_from: &mut Option<u64>,
    rng: &mut Rng,
) {
    let mut left = SAID;
    while left > 0 && !session.is_closed() {
        let mut frames = Vec::new();
        match manner {
            Manner::Deaf => {
                // A question to be answered, and nothing else: PATH_CHALLENGE.
                frames.push(0x1a);
                frames.extend_from_slice(&rng.next_u64().to_be_bytes());
                frames.resize(1_200, 0);
            }
            Manner::Optimist | Manner::Shedder => {
                // Of the first path, of all up to a number that may have been sent.
                let paths = session.snapshot(now).paths;
                let sent = paths.first().map_or(1, |path| path.sent_packets);
                let last = sent.saturating_sub(1);
                let first = match manner {
                    Manner::Shedder => *told_from.get_or_insert(last + 50),
                    _ => 0,
                };
                if first > last {
                    return;
                }
                frames.extend_from_slice(&answer(manner, first..=last));
                left = frames.len();
            }
            Manner::Babbler => {
                let len = 1 + rng.below(60) as usize;
                frames.extend((0..len).map(|_| rng.next_u64() as u8));
            }
            Manner::Honest | Manner::Abandoner => return,
        }
        left = left.saturating_sub(frames.len());
        session.fuzz_frames(now, &frames);
    }
}

/// ACK of the first path [P-5.2], or SHED, with one range of packets; numbers of eight bytes.
fn answer(manner: Manner, range: RangeInclusive<u64>) -> Vec<u8> {
    let number = |n: u64| (n | 0xc000_0000_0000_0000).to_be_bytes();
    let (largest, len) = (*range.end(), range.end() - range.start());
    let mut frame = vec![if manner == Manner::Shedder {
        0x2a
    } else {
        0x02
    }];
    for n in [0, largest, 0, 0, 0, len, 0] {
        frame.extend_from_slice(&number(n));
    }
    frame
}

struct Relay {
    endpoint: Endpoint,
    key: PublicKey,
    batch: TransmitBatch,
    rng: Rng,
}

impl Relay {
    fn new() -> Self {
        let identity = Identity::from_seed([1; 32]);
        let key = identity.public_key();
        let config = (SessionConfig::default(), ServerConfig::default());
        let endpoint = Endpoint::server(identity, config.0, config.1, [2; 32]).expect("valid");
        Self {
            endpoint,
            key,
            batch: TransmitBatch::new(20_000),
            rng: Seed(7).rng("hostile"),
        }
    }

    /// A millisecond of one client's.
    fn tick(&mut self, now: Instant, client: &mut Client, is_lawless: bool) {
        while let Some(mut packet) = client.up.poll(now) {
            let tuple = at_relay(client.number);
            self.endpoint.handle_datagram(now, tuple, &mut packet);
        }
        client.at_relay = client.at_relay.or_else(|| self.endpoint.poll_incoming());
        if let Some(handle) = client.at_relay {
            match self.endpoint.session_mut(handle) {
                Some(session) => {
                    serve(session, now);
                    if is_lawless {
                        let Client {
                            manner, told_from, ..
                        } = client;
                        say(session, now, *manner, told_from, &mut self.rng);
                    }
                }
                None => client.at_relay = None,
            }
        }
        self.send(now, client);
        let is_deaf = is_lawless && matches!(client.manner, Manner::Deaf | Manner::Shedder);
        while let Some(mut packet) = client.down.poll(now) {
            if !is_deaf {
                let tuple = relay_from(client.number);
                client.endpoint.handle_datagram(now, tuple, &mut packet);
            }
        }
        client.use_session(now);
        self.send_up(now, client);
        self.come_back(now, client);
    }

    fn send(&mut self, now: Instant, client: &mut Client) {
        self.batch.clear();
        self.endpoint.poll_transmit(now, &mut self.batch);
        let handle = client.at_relay;
        if let Some(session) = handle.and_then(|handle| self.endpoint.session_mut(handle)) {
            while session.poll_transmit(now, &mut self.batch) {}
        }
        for transmit in self.batch.iter() {
            for packet in transmit.contents.chunks(transmit.segment_size) {
                client.down.send(now, packet);
            }
        }
    }

    fn send_up(&mut self, now: Instant, client: &mut Client) {
        self.batch.clear();
        client.endpoint.poll_transmit(now, &mut self.batch);
        if let Some(session) = client.endpoint.session_mut(client.handle) {
            while session.poll_transmit(now, &mut self.batch) {}
        }
        for transmit in self.batch.iter() {
            for packet in transmit.contents.chunks(transmit.segment_size) {
                client.up.send(now, packet);
            }
        }
    }

    /// Who was sent away is there again at once.
    fn come_back(&mut self, now: Instant, client: &mut Client) {
        let ended = client.at_relay.filter(|handle| {
            let session = self.endpoint.session(*handle);
            session.is_none_or(Session::is_closed)
        });
        if let Some(handle) = ended {
            self.endpoint.reap(now, handle);
            let (returns, received) = (client.returns + 1, client.received);
            *client = Client::new(now, client.number, client.manner, self.key);
            (client.returns, client.received) = (returns, received);
        }
    }
}

/// The relay's side of every stream: as much as it takes, of which it reads what comes.
fn serve(session: &mut Session, now: Instant) {
    session.handle_timeout(now);
    let mut ids = Vec::new();
    while let Some(event) = session.poll_event() {
        match event {
            Event::Authorise { .. } => session.admit(now),
            Event::Closed(reason) => println!("{now}: the relay ends a session: {reason}"),
            Event::StreamOpened(id) | Event::StreamReadable(id) | Event::StreamWritable(id) => {
                ids.push(id);
            }
            _ => {}
        }
    }
    for id in ids {
        while let Ok(ReadState::Data(data)) = session.peek(id) {
            let n = data.len();
            session.consume(now, id, n);
        }
        while matches!(session.write(now, id, &[7; 16_384]), Ok(1..)) {}
    }
}

/// Bytes of memory that the process has, without the pages of its file, which come as it runs.
#[expect(clippy::disallowed_methods, reason = "the kernel's word")]
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let mut numbers = pages.split(' ').skip(1).map(|pages| pages.parse::<u64>());
    let mut next = || numbers.next().and_then(Result::ok).expect("a number");
    let (all, of_files) = (next(), next());
    (all - of_files) * 4_096
}

#[expect(clippy::disallowed_methods, reason = "how long it runs")]
fn seconds() -> u64 {
    let minutes = std::env::var("TABANE_MINUTES").ok();
    minutes.map_or(5, |text| 60 * text.parse::<u64>().expect("a number"))
}

/// What came of a time.
struct Outcome {
    /// The honest client's bytes.
    received: u64,
    /// The most memory, beyond that at its beginning.
    memory: u64,
    /// How often the first and the last of the clients were sent away.
    returns: (u32, u32),
}

fn run(manners: &[Manner], span: Duration) -> Outcome {
    let mut now = Instant::from_millis(1_000);
    let mut relay = Relay::new();
    let new =
        |(number, manner): (usize, &Manner)| Client::new(now, number as u8, *manner, relay.key);
    let mut clients: Vec<_> = manners.iter().enumerate().map(new).collect();
    let let_in = now + Duration::from_secs(1);
    let (end, before) = (let_in + span, resident());
    let mut most = before;
    while now < end {
        now += TICK;
        for client in &mut clients {
            relay.tick(now, client, now > let_in);
        }
        if now.as_micros().is_multiple_of(100_000) {
            most = most.max(resident());
        }
    }
    Outcome {
        received: clients[0].received,
        memory: most - before,
        returns: (clients[0].returns, clients[clients.len() - 1].returns),
    }
}

#[test]
fn peers_that_mean_harm_cost_bounded_memory_and_no_goodput_of_others() {
    let span = Duration::from_secs(seconds());
    let alone = run(&[Manner::Honest], span).received;
    for hostile in HOSTILE {
        let Outcome {
            received,
            memory,
            returns,
        } = run(&[Manner::Honest, hostile], span);
        let share = received as f64 / alone as f64;
        println!("{hostile:?}: others' share {share:.3}, {memory} B, sent away {returns:?}");
        assert!(share > 0.95, "{share} beside {hostile:?}");
        assert!(memory < MEMORY, "{memory} B for {hostile:?}");
        assert_eq!(returns.0, 0, "who is honest stays");
        // Who hears nothing does not hear of new keys either: after ten minutes it is not heard.
        let may_go = matches!(hostile, Manner::Deaf | Manner::Shedder) && span > KEYS_LAST;
        let is_sent_away = returns.1 > 0;
        assert!(
            may_go || is_sent_away == (hostile == Manner::Babbler),
            "{hostile:?}"
        );
    }
}
