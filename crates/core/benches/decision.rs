//! What deciding costs per packet with eight paths: scheduler and pacers, on a session that has
//! measured its paths by a transfer over links of 40 to 5 Mbit/s and 5 to 75 ms.
//!
//! `cargo bench -p tabane-core --bench decision`; the goal is 300 ns. Cutting data into pieces is
//! not part of it, in advance or not.
#![allow(missing_docs, reason = "criterion's macros write functions")]
#![expect(
    clippy::disallowed_methods,
    reason = "what takes time is measured by the clock"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Instant as Clock;

use criterion::{Criterion, criterion_group, criterion_main};
use tabane_base::{Bytes, Duration, Instant, Rate};
use tabane_core::{
    Endpoint, Event, FourTuple, Identity, SchedulerKind, ServerConfig, Session, SessionConfig,
    SessionHandle, SocketId, TransmitBatch,
};

const PATHS: u32 = 8;
const SERVER: SocketId = SocketId(100);
/// Packets per call, as a turn of the driver's loop would send.
const BATCH: usize = 64;

/// One link: a rate and a delay, each way.
struct Link {
    rate: Rate,
    delay: Duration,
    free_at: [Instant; 2],
    under_way: [VecDeque<(Instant, Vec<u8>)>; 2],
}

/// Both ends and the links between them.
struct World {
    now: Instant,
    client: Endpoint,
    server: Endpoint,
    handle: SessionHandle,
    server_handle: Option<SessionHandle>,
    links: Vec<Link>,
    batch: TransmitBatch,
}

fn tuple(n: u32) -> FourTuple {
    FourTuple {
        socket: SocketId(n),
        local_ip: None,
        remote: SocketAddr::from(([10, 78, 0, 1], 4_510)),
    }
}

fn server_tuple(n: u32) -> FourTuple {
    FourTuple {
        socket: SERVER,
        local_ip: None,
        remote: SocketAddr::from(([10, 0, n as u8, 2], 4_000)),
    }
}

impl World {
    fn new(scheduler: SchedulerKind) -> Self {
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
        let link = |n| Link {
            rate: Rate::from_mbps(5 * (u64::from(PATHS) - n)),
            delay: Duration::from_millis(5 + 10 * n),
            free_at: [now; 2],
            under_way: Default::default(),
        };
        Self {
            now,
            client,
            server,
            handle,
            server_handle: None,
            links: (0..u64::from(PATHS)).map(link).collect(),
            batch: TransmitBatch::new(100_000),
        }
    }

    fn session(&mut self) -> &mut Session {
        self.client.session_mut(self.handle).expect("it lives")
    }

    /// A millisecond passes.
    fn tick(&mut self) {
        self.now += Duration::from_millis(1);
        for n in 0..PATHS {
            for way in 0..2 {
                let queue = &mut self.links[n as usize].under_way[way];
                while queue.front().is_some_and(|(at, _)| *at <= self.now) {
                    let Some((_, mut data)) = queue.pop_front() else {
                        break;
                    };
                    let now = self.now;
                    if way == 0 {
                        self.server.handle_datagram(now, server_tuple(n), &mut data);
                    } else {
                        self.client.handle_datagram(now, tuple(n), &mut data);
                    }
                }
            }
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
        while session.poll_transmit(now, &mut self.batch) {}
        while let Some(event) = session.poll_event() {
            match event {
                Event::Authorise { .. } => session.admit(now),
                Event::StreamReadable(id) => {
                    while let Ok(tabane_core::ReadState::Data(data)) = session.peek(id) {
                        let n = data.len();
                        session.consume(now, id, n);
                    }
                }
                _ => {}
            }
        }
        while session.poll_transmit(now, &mut self.batch) {}
        for transmit in self.batch.iter() {
            let n = match way {
                0 => transmit.tuple.socket.0,
                _ => (0..PATHS)
                    .find(|n| server_tuple(*n).remote == transmit.tuple.remote)
                    .expect("a link"),
            };
            let link = &mut self.links[n as usize];
            for datagram in transmit.contents.chunks(transmit.segment_size) {
                let on_link = link.rate.time_for(Bytes::from(datagram.len() + 28));
                link.free_at[way] = link.free_at[way].max(now) + on_link;
                let at = link.free_at[way] + link.delay;
                link.under_way[way].push_back((at, datagram.to_vec()));
            }
        }
    }

    /// A session that has used all its paths and has nothing under way, but much to send.
    fn measured(scheduler: SchedulerKind) -> Self {
        let mut world = Self::new(scheduler);
        (0..500).for_each(|_| world.tick());
        let now = world.now;
        for n in 1..PATHS {
            world.session().open_path(now, tuple(n)).expect("room");
        }
        (0..500).for_each(|_| world.tick());
        let id = world.session().open_stream(now).expect("connected");
        let data = vec![7; 65_536];
        for _ in 0..4_000 {
            let now = world.now;
            while world.session().write(now, id, &data).is_ok_and(|n| n > 0) {}
            world.tick();
        }
        // What was written leaves and is acknowledged; then the next waits.
        for _ in 0..3_000 {
            world.tick();
        }
        let now = world.now;
        while world.session().write(now, id, &data).is_ok_and(|n| n > 0) {}
        let paths = world.session().snapshot(now).paths;
        let active = paths.iter().filter(|path| path.in_flight == Bytes::ZERO);
        assert_eq!(
            active.count(),
            PATHS as usize,
            "{scheduler}: paths are busy"
        );
        world
    }
}

fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision per packet, 8 paths");
    for scheduler in SchedulerKind::ALL {
        let mut world = World::measured(scheduler);
        let mut now = world.now;
        group.bench_function(scheduler.name(), |b| {
            b.iter_custom(|packets| {
                let begun = Clock::now();
                let mut decided = 0;
                while decided < packets {
                    // As long as the links take for a batch.
                    now += Duration::from_millis(1);
                    decided += black_box(world.session().decide(now, BATCH)) as u64;
                }
                begun
                    .elapsed()
                    .mul_f64(packets as f64 / decided.max(1) as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
