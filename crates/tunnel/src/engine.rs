//! The event loop: one task that joins an [`Endpoint`] with its UDP sockets and one timer.
//!
//! Owns the endpoint, the sockets, the timer and the buffers that bytes pass through, and for each
//! session who waits for which stream. Tasks that write or read streams only mark their session as
//! touched; the loop's next turn comes after them and sends for all of them together.
//!
//! Invariants: a turn's work is bounded; the time given to core never goes back; nothing here
//! waits while the state is borrowed. What a session is for is left to the client and the relay,
//! which take [`Notice`]s.

mod attendance;
mod hosted;
mod moderation;
mod notice;
mod sieve;
mod sockets;
mod streams;
mod turn;
mod volume;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use crate::carrier::BoxStream;
use bytes::Bytes;
use tabane_base::{Duration, Instant};
use tabane_core::{
    ConnectError, Endpoint, EndpointCounters, FlowId, FourTuple, PublicKey, Session, SessionHandle,
    SessionSnapshot, SocketId, StreamId,
};
use tabane_linux::udp::BoundUdp;
use tabane_linux::{UdpBind, UdpError};

use crate::inbox::Inbox;
use crate::monitor::HostMonitor;
use hosted::HostedSession;
use turn::{State, run};

pub(crate) use moderation::rest;
pub(crate) use notice::Notice;
pub(crate) use sieve::Sieve;
pub use volume::Volume;

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

    /// Another one, which there is not.
    #[cfg(test)]
    pub(crate) const fn renumbered(self, serial: u64) -> Self {
        Self { serial, ..self }
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

impl Engine {
    /// Starts the loop for `endpoint` on this thread's `LocalSet`.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn start(endpoint: Endpoint, monitor: HostMonitor) -> io::Result<Self> {
        let state = Rc::new(RefCell::new(State::new(endpoint, monitor)?));
        let task = tokio::task::spawn_local(run(Rc::downgrade(&state)));
        state.borrow_mut().task = Some(task.abort_handle());
        Ok(Self(state))
    }

    /// Numbers its sessions together with those of other engines, and takes what comes by
    /// connections only where it is for this worker.
    pub(crate) fn work_beside(&self, serials: Arc<AtomicU64>, sieve: Sieve) {
        let mut state = self.0.borrow_mut();
        (state.serials, state.sieve) = (serials, sieve);
    }

    /// Opens a socket over what the monitor calls `link`. With `answers_locally` every datagram is
    /// answered from the address that it was sent to, as a socket that serves several addresses
    /// must.
    pub(crate) fn bind(
        &self,
        link: &str,
        bind: UdpBind<'_>,
        mark: Option<u32>,
        answers_locally: bool,
    ) -> Result<SocketId, UdpError> {
        self.adopt(link, BoundUdp::bind(bind)?, mark, answers_locally)
    }

    /// The same with a socket that is bound already.
    pub(crate) fn adopt(
        &self,
        link: &str,
        bound: BoundUdp,
        mark: Option<u32>,
        answers_locally: bool,
    ) -> Result<SocketId, UdpError> {
        let mut state = self.0.borrow_mut();
        let id = state.sockets.adopt(link, bound, mark, answers_locally)?;
        // The loop has to ask the new socket once before the kernel tells it anything.
        state.wake();
        Ok(id)
    }

    /// Carries packets over a connection from here on, over what the monitor calls `link`.
    pub(crate) fn attach(&self, link: &str, stream: BoxStream, remote: SocketAddr) -> SocketId {
        let mut state = self.0.borrow_mut();
        state.sockets.streams.attach(link, stream, remote)
    }

    /// Ends a connection that carries packets, as if it had broken.
    pub(crate) fn hang_up(&self, socket: SocketId) {
        let mut state = self.0.borrow_mut();
        if state.sockets.link(socket).is_some() {
            state.lose(socket);
            state.wake();
        }
    }

    /// Whether a session whose client has been admitted goes by this socket.
    pub(crate) fn carries_client(&self, socket: SocketId) -> bool {
        self.0.borrow_mut().carries_client(socket)
    }

    /// Closes a socket. Sessions must have been told before.
    pub(crate) fn unbind(&self, socket: SocketId) {
        self.0.borrow_mut().sockets.unbind(socket);
    }

    /// What the sockets of `link` have carried, those that are closed included.
    pub(crate) fn volume(&self, link: &str) -> Volume {
        self.0.borrow().sockets.volume(Some(link))
    }

    /// The same of all sockets.
    pub(crate) fn whole_volume(&self) -> Volume {
        self.0.borrow().sockets.volume(None)
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

    /// Whether the session has not ended: whoever looks after it may not have heard of that yet.
    pub(crate) fn is_live(&self, id: SessionId) -> bool {
        let state = self.0.borrow();
        let hosted = state.sessions.get(&id.handle);
        hosted.is_some_and(|hosted| hosted.serial == id.serial && !hosted.is_closed)
    }

    /// Whether core still keeps the session, be it to repeat its good-bye.
    pub(crate) fn is_kept(&self, id: SessionId) -> bool {
        let state = self.0.borrow();
        let hosted = state.sessions.get(&id.handle);
        hosted.is_some_and(|hosted| hosted.serial == id.serial)
    }

    /// What there is to know about a session; `None` once it has been forgotten. Whoever looks
    /// again sees round trips of now.
    pub(crate) fn snapshot(&self, id: SessionId) -> Option<SessionSnapshot> {
        self.visit(id, |visit| {
            visit.touched |= visit.session.measure_round_trips(visit.now);
        });
        self.snapshot_unmeasured(id)
    }

    /// The same, without a packet for it.
    pub(crate) fn snapshot_unmeasured(&self, id: SessionId) -> Option<SessionSnapshot> {
        let mut state = self.0.borrow_mut();
        let now = state.now();
        let hosted = state.sessions.get(&id.handle)?;
        if hosted.serial != id.serial {
            return None;
        }
        tracing::trace!(session = id.serial, "looked at");
        Some(state.endpoint.session(id.handle)?.snapshot(now))
    }

    /// Who is at the other end, once proved, and since when the session is here.
    pub(crate) fn guest(&self, id: SessionId) -> Option<(Option<PublicKey>, Duration)> {
        let mut state = self.0.borrow_mut();
        let now = state.now();
        let hosted = state.sessions.get(&id.handle)?;
        if hosted.serial != id.serial {
            return None;
        }
        let key = state.endpoint.session(id.handle)?.peer_key();
        Some((key, now.since(hosted.begun_at)))
    }

    /// Packets that sessions lost which have ended.
    pub(crate) fn lost_packets(&self) -> u64 {
        self.0.borrow().lost_packets
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
        self.session.close_flow(FlowId(stream.get()));
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

    /// The next of them.
    pub(crate) fn poll_datagram(&mut self, stream: StreamId, cx: &Context<'_>) -> Poll<Bytes> {
        self.hosted.flows.poll(stream, self.now, cx)
    }
}
