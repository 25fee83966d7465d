//! A turn of the loop: receive, let timers pass, send, tell, set the timer.
//!
//! Owns the order of things and the bounds on a turn's work. A turn receives first and for all
//! sockets, then sends once, so that acknowledgements and credit are gathered.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::io;
use std::rc::Weak;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tabane_base::{Duration, Instant};
use tabane_core::{Endpoint, Part, Session, SessionHandle, SocketId, TransmitBatch};
use tabane_linux::{HostClock, Preemption, RecvBatch, Timer};
use tokio::task::AbortHandle;

use super::SessionId;
use super::attendance::Attendance;
use super::hosted::HostedSession;
use super::moderation::{Heard, Moderation, rest_until};
use super::notice::{Notice, Notices};
use super::sieve::Sieve;
use super::sockets::Sockets;
use crate::monitor::HostMonitor;

/// Receives per socket and turn, each up to 32 buffers of 64 KiB. Two keep a turn below some 2 ms
/// of decryption, so that programs read while data comes in.
const MAX_RECEIVES: usize = 2;

/// Filled transmit batches per session and turn, for the same reason.
const MAX_SENDS: usize = 8;

/// Bytes in one transmit batch: four full GSO sends, which stay in a core's second-level cache.
const TRANSMIT_BYTES: usize = 4 * 65_507;

/// Bytes that pass from a program's socket into a stream by one read.
const BUFFER_BYTES: usize = 256 * 1024;

/// How long timers wait while no socket takes anything: sending is what most of them are for.
const BLOCKED_WAIT: Duration = Duration::from_millis(10);

/// All that the loop and the tasks share.
pub(super) struct State {
    pub(super) endpoint: Endpoint,
    pub(super) sockets: Sockets,
    /// Takes what sessions measure.
    monitor: HostMonitor,
    pub(super) sessions: HashMap<SessionHandle, HostedSession>,
    /// Where the numbers of sessions come from.
    pub(super) serials: Arc<AtomicU64>,
    pub(super) sieve: Sieve,
    /// Sessions with something to send or tell, each once.
    pub(super) touched: Vec<SessionHandle>,
    /// Those of them that full sockets have kept from sending.
    held_back: BTreeSet<SessionHandle>,
    pub(super) deadlines: BTreeSet<(Instant, SessionHandle)>,
    /// Packets that sessions lost which have ended.
    pub(super) lost_packets: u64,
    pub(super) notices: Notices,
    pub(super) clock: HostClock,
    /// The latest time that the endpoint was told.
    pub(super) last: Instant,
    pub(super) timer: Timer,
    attendance: Attendance,
    moderation: Moderation,
    heard: Heard,
    /// The shortest round trip of the sessions that took part in this turn.
    nearest: Option<Duration>,
    preemption: Preemption,
    pub(super) received: RecvBatch,
    pub(super) transmits: TransmitBatch,
    pub(super) buffer: Box<[u8]>,
    /// Wakes the loop. `None` until its first turn.
    pub(super) waker: Option<Waker>,
    /// Ends the loop with the state.
    pub(super) task: Option<AbortHandle>,
}

/// Takes turns until the state is gone.
pub(super) async fn run(state: Weak<RefCell<State>>) {
    poll_fn(|cx| match state.upgrade() {
        Some(state) => {
            state.borrow_mut().turn(cx);
            Poll::Pending
        }
        None => Poll::Ready(()),
    })
    .await;
}

impl State {
    pub(super) fn new(endpoint: Endpoint, monitor: HostMonitor) -> io::Result<Self> {
        Ok(Self {
            endpoint,
            sockets: Sockets::default(),
            monitor,
            sessions: HashMap::new(),
            serials: Arc::default(),
            sieve: Sieve::default(),
            touched: Vec::new(),
            held_back: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            lost_packets: 0,
            notices: Notices::default(),
            clock: HostClock::new(),
            last: Instant::EPOCH,
            timer: Timer::new()?,
            attendance: Attendance::default(),
            moderation: Moderation::default(),
            heard: Heard::default(),
            nearest: None,
            preemption: Preemption::of_this_thread(),
            received: RecvBatch::new(),
            transmits: TransmitBatch::new(TRANSMIT_BYTES),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            waker: None,
            task: None,
        })
    }

