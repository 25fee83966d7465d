//! What may be done to a world from outside: by its application, its links and strangers.

use tabane_base::{Bytes, Duration};
use tabane_core::{
    ClassId, CloseReason, DatagramOrder, FlowId, FourTuple, PathError, PathId, Session,
    SessionHandle,
};
use tabane_netem::Direction;

use super::{LOOSE, World, server, server_identity};
use crate::beside::Beside;
use crate::flow::{Flow, UdpLoad};
use crate::host::Host;
use crate::job::{Job, JobId, Pace, Transfer};
use crate::network::{Foreign, LinkId};
use crate::side::Side;

impl World {
    /// The client begins a session over all links.
    pub fn connect(&mut self) -> SessionHandle {
        let tuples = self.tuples();
        let handle = self.begin(self.setup.token.clone(), tuples);
        self.session = Some(handle);
        handle
    }

    /// The client begins another session over all links, beside its own, if there are any.
    pub fn connect_beside(&mut self) {
        let token = format!("beside {}", self.beside.len()).into_bytes();
        let tuples = self.tuples();
        if tuples.is_empty() {
            return;
        }
        let client = self.begin(Some(token.clone()), tuples);
        self.beside.push(Beside::new(client, token));
        self.settle();
    }

    /// A session beside opens a stream for so many bytes each way.
    pub fn say_beside(&mut self, number: usize, up: usize, down: usize) {
        let mut rng = self
            .setup
            .seed
            .rng(&format!("beside {number} {}", self.now));
        let mut bytes = |len: usize| {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            bytes
        };
        let (up, down) = (bytes(up), bytes(down));
        let clock = self.clock(Side::Client);
        let beside = &mut self.beside[number];
        beside.say(up, down);
        if let Some(session) = self.client.endpoint_mut().session_mut(beside.client) {
            beside.run(clock, Side::Client, session);
            self.client.touch(beside.client);
        }
        self.settle();
    }

    /// Sessions beside get a path over every link, as a driver does that sees new interfaces.
    pub fn open_paths_beside(&mut self) {
        let (clock, tuples) = (self.clock(Side::Client), self.tuples());
        for beside in &self.beside {
            let session = self.client.endpoint_mut().session_mut(beside.client);
            if let Some(session) = session.filter(|session| session.is_connected()) {
                // Some have one.
                tuples
                    .iter()
                    .for_each(|tuple| _ = session.open_path(clock, *tuple));
                self.client.touch(beside.client);
            }
        }
        self.settle();
    }

    /// Sessions beside end.
    pub fn close_beside(&mut self) {
        let clock = self.clock(Side::Client);
        for beside in &self.beside {
            if let Some(session) = self.client.endpoint_mut().session_mut(beside.client) {
                session.close(clock, CloseReason::Finished);
                self.client.touch(beside.client);
            }
        }
        self.settle();
    }

    pub(super) fn links_present(&self) -> impl Iterator<Item = LinkId> {
        let links = (0..self.network.len()).map(LinkId);
        links.filter(|link| self.network.is_present(*link))
    }

    fn tuples(&self) -> Vec<FourTuple> {
        let links = self.links_present();
        links.map(|link| self.network.client_tuple(link)).collect()
    }

    pub(super) fn begin(&mut self, token: Option<Vec<u8>>, ways: Vec<FourTuple>) -> SessionHandle {
        let own = || server_identity(&self.setup).public_key();
        let peer = self.setup.pinned.unwrap_or_else(own);
        let clock = self.clock(Side::Client);
        let endpoint = self.client.endpoint_mut();
        let handle = endpoint.connect(clock, peer, token, ways);
        let handle = handle.expect("there is a link");
        self.client.touch(handle);
        handle
    }

    /// An end's clock leaps forward, as after a sleep that nobody has noticed.
    pub fn leap(&mut self, side: Side, span: Duration) {
        self.settle();
        self.host_mut(side).leap(span);
    }

    /// Adds a transfer; it begins when the session is connected and its time has come.
    pub fn add(&mut self, transfer: Transfer) -> JobId {
        let id = JobId(self.jobs.len());
        let seed = self.setup.seed.split(&format!("job {}", id.0));
        self.jobs.push(Job::new(transfer, seed));
        id
    }

    /// Has a job's stream belong to a class, from its first byte on if it has not begun.
    pub fn classify(&mut self, job: JobId, class: ClassId) {
        let now = self.clock(Side::Client);
        let job = &mut self.jobs[job.0];
        job.class = class;
        if let Some(id) = job.stream() {
            self.with_session(Side::Client, |session| {
                session.set_stream_class(now, id, class);
            });
            self.settle();
        }
    }

    /// Adds a UDP flow; it begins when the session is connected and its time has come.
    pub fn add_flow(&mut self, load: UdpLoad) {
        let id = FlowId(self.flows.len() as u64 + 1);
        self.flows.push(Flow::new(id, load));
    }

