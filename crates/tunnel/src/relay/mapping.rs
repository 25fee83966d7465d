//! One UDP mapping at the relay: a socket of each family that stands for a socket of a program.
//!
//! Endpoint-independent mapping (RFC 4787): all destinations see the same port. Filtering is
//! endpoint-independent as well: whoever the client might speak to may speak first, so that what
//! answers from another port or address than was asked arrives, and peers find each other; what
//! the owner's destinations leave out is dropped both ways. Owns the sockets and the notices of
//! what could not be delivered.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tabane_linux::undelivered;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::destination::{bind_unconnected, status};
use super::gate::{Fate, Gate};
use super::udp::{BURST, IDLE};
use super::user::{Asker, Direction, Meter, User};
use crate::flow::Flow;
use crate::mapping::{MAX_HEADER, Notice, emit_remote, split};
use crate::request::Status;

/// Addresses of which is known whether they are allowed; beyond, all are asked for again.
const MAX_KNOWN: usize = 1_024;

/// Bytes of notices that wait for room in the stream; more are dropped, as routers drop errors.
const MAX_NOTICES: usize = 4_096;

pub(super) struct Mapping<'a> {
    shared: &'a Shared,
    asker: Asker<'a>,
    flow: Flow,
    /// The address with the shortest form.
    usual: SocketAddr,
    /// IPv4 and IPv6, once somebody is spoken to by it.
    sockets: [Option<Rc<UdpSocket>>; 2],
    allowed: BTreeMap<SocketAddr, bool>,
    /// Waits until its socket takes it.
    next: Option<(SocketAddr, Bytes)>,
    notices: Vec<u8>,
    gate: Gate,
}

