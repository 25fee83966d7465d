//! Several sessions of the shipped engine, all from one client, and others' traffic on the same
//! links: what the papers' experiments run in.
//!
//! Each session carries one load from the client to the server, which takes everything at once.
//! What is measured is what the receiving application sees: when each datagram came, how much
//! stream data it has, and how much waits for order. What travels is zeros; that bytes arrive
//! right is tested elsewhere.

use std::collections::BTreeMap;

use tabane_base::{Bytes, Duration, Instant, Seed};
use tabane_core::{
    Datagram, DatagramOrder, Endpoint, Event, FlowId, FourTuple, Identity, ReadState, ServerConfig,
    Session, SessionConfig, SessionHandle, StreamId,
};
use tabane_netem::LinkSpec;

use super::cross::{CrossTraffic, Crossing};
use crate::host::{Admission, Host};
use crate::network::{LinkId, Network};
use crate::outcome::PathOutcome;
use crate::side::Side;

/// Bytes handed to a stream at once.
static CHUNK: [u8; 65_536] = [0; 65_536];
/// Rounds of application and drain at one instant. Each moves at least one event.
const ROUNDS_MAX: u32 = 100_000;

/// What each session carries from client to server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// A stream of so many bytes; `Bytes::MAX` never ends.
    Stream(Bytes),
    /// Datagrams of `size` bytes, numbered from 0, as fast as the session takes them.
    Datagrams {
        count: u64,
        size: usize,
        order: DatagramOrder,
    },
}

/// An experiment.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: Seed,
    pub(crate) links: Vec<LinkSpec>,
    pub(crate) client: SessionConfig,
    pub(crate) server: SessionConfig,
    /// Sessions at once.
    pub(crate) sessions: usize,
    pub(crate) load: Load,
    pub(crate) cross: Option<CrossTraffic>,
    /// When it ends, if the loads do not end earlier.
    pub(crate) duration: Duration,
    /// How often what waits for order is looked at.
    pub(crate) sample_interval: Duration,
}

/// A datagram at the receiving application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) number: u64,
}

/// One session from client to server.
#[derive(Debug)]
struct Connection {
    client: SessionHandle,
    server: Option<SessionHandle>,
    /// Paths that came up. The load begins when all have: the papers' hosts were attached to every
    /// network before they sent.
    paths_up: usize,
    stream: Option<StreamId>,
    /// Bytes written, or datagrams sent.
    written: u64,
    delivered: Bytes,
    finished_at: Option<Instant>,
}

/// What an experiment came to. Times count from the start of the load of the first session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// When the first session could send.
    pub(crate) started_at: Instant,
    pub(crate) ended_at: Instant,
    /// Datagrams of all sessions, in the order in which they came.
    pub(crate) arrivals: Vec<Arrival>,
    /// Bytes that wait for order in the first session's receiver, by time.
    pub(crate) held: Vec<(Instant, Bytes)>,
    /// Stream bytes that each session has delivered.
    pub(crate) delivered: Vec<Bytes>,
    /// When each session had delivered everything.
    pub(crate) finished_at: Vec<Option<Instant>>,
    /// What cross traffic delivered.
    pub(crate) crossed: Bytes,
    /// The first session's paths as its sender sees them, by link.
    pub(crate) paths: Vec<PathOutcome>,
}

impl Record {
    /// How long the first session took for everything, if it did.
    pub(crate) fn took(&self) -> Option<Duration> {
        let finished = self.finished_at.first().copied().flatten()?;
        Some(finished - self.started_at)
    }
}

struct Arena {
    now: Instant,
    plan: Plan,
    client: Host,
    server: Host,
    network: Network,
    crossing: Option<Crossing>,
    connections: Vec<Connection>,
    by_client: BTreeMap<SessionHandle, usize>,
    by_server: BTreeMap<SessionHandle, usize>,
    sampled_at: Option<Instant>,
    record: Record,
}

/// Runs an experiment.
///
/// # Panics
/// When a setting is out of range or the engine breaks its contract.
pub(crate) fn run(plan: Plan) -> Record {
    let mut arena = Arena::new(plan);
    let end = Instant::EPOCH + arena.plan.duration;
    arena.settle();
    while !arena.is_over() && arena.step(end) {}
    arena.finish()
}

