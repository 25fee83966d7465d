//! Client, server, links and application in one virtual time.
//!
//! The world jumps from one moment at which something is due to the next: packets that arrive are
//! handed in, timers are carried out, the application reads and writes, and everything is drained
//! before time moves on.

mod commands;
mod racing;
mod view;

use std::collections::BTreeMap;

use tabane_base::{Duration, Instant, Seed};
use tabane_core::{
    Datagram, Endpoint, Event, FlowId, Identity, PathId, PublicKey, ServerConfig, SessionConfig,
    SessionHandle, StreamId,
};
use tabane_netem::LinkSpec;

use crate::beside::Beside;
use crate::flow::Flow;
use crate::host::{Admission, Host};
use crate::job::{Job, JobId};
use crate::network::{LinkId, Network};
use crate::outcome::Outcome;
use crate::side::Side;
use racing::Race;

/// Rounds of application and drain at one instant. Each moves at least one event.
const ROUNDS_MAX: u32 = 100_000;

/// How a world begins.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Decides everything that is left to chance.
    pub seed: Seed,
    /// The links, in the order in which the client knows them.
    pub links: Vec<LinkSpec>,
    /// The client's settings.
    pub client: SessionConfig,
    /// The server's settings for its sessions.
    pub server: SessionConfig,
    /// The server's settings for accepting them.
    pub accept: ServerConfig,
    /// Whom the server lets in.
    pub admission: Admission,
    /// What the client shows.
    pub token: Option<Vec<u8>>,
    /// The key the client expects, if not the server's own.
    pub pinned: Option<PublicKey>,
    /// The client opens a path over every other link once connected.
    pub opens_paths: bool,
    /// How often memory and queues are looked at.
    pub sample_interval: Duration,
}

impl Setup {
    /// Default settings over `links`.
    #[must_use]
    pub fn new(seed: Seed, links: Vec<LinkSpec>) -> Self {
        Self {
            seed,
            links,
            client: SessionConfig::default(),
            server: SessionConfig::default(),
            accept: ServerConfig::default(),
            admission: Admission::Open,
            token: None,
            pinned: None,
            opens_paths: true,
            sample_interval: Duration::from_millis(5),
        }
    }
}

/// The flow of datagrams that are sent one by one.
const LOOSE: FlowId = FlowId(0);

/// Datagrams of the application: counted, each with a number in front.
#[derive(Clone, Debug, Default)]
pub struct DatagramCounts {
    /// Taken by the sending session.
    pub sent: u64,
    /// Refused by the sending session.
    pub refused: u64,
    /// Handed out by the receiving session.
    pub received: u64,
    numbers: std::collections::BTreeSet<u64>,
}

/// The simulated world.
pub struct World {
    now: Instant,
    setup: Setup,
    client: Host,
    server: Host,
    network: Network,
    session: Option<SessionHandle>,
    /// What it has shown.
    token: Option<Vec<u8>>,
    race: Option<Race>,
    beside: Vec<Beside>,
    jobs: Vec<Job>,
    job_by_stream: BTreeMap<StreamId, JobId>,
    up: Outcome,
    down: Outcome,
    paths_up: BTreeMap<PathId, bool>,
    /// The client was asked to open nothing new.
    is_sent_away: bool,
    connected_at: Option<Instant>,
    sampled_at: Instant,
    datagrams: DatagramCounts,
    flows: Vec<Flow>,
}