impl<'a> Mapping<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        asker: Asker<'a>,
        flow: Flow,
        usual: SocketAddr,
        meter: Meter,
    ) -> Self {
        Self {
            shared,
            asker,
            flow,
            usual: SocketAddr::new(usual.ip().to_canonical(), usual.port()),
            sockets: [None, None],
            allowed: BTreeMap::new(),
            next: None,
            notices: Vec::new(),
            gate: Gate::new(meter),
        }
    }

    /// Passes datagrams on until the client ends it, its session ends, or nothing passed for long.
    pub(super) async fn serve(mut self) {
        let mut active_at = Instant::now();
        loop {
            let deadline = active_at + IDLE;
            let [v4, v6] = self.sockets.clone();
            let pass = poll_fn(|cx| self.poll_pass(cx));
            tokio::select! {
                passed = pass => match passed {
                    Some(()) => active_at = Instant::now(),
                    None => break,
                },
                () = failed_if_there(v4) => self.tell_errors(0),
                () = failed_if_there(v6) => self.tell_errors(1),
                () = sleep_until(deadline) => break,
            }
            // Lets the loop send, and the other flows have their turn.
            tokio::task::yield_now().await;
        }
        self.flow.stream_mut().end();
    }

    /// Passes on what there is; pending where there is nothing, `None` at the end.
    fn poll_pass(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        if self.flow.stream_mut().poll_end(cx).is_ready() || self.gate.is_used_up() {
            return Poll::Ready(None);
        }
        let Poll::Ready(up) = self.poll_up(cx) else {
            return Poll::Ready(None);
        };
        let down = self.poll_down(0, cx) + self.poll_down(1, cx);
        self.tell();
        match up + down {
            0 => Poll::Pending,
            _ => Poll::Ready(Some(())),
        }
    }

    /// From the client: how many datagrams; pending where none will come.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        for passed in 0..BURST {
            if let Some((remote, payload)) = self.next.take() {
                if self.send(remote, &payload, cx).is_pending() {
                    self.next = Some((remote, payload));
                    return Poll::Ready(passed);
                }
                continue;
            }
            let fate = self.gate.ask(Direction::Up, cx);
            if fate == Fate::Wait {
                return Poll::Ready(passed);
            }
            match self.flow.poll_recv(cx) {
                Poll::Ready(Some(datagram)) if fate == Fate::Pass => {
                    self.gate.spend(Direction::Up, datagram.len());
                    self.next = split(datagram, self.usual);
                }
                Poll::Ready(Some(_)) => tracing::trace!("beyond the user's rate"),
                Poll::Ready(None) => return Poll::Pending,
                Poll::Pending => {
                    self.gate.on_empty(Direction::Up);
                    return Poll::Ready(passed);
                }
            }
        }
        Poll::Ready(BURST)
    }

    /// Sends a datagram, or tells that it cannot; pending while the socket is full.
    fn send(&mut self, remote: SocketAddr, payload: &[u8], cx: &mut Context<'_>) -> Poll<()> {
        if !self.allows(remote) {
            self.note(Status::Denied, remote);
            return Poll::Ready(());
        }
        let family = usize::from(remote.is_ipv6());
        if self.sockets[family].is_none() {
            match bind_unconnected(remote, &self.shared.departure(self.asker)) {
                Ok(socket) => self.sockets[family] = Some(Rc::new(socket)),
                Err(error) => self.note(status(&error), remote),
            }
        }
        // A socket that has seen an error seems ever ready: what it takes no second time is lost.
        for _ in 0..2 {
            let Some(socket) = &self.sockets[family] else {
                return Poll::Ready(());
            };
            if socket.poll_send_ready(cx).is_pending() {
                return Poll::Pending;
            }
            match socket.try_send_to(payload, remote) {
                Ok(_) => return Poll::Ready(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Of an earlier datagram, more likely than of this one.
                    if !self.read_errors(family) {
                        self.note(status(&error), remote);
                        return Poll::Ready(());
                    }
                }
            }
        }
        Poll::Ready(())
    }

    /// From destinations of a family: how many datagrams.
    fn poll_down(&mut self, family: usize, cx: &mut Context<'_>) -> usize {
        let mut passed = 0;
        while passed < BURST {
            let Some(socket) = &self.sockets[family] else {
                return passed;
            };
            let received = match self.gate.ask(Direction::Down, cx) {
                Fate::Wait => break,
                Fate::Drop => socket.try_recv_from(&mut [0]).map(|_| 0),
                Fate::Pass => self.pass_down(family),
            };
            match received {
                Ok(len) => {
                    self.gate.spend(Direction::Down, len);
                    passed += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.gate.on_empty(Direction::Down);
                    let socket = self.sockets[family].as_ref();
                    if socket.is_none_or(|socket| socket.poll_recv_ready(cx).is_pending()) {
                        break;
                    }
                }
                Err(_) => {
                    self.read_errors(family);
                }
            }
        }
        passed
    }

    /// Hands one datagram to the session: its bytes, 0 for one that is not passed on.
    fn pass_down(&mut self, family: usize) -> io::Result<usize> {
        let Some(socket) = &self.sockets[family] else {
            return Ok(0);
        };
        let (shared, user, usual) = (self.shared, self.asker.user, self.usual);
        let allowed = &mut self.allowed;
        let sent = self.flow.send_part(None, |buffer| {
            let (room, rest) = buffer
                .split_first_chunk_mut::<MAX_HEADER>()
                .ok_or(io::ErrorKind::OutOfMemory)?;
            let (len, from) = socket.try_recv_from(rest)?;
            if !is_allowed(allowed, shared, user, from) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let header = emit_remote(from, Some(usual), room);
            Ok(MAX_HEADER - header..MAX_HEADER + len)
        });
        match sent {
            // Longer than a datagram of the tunnel may be: lost, like one beyond any MTU.
            Ok(sent) => Ok(sent.unwrap_or(0)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn allows(&mut self, remote: SocketAddr) -> bool {
        is_allowed(&mut self.allowed, self.shared, self.asker.user, remote)
    }

    /// Notes what routers and hosts have said of earlier datagrams; whether they have.
    fn read_errors(&mut self, family: usize) -> bool {
        let mut any = false;
        while let Some(socket) = &self.sockets[family]
            && let Some((remote, error)) = undelivered::take(socket.as_ref())
        {
            any = true;
            if let Some(remote) = remote {
                self.note(status(&error), remote);
            }
        }
        any
    }

    fn tell_errors(&mut self, family: usize) {
        self.read_errors(family);
        self.tell();
    }

    fn note(&mut self, status: Status, remote: SocketAddr) {
        if self.notices.len() < MAX_NOTICES {
            Notice { status, remote }.emit(&mut self.notices);
        }
    }

    /// Sends the notices for which there is room.
    fn tell(&mut self) {
        if !self.notices.is_empty() {
            let written = self.flow.stream().write_some(&self.notices);
            self.notices.drain(..written);
        }
    }
}

async fn failed_if_there(socket: Option<Rc<UdpSocket>>) {
    match socket {
        Some(socket) => undelivered::until_said(&socket).await,
        None => std::future::pending().await,
    }
}

fn is_allowed(
    known: &mut BTreeMap<SocketAddr, bool>,
    shared: &Shared,
    user: Option<&User>,
    remote: SocketAddr,
) -> bool {
    if let Some(is_allowed) = known.get(&remote) {
        return *is_allowed;
    }
    if known.len() >= MAX_KNOWN {
        known.clear();
    }
    let is_allowed = shared.allows(user, remote);
    known.insert(remote, is_allowed);
    is_allowed
}