impl Arena {
    fn new(plan: Plan) -> Self {
        let now = Instant::EPOCH;
        let secret = |label: &str| {
            let mut bytes = [0; 32];
            plan.seed.rng(label).fill(&mut bytes);
            bytes
        };
        let identity = Identity::from_seed(secret("server identity"));
        let peer = identity.public_key();
        let accept = ServerConfig::default();
        let server = Endpoint::server(identity, plan.server.clone(), accept, secret("server"))
            .expect("the server's settings are in range");
        let identity = Identity::from_seed(secret("client identity"));
        let mut client = Endpoint::client(identity, plan.client.clone(), secret("client"))
            .expect("the client's settings are in range");
        let network = Network::new(&plan.links, plan.seed.split("network"), now);
        let tuples: Vec<FourTuple> = (0..network.len())
            .map(|link| network.client_tuple(LinkId(link)))
            .collect();
        let mut by_client = BTreeMap::new();
        let mut connections = Vec::new();
        for index in 0..plan.sessions {
            // The token tells the server which of the sessions it is.
            let token = Some(vec![index as u8]);
            let handle = client
                .connect(now, peer, token, tuples.clone())
                .expect("there is a link");
            by_client.insert(handle, index);
            connections.push(Connection::new(handle));
        }
        let mut client = Host::new(Side::Client, client, Admission::Open);
        by_client.keys().for_each(|handle| client.touch(*handle));
        Self {
            now,
            client,
            server: Host::new(Side::Server, server, Admission::Open),
            crossing: plan
                .cross
                .map(|traffic| Crossing::new(traffic, plan.links.len())),
            network,
            connections,
            by_client,
            by_server: BTreeMap::new(),
            sampled_at: None,
            record: Record::default(),
            plan,
        }
    }

    fn is_over(&self) -> bool {
        self.connections
            .iter()
            .all(|connection| connection.finished_at.is_some())
    }

    /// Goes to the next moment at which something is due, if that is not after `end`.
    fn step(&mut self, end: Instant) -> bool {
        let due = [
            self.network.poll_timeout(),
            self.client.poll_timeout(),
            self.server.poll_timeout(),
            self.crossing
                .as_ref()
                .and_then(|crossing| crossing.poll_timeout(self.now)),
        ];
        let Some(at) = due.into_iter().flatten().min().filter(|at| *at <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(at);
        self.network.collect(self.now);
        if let Some(crossing) = &mut self.crossing {
            while let Some(packet) = self.network.poll_foreign() {
                crossing.handle(self.now, packet, &mut self.network);
            }
            crossing.run(self.now, &mut self.network);
        }
        while let Some(delivery) = self.network.poll_delivery(self.now) {
            let mut data = delivery.data;
            let host = match delivery.to {
                Side::Client => &mut self.client,
                Side::Server => &mut self.server,
            };
            host.handle_datagram(self.now, delivery.tuple, &mut data);
        }
        self.drain();
        self.client.run_timers(self.now, &mut self.network);
        self.server.run_timers(self.now, &mut self.network);
        self.settle();
        self.sample();
        true
    }

    fn drain(&mut self) {
        self.client.drain(self.now, &mut self.network);
        self.server.drain(self.now, &mut self.network);
    }

    /// Drains both ends and lets the application act, until nothing is left to do.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(
                round < ROUNDS_MAX,
                "at {}: the application never comes to rest",
                self.now
            );
            self.drain();
            let mut quiet = true;
            while let Some((handle, event)) = self.client.poll_event() {
                quiet = false;
                self.on_client_event(handle, &event);
            }
            while let Some((handle, event)) = self.server.poll_event() {
                quiet = false;
                self.on_server_event(handle, &event);
            }
            for index in 0..self.connections.len() {
                quiet &= !self.send(index);
            }
            if quiet {
                return;
            }
        }
    }

    fn on_client_event(&mut self, handle: SessionHandle, event: &Event) {
        let now = self.now;
        let connection = &mut self.connections[self.by_client[&handle]];
        match event {
            Event::Connected => {
                let session = self.client.endpoint_mut().session_mut(handle);
                let session = session.expect("a connected session exists");
                let used = session
                    .snapshot(now)
                    .paths
                    .first()
                    .map(|path| path.tuple.socket);
                for link in (0..self.network.len()).map(LinkId) {
                    let tuple = self.network.client_tuple(link);
                    if Some(tuple.socket) != used {
                        session
                            .open_path(now, tuple)
                            .expect("links are no more than paths");
                    }
                }
                self.client.touch(handle);
            }
            Event::PathUp(_) => connection.paths_up += 1,
            Event::Closed(reason) => panic!("at {now}: a session ended: {reason}"),
            _ => {}
        }
    }

    fn on_server_event(&mut self, handle: SessionHandle, event: &Event) {
        match event {
            Event::Authorise { token, .. } => {
                let index = token.as_ref().and_then(|token| token.first().copied());
                let index = usize::from(index.expect("every session shows its number"));
                self.by_server.insert(handle, index);
                self.connections[index].server = Some(handle);
            }
            Event::StreamOpened(id) | Event::StreamReadable(id) => self.read(handle, *id),
            Event::DatagramsReadable => self.take_datagrams(handle),
            Event::Closed(reason) => panic!("at {}: a session ended: {reason}", self.now),
            _ => {}
        }
    }

    /// Hands a session what it takes of its load. `true` when that was anything.
    fn send(&mut self, index: usize) -> bool {
        let connection = &mut self.connections[index];
        if connection.paths_up < self.plan.links.len() || connection.finished_at.is_some() {
            return false;
        }
        let handle = connection.client;
        let endpoint = self.client.endpoint_mut();
        let session = endpoint
            .session_mut(handle)
            .expect("a session with paths exists");
        if !session.is_connected() {
            return false;
        }
        if self.record.started_at == Instant::EPOCH {
            self.record.started_at = self.now;
        }
        let sent = match self.plan.load {
            Load::Stream(bytes) => connection.write(self.now, session, bytes.get()),
            Load::Datagrams { count, size, order } => {
                connection.send_datagrams(self.now, session, (count, size), order)
            }
        };
        if sent {
            self.client.touch(handle);
        }
        sent
    }

    fn read(&mut self, handle: SessionHandle, id: StreamId) {
        let now = self.now;
        let connection = &mut self.connections[self.by_server[&handle]];
        let Some(session) = self.server.endpoint_mut().session_mut(handle) else {
            return;
        };
        loop {
            let n = match session.peek(id) {
                Ok(ReadState::Data(data)) => data.len(),
                Ok(ReadState::Finished) => {
                    connection.finished_at.get_or_insert(now);
                    break;
                }
                Ok(ReadState::Empty | ReadState::Reset(_)) | Err(_) => break,
            };
            session.consume(now, id, n);
            connection.delivered += Bytes::from(n);
        }
        self.server.touch(handle);
    }

    fn take_datagrams(&mut self, handle: SessionHandle) {
        let connection = &mut self.connections[self.by_server[&handle]];
        let Some(session) = self.server.endpoint_mut().session_mut(handle) else {
            return;
        };
        while let Some(Datagram { data, .. }) = session.poll_datagram() {
            let head = data.first_chunk::<8>().expect("a number in front");
            let number = u64::from_be_bytes(*head);
            self.record.arrivals.push(Arrival {
                at: self.now,
                number,
            });
            connection.delivered += Bytes::from(data.len());
            if let Load::Datagrams { count, .. } = self.plan.load
                && self.record.arrivals.len() as u64 == count * self.plan.sessions as u64
            {
                connection.finished_at.get_or_insert(self.now);
            }
        }
        self.server.touch(handle);
    }

    fn sample(&mut self) {
        let due = self
            .sampled_at
            .is_none_or(|at| self.now - at >= self.plan.sample_interval);
        let session = self
            .connections
            .first()
            .and_then(|connection| connection.server);
        let Some(handle) = session.filter(|_| due) else {
            return;
        };
        if let Some(session) = self.server.endpoint().session(handle) {
            let held = session.snapshot(self.now).receive_memory;
            self.record.held.push((self.now, held));
            self.sampled_at = Some(self.now);
        }
    }

    fn finish(mut self) -> Record {
        self.record.ended_at = self.now;
        self.record.delivered = self.connections.iter().map(|c| c.delivered).collect();
        self.record.finished_at = self.connections.iter().map(|c| c.finished_at).collect();
        self.record.crossed = self
            .crossing
            .map_or(Bytes::ZERO, |crossing| crossing.delivered());
        self.record.paths = self
            .connections
            .first()
            .and_then(|connection| self.client.endpoint().session(connection.client))
            .map(|session| paths(session, self.now, &self.network))
            .unwrap_or_default();
        self.record
    }
}