impl World {
    /// A world at its beginning: both ends exist, nothing was said.
    ///
    /// # Panics
    /// When a setting is out of range.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let now = Instant::EPOCH;
        let seed = |label: &str| secret(setup.seed, label);
        let client = Identity::from_seed(seed("client identity"));
        let client = Endpoint::client(client, setup.client.clone(), seed("client"))
            .expect("the client's settings are in range");
        Self {
            now,
            client: Host::new(Side::Client, client, Admission::Open),
            server: Host::new(
                Side::Server,
                server(&setup, "server"),
                setup.admission.clone(),
            ),
            network: Network::new(&setup.links, setup.seed.split("network"), now),
            session: None,
            token: setup.token.clone(),
            race: None,
            beside: Vec::new(),
            jobs: Vec::new(),
            job_by_stream: BTreeMap::new(),
            up: Outcome::default(),
            down: Outcome::default(),
            paths_up: BTreeMap::new(),
            is_sent_away: false,
            connected_at: None,
            sampled_at: now,
            datagrams: DatagramCounts::default(),
            flows: Vec::new(),
            setup,
        }
    }

    // Running.

    /// Runs for `span`.
    pub fn run_for(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    /// Runs until `end`.
    pub fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
    }

    /// Runs until `done` holds, which is asked after every step. `false` when `limit` came first.
    pub fn run_while(&mut self, limit: Instant, mut goes_on: impl FnMut(&Self) -> bool) -> bool {
        self.settle();
        while goes_on(self) {
            if !self.step(limit) {
                return false;
            }
        }
        true
    }

    /// Goes to the next moment at which something is due, if that is not after `end`.
    fn step(&mut self, end: Instant) -> bool {
        self.settle();
        let due = [
            self.network.poll_timeout(),
            self.client.poll_timeout(),
            self.server.poll_timeout(),
            self.application_timeout(),
            self.race.as_ref().map(|race| race.next_at),
        ];
        let Some(at) = due.into_iter().flatten().min().filter(|at| *at <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(at);
        self.network.collect(self.now);
        // Nobody here waits for what others sent.
        while self.network.poll_foreign().is_some() {}
        while let Some(delivery) = self.network.poll_delivery(self.now) {
            let (now, mut data) = (self.now, delivery.data);
            self.host_mut(delivery.to)
                .handle_datagram(now, delivery.tuple, &mut data);
        }
        self.drain();
        self.client.run_timers(self.now, &mut self.network);
        self.server.run_timers(self.now, &mut self.network);
        self.run_race();
        self.run_application_timers();
        if self.now - self.sampled_at >= self.setup.sample_interval {
            self.sampled_at = self.now;
            self.sample();
        }
        true
    }

    /// Looks at what is held and what waits.
    fn sample(&mut self) {
        self.client.sample_memory(self.now);
        self.server.sample_memory(self.now);
        self.network.sample_queues(self.now);
    }

    /// Drains both ends, and lets the application answer what they tell, until nothing is left.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(
                round < ROUNDS_MAX,
                "at {}: the application never comes to rest",
                self.now
            );
            self.drain();
            if let Some((handle, event)) = self.client.poll_event() {
                self.sort_event(Side::Client, handle, event);
            } else if let Some((handle, event)) = self.server.poll_event() {
                self.sort_event(Side::Server, handle, event);
            } else {
                return;
            }
        }
    }

    fn drain(&mut self) {
        self.client.drain(self.now, &mut self.network);
        self.server.drain(self.now, &mut self.network);
    }

    /// News of the client's session, of one beside it, or of a handshake that may become it.
    fn sort_event(&mut self, side: Side, handle: SessionHandle, event: Event) {
        let clock = self.clock(side);
        for beside in &mut self.beside {
            let host = match side {
                Side::Client => &mut self.client,
                Side::Server => &mut self.server,
            };
            let is_of_it = match side {
                Side::Client => beside.client == handle,
                Side::Server => host.session_by_token(Some(&beside.token)) == Some(handle),
            };
            if is_of_it {
                if let Some(session) = host.endpoint_mut().session_mut(handle) {
                    beside.run(clock, side, session);
                }
                host.touch(handle);
                return;
            }
        }
        if side == Side::Client {
            match &event {
                Event::Connected => self.on_race_won(handle),
                Event::Closed(reason) => self.on_race_lost(handle, reason),
                _ => {}
            }
        }
        if self.handle(side) == Some(handle) {
            self.on_event(side, event);
        }
    }

    fn on_event(&mut self, side: Side, event: Event) {
        match event {
            Event::Connected if side == Side::Client => self.on_connected(),
            Event::PathUp(id) if side == Side::Client => drop(self.paths_up.insert(id, true)),
            Event::PathDown(id, _) if side == Side::Client => {
                self.paths_up.insert(id, false);
            }
            Event::StreamOpened(id) => {
                if let Some(job) = self.job_by_stream.get(&id).copied() {
                    self.jobs[job.0].on_accepted();
                    self.run_job(job, side);
                }
            }
            Event::StreamReadable(id)
            | Event::StreamReset { id, .. }
            | Event::StreamWritable(id) => {
                if let Some(job) = self.job_by_stream.get(&id).copied() {
                    self.run_job(job, side);
                }
            }
            Event::StreamStopped { id, .. } => {
                if let Some(job) = self.job_by_stream.get(&id).copied() {
                    self.jobs[job.0].on_write_over(side);
                    self.run_job(job, side);
                }
            }
            Event::DatagramsReadable => self.take_datagrams(side),
            Event::SentAway => self.is_sent_away = true,
            Event::Connected
            | Event::PathUp(_)
            | Event::PathDown(..)
            | Event::Authorise { .. }
            | Event::Closed(_) => {}
        }
    }

    fn on_connected(&mut self) {
        self.connected_at = Some(self.now);
        if self.setup.opens_paths {
            let now = self.clock(Side::Client);
            let used = self.client_snapshot_socket();
            for link in (0..self.network.len()).map(LinkId) {
                let tuple = self.network.client_tuple(link);
                if Some(tuple.socket) != used && self.network.is_present(link) {
                    self.with_session(Side::Client, |session| {
                        session
                            .open_path(now, tuple)
                            .expect("links are no more than paths");
                    });
                }
            }
        }
        self.start_jobs();
    }

    fn client_snapshot_socket(&self) -> Option<tabane_core::SocketId> {
        let session = self.client.endpoint().session(self.session?)?;
        session
            .snapshot(self.now)
            .paths
            .first()
            .map(|path| path.tuple.socket)
    }

    fn start_jobs(&mut self) {
        for index in 0..self.jobs.len() {
            let job = &self.jobs[index];
            if job.stream().is_some() || job.starts_at() > self.now {
                continue;
            }
            let now = self.clock(Side::Client);
            let mut opened = None;
            let class = job.class;
            self.with_session(Side::Client, |session| {
                opened = session.open_stream(now).ok();
                if let Some(id) = opened {
                    session.set_stream_class(now, id, class);
                }
            });
            if let Some(id) = opened {
                self.jobs[index].set_stream(id);
                self.job_by_stream.insert(id, JobId(index));
                self.run_job(JobId(index), Side::Client);
            }
        }
    }

    /// Reads and writes what can be read and written of a job at one end.
    fn run_job(&mut self, id: JobId, side: Side) {
        let (now, clock) = (self.now, self.clock(side));
        let Some(handle) = self.handle(side) else {
            return;
        };
        let host = match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        };
        let Some(session) = host.endpoint_mut().session_mut(handle) else {
            return;
        };
        if !session.is_connected() {
            return;
        }
        let job = &mut self.jobs[id.0];
        let n = job.read_on((now, clock), side, session);
        job.write(clock, side, session);
        host.touch(handle);
        match side {
            Side::Client => self.down.on_delivered(now, n),
            Side::Server => self.up.on_delivered(now, n),
        }
    }

    fn take_datagrams(&mut self, side: Side) {
        let Some(handle) = self.handle(side) else {
            return;
        };
        let host = match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        };
        let Some(session) = host.endpoint_mut().session_mut(handle) else {
            return;
        };
        while let Some(Datagram { flow, data, .. }) = session.poll_datagram() {
            if flow != LOOSE {
                let flow = self.flows.iter_mut().find(|other| other.id() == flow);
                flow.expect("nobody else sends").receive(self.now, &data);
                continue;
            }
            let (head, rest) = data.split_first_chunk::<8>().expect("a number in front");
            let number = u64::from_be_bytes(*head);
            assert!(
                rest.iter().all(|byte| *byte == number as u8),
                "datagram {number} is damaged"
            );
            assert!(
                self.datagrams.numbers.insert(number),
                "datagram {number} came twice"
            );
            self.datagrams.received += 1;
        }
        host.touch(handle);
    }

    fn application_timeout(&self) -> Option<Instant> {
        let connected = self.connected_at?;
        let starts = self.jobs.iter().filter(|job| job.stream().is_none());
        let starts = starts
            .map(|job| job.starts_at().max(connected))
            .filter(|at| *at > self.now);
        let sides = [Side::Client, Side::Server];
        let reads = self
            .jobs
            .iter()
            .flat_map(|job| sides.map(|side| job.reads_at(side)));
        let flows = self.flows.iter().filter_map(Flow::sends_at);
        let flows = flows.map(|at| at.max(connected));
        starts.chain(reads.flatten()).chain(flows).min()
    }

    fn run_flows(&mut self) {
        let now = self.now;
        let mut flows = std::mem::take(&mut self.flows);
        for flow in &mut flows {
            if flow.sends_at().is_some_and(|at| at <= now) {
                let clock = self.clock(flow.from());
                self.with_session(flow.from(), |session| flow.send((now, clock), session));
            }
        }
        self.flows = flows;
    }

    fn run_application_timers(&mut self) {
        if self.connected_at.is_none() {
            return;
        }
        self.start_jobs();
        self.run_flows();
        for index in 0..self.jobs.len() {
            for side in [Side::Client, Side::Server] {
                if self.jobs[index]
                    .reads_at(side)
                    .is_some_and(|at| at <= self.now)
                {
                    self.run_job(JobId(index), side);
                }
            }
        }
    }
}

fn server_identity(setup: &Setup) -> Identity {
    Identity::from_seed(secret(setup.seed, "server identity"))
}

fn server(setup: &Setup, label: &str) -> Endpoint {
    let identity = server_identity(setup);
    let (config, accept) = (setup.server.clone(), setup.accept.clone());
    Endpoint::server(identity, config, accept, secret(setup.seed, label))
        .expect("the server's settings are in range")
}

/// Thirty-two bytes for `label`.
fn secret(seed: Seed, label: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    seed.rng(label).fill(&mut bytes);
    bytes
}
