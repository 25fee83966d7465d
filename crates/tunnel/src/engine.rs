//! The event loop: one task that joins an [`Endpoint`] with its UDP sockets and one timer.
//!
//! Owns the endpoint, the sockets, the timer and the buffers that bytes pass through, and for each
//! session who waits for which stream. A turn of the loop receives first and for all sockets, then
//! lets due timers pass, then sends once, so that acknowledgements and credit are gathered. Tasks
//! that write or read streams only mark their session as touched; the loop runs after them and
//! sends for all of them together.
//!
//! Invariants: a turn's work is bounded ([`MAX_RECEIVES`], [`MAX_SENDS`]); the time given to the
//! engine never goes back; nothing here waits while the state is borrowed. What a session is for
//! is left to the client and the relay, which take [`Notice`]s.

mod hosted;
mod notice;
mod sockets;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use tabane_base::{Duration, Instant};
use tabane_core::{
    ConnectError, Endpoint, EndpointCounters, FourTuple, PublicKey, Session, SessionHandle,
    SessionSnapshot, SocketId, StreamId, TransmitBatch,
};
use tabane_linux::{HostClock, RecvBatch, Timer, UdpBind, UdpError};
use tokio::task::AbortHandle;

use crate::flow::Inbox;
use hosted::HostedSession;
use notice::Notices;
use sockets::Sockets;

pub(crate) use notice::Notice;

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

/// A session of this engine. Never names another one, even when core uses its handle again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionId {
    handle: SessionHandle,
    serial: u64,
}

impl SessionId {
    /// Counts the sessions of this engine.
    pub(crate) const fn serial(self) -> u64 {
        self.serial
    }
}

/// The engine, shared by the tasks of one thread.
#[derive(Clone)]
pub(crate) struct Engine(Rc<RefCell<State>>);

/// What a task may do with its session while the engine is borrowed.
pub(crate) struct Visit<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) now: Instant,
    /// Scratch memory; holds nothing between visits.
    pub(crate) buffer: &'a mut [u8],
    hosted: &'a mut HostedSession,
    touched: bool,
}

struct State {
    endpoint: Endpoint,
    sockets: Sockets,
    sessions: HashMap<SessionHandle, HostedSession>,
    next_serial: u64,
    /// Sessions with something to send or tell, each once.
    touched: Vec<SessionHandle>,
    deadlines: BTreeSet<(Instant, SessionHandle)>,
    notices: Notices,
    clock: HostClock,
    /// The latest time that the endpoint was told.
    last: Instant,
    timer: Timer,
    received: RecvBatch,
    transmits: TransmitBatch,
    buffer: Box<[u8]>,
    /// Wakes the loop. `None` until its first turn.
    waker: Option<Waker>,
    /// Ends the loop with the state.
    task: Option<AbortHandle>,
}

