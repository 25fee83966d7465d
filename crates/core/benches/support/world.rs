//! Both ends of a session and links between them, in virtual time: what the benches work on.
//!
//! Each thing that a driver does with core is one function here. While counted they are others,
//! which a profiler finds by their names.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tabane_base::{Bytes, Duration, Instant, Rate};
use tabane_core::{
    Endpoint, Event, FourTuple, Identity, ReadState, SchedulerKind, ServerConfig, Session,
    SessionConfig, SessionHandle, SocketId, StreamId, TransmitBatch,
};

const SERVER: SocketId = SocketId(100);
const TICK: Duration = Duration::from_millis(1);

/// One link: a rate and a delay, each way.
struct Link {
    rate: Rate,
    delay: Duration,
    free_at: [Instant; 2],
    under_way: [VecDeque<(Instant, Vec<u8>)>; 2],
}

/// Datagrams while counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// From the client, nearly all of them data.
    pub(crate) data: u64,
    /// From the server, nearly all of them acknowledgements.
    pub(crate) answers: u64,
}

/// Both ends and the links between them. The client sends.
pub(crate) struct World {
    pub(crate) now: Instant,
    client: Endpoint,
    server: Endpoint,
    handle: SessionHandle,
    server_handle: Option<SessionHandle>,
    links: Vec<Link>,
    batch: TransmitBatch,
    pub(crate) counted: Option<Counted>,
}

/// The client's end of link `n`.
fn tuple(n: usize) -> FourTuple {
    FourTuple {
        socket: SocketId(n as u32),
        local_ip: None,
        remote: SocketAddr::from(([10, 78, 0, 1], 4_510)),
    }
}

fn server_tuple(n: usize) -> FourTuple {
    FourTuple {
        socket: SERVER,
        local_ip: None,
        remote: SocketAddr::from(([10, 0, n as u8, 2], 4_000)),
    }
}

impl World {
    /// A session that uses all of `links`.
    pub(crate) fn connected(scheduler: SchedulerKind, links: &[(Rate, Duration)]) -> Self {
        let config = SessionConfig {
            scheduler,
            ..SessionConfig::default()
        };
        let identity = Identity::from_seed([1; 32]);
        let key = identity.public_key();
        let accept = ServerConfig::default();
        let server = Endpoint::server(identity, config.clone(), accept, [2; 32]).expect("valid");
        let me = Identity::from_seed([3; 32]);
        let mut client = Endpoint::client(me, config, [4; 32]).expect("valid");
        let now = Instant::from_millis(1_000);
        let handle = client
            .connect(now, key, None, vec![tuple(0)])
            .expect("a link");
        let link = |(rate, delay): &(Rate, Duration)| Link {
            rate: *rate,
            delay: *delay,
            free_at: [now; 2],
            under_way: Default::default(),
        };
        let mut world = Self {
            now,
            client,
            server,
            handle,
            server_handle: None,
            links: links.iter().map(link).collect(),
            batch: TransmitBatch::new(100_000),
            counted: None,
        };
        (0..500).for_each(|_| world.tick());
        let now = world.now;
        for n in 1..links.len() {
            world.session().open_path(now, tuple(n)).expect("room");
        }
        (0..500).for_each(|_| world.tick());
        world
    }

    /// The client's.
    pub(crate) fn session(&mut self) -> &mut Session {
        self.client.session_mut(self.handle).expect("it lives")
    }

    /// Writes as much as there is room for.
    pub(crate) fn write(&mut self, id: StreamId, data: &[u8]) {
        let (now, is_counted) = (self.now, self.counted.is_some());
        let session = self.session();
        let write = if is_counted { counted_write } else { write };
        while write(session, now, id, data) > 0 {}
    }

    /// A millisecond passes.
    pub(crate) fn tick(&mut self) {
        self.now += TICK;
        for n in 0..self.links.len() {
            self.deliver(n, 0);
            self.deliver(n, 1);
        }
        self.server_handle = self.server_handle.or_else(|| self.server.poll_incoming());
        let now = self.now;
        self.session().handle_timeout(now);
        self.drain(0);
        if let Some(handle) = self.server_handle
            && let Some(session) = self.server.session_mut(handle)
        {
            session.handle_timeout(now);
            self.drain(1);
        }
    }