    /// Changes how fast one end of a job reads.
    pub fn set_pace(&mut self, job: JobId, side: Side, pace: Pace) {
        self.jobs[job.0].set_pace(self.now, side, pace);
        self.run_job(job, side);
        self.settle();
    }

    /// An end abandons its writing side of a job.
    pub fn reset(&mut self, job: JobId, side: Side, code: u64) {
        let now = self.clock(side);
        if let Some(id) = self.jobs[job.0].stream_at(side) {
            self.with_session(side, |session| session.reset(now, id, code));
            self.jobs[job.0].on_write_over(side);
        }
        self.settle();
    }

    /// An end wants no more of what the other writes for a job.
    pub fn stop(&mut self, job: JobId, side: Side, code: u64) {
        let now = self.clock(side);
        if let Some(id) = self.jobs[job.0].stream_at(side) {
            self.with_session(side, |session| session.stop(now, id, code));
            self.jobs[job.0].on_stopped(side);
        }
        self.settle();
    }

    /// The client opens a path over `link`.
    ///
    /// # Errors
    /// What the session says.
    ///
    /// # Panics
    /// Before [`connect`](Self::connect).
    pub fn open_path(&mut self, link: LinkId) -> Result<PathId, PathError> {
        let now = self.clock(Side::Client);
        let tuple = self.network.client_tuple(link);
        let session = self.client_session().expect("a session was begun");
        let result = session.open_path(now, tuple);
        self.settle();
        result
    }

    /// An end closes a path.
    pub fn close_path(&mut self, side: Side, path: PathId) {
        let now = self.clock(side);
        // It may be gone already.
        self.with_session(side, |session| _ = session.close_path(now, path));
        self.settle();
    }

    /// The client's interface of a link vanishes, and its driver notices.
    pub fn lose_interface(&mut self, link: LinkId) {
        let now = self.clock(Side::Client);
        self.network.set_present(link, false);
        let socket = self.network.client_tuple(link).socket;
        self.with_session(Side::Client, |session| {
            session.handle_socket_lost(now, socket)
        });
        self.settle();
    }

    /// An end closes the session.
    pub fn close(&mut self, side: Side, reason: CloseReason) {
        let now = self.clock(side);
        self.with_session(side, |session| session.close(now, reason));
        self.settle();
    }

    /// A machine is suspended until [`World::wake`]: what arrives is lost and no timer fires, while
    /// time goes on for it too (`CLOCK_BOOTTIME`). Jobs with a pace would be carried on.
    pub fn suspend(&mut self, side: Side) {
        self.settle();
        self.host_mut(side).set_asleep(true);
    }

    /// A suspended machine goes on.
    pub fn wake(&mut self, side: Side) {
        self.host_mut(side).set_asleep(false);
    }

    /// The server loses all its sessions, and goes on with the same key.
    pub fn restart_server(&mut self) {
        let endpoint = server(&self.setup, "server restarted");
        self.server = Host::new(Side::Server, endpoint, self.setup.admission.clone());
    }

    /// Hands a datagram to an end as if it had come from the network.
    pub fn inject(&mut self, to: Side, tuple: FourTuple, mut data: Vec<u8>) {
        let now = self.now;
        if to == Side::Server {
            self.network.on_injected(tuple.remote, data.len());
        }
        self.host_mut(to).handle_datagram(now, tuple, &mut data);
        self.settle();
    }

    /// Others send a packet of `size`, counted at IP level, over a link.
    pub fn send_foreign(&mut self, link: LinkId, direction: Direction, size: Bytes) {
        let packet = Foreign {
            link,
            direction,
            number: 0,
        };
        self.network.send_foreign(self.now, packet, size);
    }

    /// Sends a datagram of `len` bytes (at least 8), with its number in front.
    pub fn send_datagram(&mut self, from: Side, len: usize) {
        let (now, number) = (self.clock(from), self.datagrams.sent);
        let mut data = vec![number as u8; len.max(8)];
        data[..8].copy_from_slice(&number.to_be_bytes());
        // Most real flows are handed out in order.
        let order = DatagramOrder::Within(Duration::from_millis(number % 2 * 25));
        let mut taken = false;
        self.with_session(from, |session| {
            taken = session.send_datagram(now, LOOSE, order, &data).is_ok()
        });
        match taken {
            true => self.datagrams.sent += 1,
            false => self.datagrams.refused += 1,
        }
        self.settle();
    }

    /// Borrows an end's session and has it drained afterwards.
    pub fn with_session(&mut self, side: Side, act: impl FnOnce(&mut Session)) {
        let Some(handle) = self.handle(side) else {
            return;
        };
        let host = self.host_mut(side);
        if let Some(session) = host.endpoint_mut().session_mut(handle) {
            act(session);
            host.touch(handle);
        }
    }
}