impl Engine {
    /// Starts the loop for `endpoint` on this thread's `LocalSet`.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn start(endpoint: Endpoint) -> io::Result<Self> {
        let state = Rc::new(RefCell::new(State {
            endpoint,
            sockets: Sockets::default(),
            sessions: HashMap::new(),
            next_serial: 0,
            touched: Vec::new(),
            deadlines: BTreeSet::new(),
            notices: Notices::default(),
            clock: HostClock::new(),
            last: Instant::EPOCH,
            timer: Timer::new()?,
            received: RecvBatch::new(),
            transmits: TransmitBatch::new(TRANSMIT_BYTES),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            waker: None,
            task: None,
        }));
        let task = tokio::task::spawn_local(run(Rc::downgrade(&state)));
        state.borrow_mut().task = Some(task.abort_handle());
        Ok(Self(state))
    }

    /// Opens a socket. With `answers_locally` every datagram is answered from the address that it
    /// was sent to, as a socket that serves several addresses must.
    pub(crate) fn bind(
        &self,
        bind: UdpBind<'_>,
        mark: Option<u32>,
        answers_locally: bool,
    ) -> Result<SocketId, UdpError> {
        let mut state = self.0.borrow_mut();
        let id = state.sockets.bind(bind, mark, answers_locally)?;
        // The loop has to ask the new socket once before the kernel tells it anything.
        state.wake();
        Ok(id)
    }

    /// Closes a socket. Sessions must have been told before.
    pub(crate) fn unbind(&self, socket: SocketId) {
        self.0.borrow_mut().sockets.unbind(socket);
    }

    pub(crate) fn local_addr(&self, socket: SocketId) -> Option<SocketAddr> {
        self.0.borrow().sockets.local_addr(socket)
    }

    /// Begins a session with `peer` over all of `tuples`.
    pub(crate) fn connect(
        &self,
        peer: PublicKey,
        token: Option<Vec<u8>>,
        tuples: Vec<FourTuple>,
    ) -> Result<SessionId, ConnectError> {
        let mut state = self.0.borrow_mut();
        let now = state.now();
        let handle = state.endpoint.connect(now, peer, token, tuples)?;
        let id = state.host(handle);
        state.touch(handle);
        state.wake();
        Ok(id)
    }

    /// Lets `f` work with the session; `None` once it has ended.
    pub(crate) fn visit<R>(&self, id: SessionId, f: impl FnOnce(&mut Visit<'_>) -> R) -> Option<R> {
        let mut state = self.0.borrow_mut();
        let now = state.now();
        let State {
            endpoint,
            sessions,
            buffer,
            touched,
            waker,
            ..
        } = &mut *state;
        let hosted = sessions.get_mut(&id.handle)?;
        if hosted.serial != id.serial || hosted.is_closed {
            return None;
        }
        let session = endpoint.session_mut(id.handle)?;
        let mut visit = Visit {
            session,
            now,
            buffer,
            hosted,
            touched: false,
        };
        let result = f(&mut visit);
        if visit.touched && !std::mem::replace(&mut hosted.touched, true) {
            touched.push(id.handle);
            if let Some(waker) = waker {
                waker.wake_by_ref();
            }
        }
        Some(result)
    }

    /// Waits for the next thing that concerns sessions as a whole.
    pub(crate) async fn notice(&self) -> Notice {
        poll_fn(|cx| self.0.borrow_mut().notices.poll(cx)).await
    }

    /// Every session that has not ended.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        let state = self.0.borrow();
        let mut ids: Vec<_> = state
            .sessions
            .iter()
            .filter(|(_, hosted)| !hosted.is_closed)
            .map(|(handle, hosted)| SessionId {
                handle: *handle,
                serial: hosted.serial,
            })
            .collect();
        ids.sort_by_key(|id| id.serial);
        ids
    }

    /// Whether core still keeps the session, be it to repeat its good-bye.
    pub(crate) fn is_kept(&self, id: SessionId) -> bool {
        let state = self.0.borrow();
        let hosted = state.sessions.get(&id.handle);
        hosted.is_some_and(|hosted| hosted.serial == id.serial)
    }

    /// What there is to know about a session; `None` once it has been forgotten.
    pub(crate) fn snapshot(&self, id: SessionId) -> Option<SessionSnapshot> {
        let mut state = self.0.borrow_mut();
        let now = state.now();
        let hosted = state.sessions.get(&id.handle)?;
        if hosted.serial != id.serial {
            return None;
        }
        Some(state.endpoint.session(id.handle)?.snapshot(now))
    }

    pub(crate) fn counters(&self) -> EndpointCounters {
        self.0.borrow().endpoint.counters().clone()
    }
}