/// A session's paths by link, with the queues it sends into.
fn paths(session: &Session, now: Instant, network: &Network) -> Vec<PathOutcome> {
    let outcome = |path: tabane_core::PathSnapshot| {
        let link = LinkId(path.tuple.socket.0 as usize);
        let counters = network.counters(link, tabane_netem::Direction::Up);
        PathOutcome {
            queue_max: counters.queued_max,
            queue_drops: counters.queue_full.packets,
            path,
        }
    };
    let mut paths: Vec<_> = session
        .snapshot(now)
        .paths
        .into_iter()
        .map(outcome)
        .collect();
    paths.sort_by_key(|outcome| outcome.path.tuple.socket.0);
    paths
}

impl Connection {
    const fn new(client: SessionHandle) -> Self {
        Self {
            client,
            server: None,
            paths_up: 0,
            stream: None,
            written: 0,
            delivered: Bytes::ZERO,
            finished_at: None,
        }
    }

    fn write(&mut self, now: Instant, session: &mut Session, total: u64) -> bool {
        if self.written == total {
            return false;
        }
        let id = match self.stream {
            Some(id) => id,
            None => {
                let id = session
                    .open_stream(now)
                    .expect("the first stream is allowed");
                *self.stream.insert(id)
            }
        };
        let mut any = false;
        loop {
            let left = (total - self.written).min(CHUNK.len() as u64) as usize;
            let want = left.min(session.stream_capacity(id));
            if want == 0 {
                break;
            }
            let n = session
                .write(now, id, &CHUNK[..want])
                .expect("the stream is open");
            self.written += n as u64;
            any = true;
        }
        if self.written == total {
            session
                .finish(now, id)
                .expect("a stream that is written can be finished");
            any = true;
        }
        any
    }

    fn send_datagrams(
        &mut self,
        now: Instant,
        session: &mut Session,
        (count, size): (u64, usize),
        order: DatagramOrder,
    ) -> bool {
        let mut data = vec![0; size.max(8)];
        let before = self.written;
        while self.written < count {
            data[..8].copy_from_slice(&self.written.to_be_bytes());
            if session.send_datagram(now, FlowId(0), order, &data).is_err() {
                break;
            }
            self.written += 1;
        }
        self.written > before
    }
}