    /// What has come over link `n`, upwards (0) or downwards (1).
    fn deliver(&mut self, n: usize, way: usize) {
        while self.links[n].under_way[way]
            .front()
            .is_some_and(|(at, _)| *at <= self.now)
        {
            let Some((_, mut data)) = self.links[n].under_way[way].pop_front() else {
                return;
            };
            let (endpoint, tuple, receive): (_, _, Receive) = match (way, &mut self.counted) {
                (0, None) => (&mut self.server, server_tuple(n), receive),
                (0, Some(counted)) => {
                    counted.data += 1;
                    (&mut self.server, server_tuple(n), counted_receive)
                }
                (_, None) => (&mut self.client, tuple(n), receive),
                (_, Some(counted)) => {
                    counted.answers += 1;
                    (&mut self.client, tuple(n), counted_acknowledge)
                }
            };
            receive(endpoint, self.now, tuple, &mut data);
        }
    }

    /// Everything that one end has to send and to tell.
    fn drain(&mut self, way: usize) {
        let (endpoint, handle) = match (way, self.server_handle) {
            (0, _) => (&mut self.client, self.handle),
            (_, Some(handle)) => (&mut self.server, handle),
            (_, None) => return,
        };
        self.batch.clear();
        let now = self.now;
        while endpoint.poll_transmit(now, &mut self.batch) {}
        let Some(session) = endpoint.session_mut(handle) else {
            return;
        };
        let is_counted = self.counted.is_some();
        let send = match (way, is_counted) {
            (_, false) => send,
            (0, true) => counted_send,
            (_, true) => counted_answer,
        };
        send(session, now, &mut self.batch);
        while let Some(event) = session.poll_event() {
            match event {
                Event::Authorise { .. } => session.admit(now),
                Event::StreamReadable(id) => match is_counted {
                    true => counted_read(session, now, id),
                    false => read(session, now, id),
                },
                _ => {}
            }
        }
        send(session, now, &mut self.batch);
        self.put_on_links(way);
    }

    fn put_on_links(&mut self, way: usize) {
        for transmit in self.batch.iter() {
            let n = match way {
                0 => transmit.tuple.socket.0 as usize,
                _ => (0..self.links.len())
                    .find(|n| server_tuple(*n).remote == transmit.tuple.remote)
                    .expect("a link"),
            };
            let link = &mut self.links[n];
            for datagram in transmit.contents.chunks(transmit.segment_size) {
                let on_link = link.rate.time_for(Bytes::from(datagram.len() + 28));
                link.free_at[way] = link.free_at[way].max(self.now) + on_link;
                let at = link.free_at[way] + link.delay;
                link.under_way[way].push_back((at, datagram.to_vec()));
            }
        }
    }
}

type Receive = fn(&mut Endpoint, Instant, FourTuple, &mut [u8]);

fn receive(endpoint: &mut Endpoint, now: Instant, tuple: FourTuple, data: &mut [u8]) {
    endpoint.handle_datagram(now, tuple, data);
}

fn send(session: &mut Session, now: Instant, batch: &mut TransmitBatch) {
    while session.poll_transmit(now, batch) {}
}

fn write(session: &mut Session, now: Instant, id: StreamId, data: &[u8]) -> usize {
    session.write(now, id, data).unwrap_or(0)
}

fn read(session: &mut Session, now: Instant, id: StreamId) {
    while let Ok(ReadState::Data(data)) = session.peek(id) {
        let n = data.len();
        session.consume(now, id, n);
    }
}

/// The receiver takes in data.
#[inline(never)]
fn counted_receive(endpoint: &mut Endpoint, now: Instant, tuple: FourTuple, data: &mut [u8]) {
    receive(endpoint, now, tuple, data);
}

/// The sender takes in acknowledgements.
#[inline(never)]
fn counted_acknowledge(endpoint: &mut Endpoint, now: Instant, tuple: FourTuple, data: &mut [u8]) {
    receive(endpoint, now, tuple, data);
    // Or the linker makes one function of this and the one above.
    std::hint::black_box(1);
}

/// The sender builds and seals packets.
#[inline(never)]
fn counted_send(session: &mut Session, now: Instant, batch: &mut TransmitBatch) {
    send(session, now, batch);
}

/// The receiver builds and seals acknowledgements.
#[inline(never)]
fn counted_answer(session: &mut Session, now: Instant, batch: &mut TransmitBatch) {
    send(session, now, batch);
    std::hint::black_box(1);
}

/// A program's bytes come into core.
#[inline(never)]
fn counted_write(session: &mut Session, now: Instant, id: StreamId, data: &[u8]) -> usize {
    write(session, now, id, data)
}

/// They leave it at the other end.
#[inline(never)]
fn counted_read(session: &mut Session, now: Instant, id: StreamId) {
    read(session, now, id);
}