    fn turn(&mut self, cx: &mut Context<'_>) {
        if !self
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            self.waker = Some(cx.waker().clone());
            self.sockets.streams.set_waker(cx.waker());
        }
        self.go_on(cx);
        let now = self.now();
        let is_late = self.attendance.begin(now);
        self.preemption.follow(now);
        let mut again = self.receive(cx, is_late);
        self.attend_streams();
        if is_late {
            self.excuse();
        }
        self.expire();
        again |= self.drain();
        again |= self.go_on(cx);
        let (now, due) = (self.now(), self.due());
        if self.attendance.end(now, due) {
            self.excuse();
        }
        again |= self.arm(cx);
        let heard = std::mem::take(&mut self.heard);
        let nearest = self.nearest.take();
        rest_until(self.moderation.after(now, heard, nearest, due));
        if again {
            cx.waker().wake_by_ref();
        }
    }

    /// Sends what waits for sockets. `true` where one takes more again: those go on whom it kept
    /// from sending.
    fn go_on(&mut self, cx: &mut Context<'_>) -> bool {
        let is_free = self.sockets.flush(cx);
        if is_free {
            let kept = std::mem::take(&mut self.held_back);
            kept.into_iter().for_each(|handle| self.touch(handle));
        }
        is_free
    }

    /// Tells sessions that nobody was there to hear their paths.
    fn excuse(&mut self) {
        let now = self.now();
        for handle in self.sessions.keys() {
            if let Some(session) = self.endpoint.session_mut(*handle) {
                session.handle_stall(now);
            }
        }
    }

    /// Takes in what the sockets hold, `unasked` also what the loop was not told of; `true` where
    /// they may hold more.
    fn receive(&mut self, cx: &mut Context<'_>, unasked: bool) -> bool {
        let mut again = false;
        let mut latest = None;
        let strangers = self.endpoint.counters().strangers;
        for i in 0..self.sockets.len() {
            let mut receives = 0;
            let mut unasked = unasked;
            while let Poll::Ready(is_more) =
                self.sockets.poll_recv(i, cx, &mut self.received, unasked)
            {
                unasked &= is_more;
                receives += 1;
                let read_at = self.clock.now();
                for datagram in self.received.datagrams() {
                    self.last = self.last.max(read_at - datagram.meta.waited);
                    self.sockets.on_received(i, datagram.payload);
                    let tuple = self.sockets.tuple(i, datagram.meta);
                    let handle = self
                        .endpoint
                        .handle_datagram(self.last, tuple, datagram.payload);
                    self.heard.all += 1;
                    if handle.is_some() && handle != latest {
                        latest = handle;
                        // Not `touch`: the batch is borrowed. A new session is not hosted yet; it
                        // comes up as incoming.
                        if let Some(handle) = handle
                            && let Some(hosted) = self.sessions.get_mut(&handle)
                            && !std::mem::replace(&mut hosted.touched, true)
                        {
                            self.touched.push(handle);
                        }
                    }
                }
                if is_more && receives == MAX_RECEIVES {
                    again = true;
                    break;
                }
            }
        }
        self.heard.strangers = self.endpoint.counters().strangers - strangers;
        again
    }

    /// Takes in what connections have brought, and their ends.
    fn attend_streams(&mut self) {
        for id in self.sockets.streams.take_ringing() {
            self.last = self.last.max(self.clock.now());
            let Self {
                endpoint,
                sockets,
                sieve,
                ..
            } = self;
            let mut moved = Vec::new();
            let news = sockets.streams.attend(id, |tuple, packet| {
                if !sieve.passes(packet) {
                    return;
                }
                let handle = endpoint.handle_datagram(self.last, tuple, packet);
                moved.extend(handle.filter(|handle| moved.last() != Some(handle)));
            });
            self.sockets
                .streams
                .note_users(id, &moved, |handle| uses(&self.endpoint, handle, id));
            moved.into_iter().for_each(|handle| self.touch(handle));
            if news.has_ended {
                self.lose(id);
            } else if news.has_room {
                for handle in self.users(id) {
                    self.touch(handle);
                }
            }
        }
    }

    /// Sessions go on without this connection.
    pub(super) fn lose(&mut self, id: SocketId) {
        let now = self.now();
        for handle in self.users(id) {
            if let Some(session) = self.endpoint.session_mut(handle) {
                session.handle_socket_lost(now, id);
            }
            self.touch(handle);
        }
        self.sockets.unbind(id);
        self.notices.push(Notice::SocketLost(id));
    }

    /// The sessions that go by a connection, of those that it has brought anything for.
    fn users(&mut self, id: SocketId) -> Vec<SessionHandle> {
        let Self {
            endpoint, sockets, ..
        } = self;
        sockets
            .streams
            .users(id, |handle| uses(endpoint, handle, id))
    }

    /// Whether a session whose client has been admitted goes by a connection.
    pub(super) fn carries_client(&mut self, id: SocketId) -> bool {
        let users = self.users(id);
        let is_connected = |handle| {
            let session = self.endpoint.session(handle);
            session.is_some_and(Session::is_connected)
        };
        users.into_iter().any(is_connected)
    }

    /// Tells sessions that their time has come.
    fn expire(&mut self) {
        let now = self.now();
        while let Some((deadline, handle)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(hosted) = self.sessions.get_mut(&handle) {
                hosted.deadline = None;
            }
            if let Some(session) = self.endpoint.session_mut(handle) {
                session.handle_timeout(now);
            }
            self.touch(handle);
        }
    }

    /// Sends and tells what touched sessions have to; `true` where one has more to send.
    fn drain(&mut self) -> bool {
        while let Some(handle) = self.endpoint.poll_incoming() {
            self.host(handle);
            self.touch(handle);
        }
        while let Some(handle) = self.endpoint.poll_ended() {
            self.touch(handle);
        }
        let mut again = false;
        let mut touched = std::mem::take(&mut self.touched);
        for handle in touched.drain(..) {
            let more = self.drain_session(handle);
            if more {
                self.touch(handle);
            }
            again |= more;
        }
        // Keeps the allocation, and what was touched again meanwhile.
        touched.append(&mut self.touched);
        self.touched = touched;

        let now = self.now();
        self.transmits.clear();
        while self.endpoint.poll_transmit(now, &mut self.transmits) {}
        self.sockets.send(&self.transmits);
        for socket in self.sockets.take_lost() {
            self.notices.push(Notice::SocketLost(socket));
        }
        again
    }

    fn drain_session(&mut self, handle: SessionHandle) -> bool {
        let now = self.now();
        let Some(hosted) = self.sessions.get_mut(&handle) else {
            return false;
        };
        hosted.touched = false;
        let Some(session) = self.endpoint.session_mut(handle) else {
            self.forget(handle);
            return false;
        };

        let mut more = false;
        if !self.sockets.all_blocked() {
            for sends in 0.. {
                self.transmits.clear();
                session.set_stream_rooms(|socket| self.sockets.streams.room(socket));
                while session.poll_transmit(now, &mut self.transmits) {}
                if self.transmits.is_empty() {
                    break;
                }
                self.sockets.send(&self.transmits);
                if sends == MAX_SENDS || self.sockets.all_blocked() {
                    more = !self.sockets.all_blocked();
                    break;
                }
            }
        }
        if self.sockets.all_blocked() {
            self.held_back.insert(handle);
        }

        let id = SessionId {
            handle,
            serial: hosted.serial,
        };
        while let Some(event) = session.poll_event() {
            if let Some(event) = hosted.dispatch(now, session, event) {
                self.notices.push(Notice::Session(id, event));
            }
        }

        while let Some(reading) = session.poll_reading(now) {
            if let Some(link) = self.sockets.link(reading.tuple.socket) {
                self.monitor.on_reading(link, hosted.clock, &reading);
            }
        }

        self.nearest = [self.nearest, session.nearest_round_trip()]
            .into_iter()
            .flatten()
            .min();
        let deadline = session.poll_timeout().map(|(deadline, _)| deadline);
        if deadline != hosted.deadline {
            if let Some(old) = hosted.deadline {
                self.deadlines.remove(&(old, handle));
            }
            if let Some(new) = deadline {
                self.deadlines.insert((new, handle));
            }
            hosted.deadline = deadline;
        }
        if session.is_closed() {
            let lost_packets = session.lost_packets();
            if self.endpoint.reap(now, handle) {
                self.lost_packets += lost_packets;
                self.forget(handle);
            }
        }
        more
    }

    /// Sets the timer for the first deadline; `true` where that has passed already.
    fn arm(&mut self, cx: &mut Context<'_>) -> bool {
        let due = self.due();
        if let Err(error) = self.timer.set(due) {
            tracing::error!(%error, "the timer cannot be set");
        }
        self.timer.poll_expired(cx).is_ready()
    }

    /// When the next turn is due.
    fn due(&mut self) -> Option<Instant> {
        let mut deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        if self.sockets.all_blocked() {
            let earliest = self.now() + BLOCKED_WAIT;
            deadline = deadline.map(|deadline| deadline.max(earliest));
        }
        deadline
    }

    pub(super) fn now(&mut self) -> Instant {
        self.last = self.last.max(self.clock.now());
        self.last
    }

    pub(super) fn host(&mut self, handle: SessionHandle) -> SessionId {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let waiting = Part::none_of(self.endpoint.receive_pool());
        let clock = self.monitor.next_clock();
        let hosted = HostedSession::new(serial, clock, self.now(), waiting);
        self.sessions.insert(handle, hosted);
        SessionId { handle, serial }
    }

    fn forget(&mut self, handle: SessionHandle) {
        if let Some(mut hosted) = self.sessions.remove(&handle) {
            hosted.wake_all();
            if let Some(deadline) = hosted.deadline {
                self.deadlines.remove(&(deadline, handle));
            }
            self.notices.push(Notice::Forgotten);
        }
    }

    pub(super) fn touch(&mut self, handle: SessionHandle) {
        if let Some(hosted) = self.sessions.get_mut(&handle)
            && !std::mem::replace(&mut hosted.touched, true)
        {
            self.touched.push(handle);
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// Whether a session goes by a socket.
fn uses(endpoint: &Endpoint, handle: SessionHandle, socket: SocketId) -> bool {
    let session = endpoint.session(handle);
    session.is_some_and(|session| session.uses(socket))
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests;