impl Visit<'_> {
    /// Declares that the session may have something to send or tell.
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// Starts listening for news of a stream.
    pub(crate) fn adopt(&mut self, stream: StreamId) {
        self.hosted.adopt(stream);
    }

    /// Stops listening.
    pub(crate) fn abandon(&mut self, stream: StreamId) {
        self.hosted.abandon(stream);
    }

    /// Wakes the task once the stream has something to read, or ends.
    pub(crate) fn park_reader(&mut self, stream: StreamId, cx: &Context<'_>) {
        self.hosted.park_reader(stream, cx.waker());
    }

    /// Wakes the task once the stream takes data, or ends.
    pub(crate) fn park_writer(&mut self, stream: StreamId, cx: &Context<'_>) {
        self.hosted.park_writer(stream, cx.waker());
    }

    /// Whether the peer reads no more of what we write.
    pub(crate) fn is_stopped(&self, stream: StreamId) -> bool {
        self.hosted.is_stopped(stream)
    }

    /// The datagrams that came in for the flow of this stream; from the first question on they
    /// are kept for it.
    pub(crate) fn inbox(&mut self, stream: StreamId) -> &mut Inbox {
        self.hosted.flows.inbox(stream, self.now)
    }
}

async fn run(state: Weak<RefCell<State>>) {
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
    fn turn(&mut self, cx: &mut Context<'_>) {
        if !self
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            self.waker = Some(cx.waker().clone());
        }
        if self.sockets.flush(cx) {
            self.touch_all();
        }
        let mut again = self.receive(cx);
        self.expire();
        again |= self.drain();
        if self.sockets.flush(cx) {
            self.touch_all();
            again = true;
        }
        again |= self.arm(cx);
        if again {
            cx.waker().wake_by_ref();
        }
    }

    /// Takes in what the sockets hold; `true` where they may hold more.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        let mut again = false;
        let mut latest = None;
        for i in 0..self.sockets.len() {
            let mut receives = 0;
            while let Poll::Ready(Ok(())) = self.sockets.poll_readable(i, cx) {
                if receives == MAX_RECEIVES {
                    again = true;
                    break;
                }
                receives += 1;
                if !self.sockets.try_recv(i, &mut self.received) {
                    continue;
                }
                let read_at = self.clock.now();
                for datagram in self.received.datagrams() {
                    self.last = self.last.max(read_at - datagram.meta.waited);
                    let tuple = self.sockets.tuple(i, datagram.meta);
                    let handle = self
                        .endpoint
                        .handle_datagram(self.last, tuple, datagram.payload);
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
            }
        }
        again
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

        let id = SessionId {
            handle,
            serial: hosted.serial,
        };
        while let Some(event) = session.poll_event() {
            if let Some(event) = hosted.dispatch(now, session, event) {
                self.notices.push(Notice::Session(id, event));
            }
        }

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
        if session.is_closed() && self.endpoint.reap(now, handle) {
            self.forget(handle);
        }
        more
    }

    /// Sets the timer for the first deadline; `true` where that has passed already.
    fn arm(&mut self, cx: &mut Context<'_>) -> bool {
        let mut deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        if self.sockets.all_blocked() {
            let earliest = self.now() + BLOCKED_WAIT;
            deadline = deadline.map(|deadline| deadline.max(earliest));
        }
        if let Err(error) = self.timer.set(deadline) {
            tracing::error!(%error, "the timer cannot be set");
        }
        self.timer.poll_expired(cx).is_ready()
    }

    fn now(&mut self) -> Instant {
        self.last = self.last.max(self.clock.now());
        self.last
    }

    fn host(&mut self, handle: SessionHandle) -> SessionId {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.sessions.insert(handle, HostedSession::new(serial));
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

    fn touch(&mut self, handle: SessionHandle) {
        if let Some(hosted) = self.sessions.get_mut(&handle)
            && !std::mem::replace(&mut hosted.touched, true)
        {
            self.touched.push(handle);
        }
    }

    fn touch_all(&mut self) {
        let mut handles: Vec<_> = self.sessions.keys().copied().collect();
        handles.sort_unstable();
        handles.into_iter().for_each(|handle| self.touch(handle));
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
