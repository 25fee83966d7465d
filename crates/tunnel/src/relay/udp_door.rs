//! A UDP port that leads to a client: a flow for each address that datagrams come from.
//!
//! Owns which flows there are. Each lasts as long as its task; whoever was never answered is
//! forgotten sooner, so that made-up addresses take no room for long.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use tabane_base::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::gate::{Fate, Gate};
use super::udp::BURST;
use super::user::{Direction, Meter};
use crate::flow::Flow;

/// Addresses at one port that are spoken with at once; datagrams of one more are lost.
const MAX_FLOWS: usize = 1_024;
/// Datagrams of one that wait for its task.
const MAX_WAITING: usize = 128;
/// How long a flow may be silent, both ways: as long as one from a client may.
const IDLE: Duration = Duration::from_secs(60);
/// The same of one that the client has not answered yet.
const IDLE_UNANSWERED: Duration = Duration::from_secs(10);
/// The longest datagram.
const MAX_DATAGRAM: usize = 65_535;

/// Somebody whose datagrams come to a port.
pub(super) struct UdpVisitor {
    pub(super) from: SocketAddr,
    pub(super) at: SocketAddr,
    datagrams: mpsc::Receiver<Vec<u8>>,
    socket: Rc<UdpSocket>,
}

/// Takes in what comes, for ever. `let_in` is told of everybody who is new, or that there is no
/// room for one.
pub(super) async fn attend(socket: UdpSocket, let_in: impl Fn(Option<UdpVisitor>)) {
    let socket = Rc::new(socket);
    let mut flows: BTreeMap<SocketAddr, mpsc::Sender<Vec<u8>>> = BTreeMap::new();
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let (len, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // Of an answer that found nobody.
            Err(error) => {
                tracing::trace!(%error, "a visitor's host has spoken");
                continue;
            }
        };
        let datagram = buffer[..len].to_vec();
        if let Some(flow) = flows.get(&from)
            && !flow.is_closed()
        {
            // Beyond what waits it is lost, as in a full queue.
            let _ = flow.try_send(datagram);
            continue;
        }
        flows.retain(|_, flow| !flow.is_closed());
        if flows.len() >= MAX_FLOWS || from.port() == 0 {
            let_in(None);
            continue;
        }
        let (flow, datagrams) = mpsc::channel(MAX_WAITING);
        let _ = flow.try_send(datagram);
        flows.insert(from, flow);
        let at = socket.local_addr().unwrap_or(from);
        let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
        let_in(Some(UdpVisitor {
            from: canonical(from),
            at: canonical(at),
            datagrams,
            socket: socket.clone(),
        }));
    }
}

impl UdpVisitor {
    /// Passes datagrams on until the client ends the flow, its session ends, or nothing passed for
    /// long.
    pub(super) async fn serve(mut self, mut flow: Flow, meter: Meter) {
        let mut gate = Gate::new(meter);
        let (mut active_at, mut idle) = (Instant::now(), IDLE_UNANSWERED);
        loop {
            let deadline = active_at + idle;
            let pass = poll_fn(|cx| self.poll_pass(&mut flow, &mut gate, cx));
            tokio::select! {
                passed = pass => match passed {
                    Some(is_answered) => {
                        active_at = Instant::now();
                        if is_answered {
                            idle = IDLE;
                        }
                    }
                    None => break,
                },
                () = sleep_until(deadline) => break,
            }
            // Lets the loop send, and the other flows have their turn.
            tokio::task::yield_now().await;
        }
        let stream = flow.stream_mut();
        if !stream.is_written {
            stream.finish();
        }
        if !stream.is_read {
            stream.stop();
        }
    }

    /// Passes on what there is, and says whether the client had something; `None` at the end.
    fn poll_pass(
        &mut self,
        flow: &mut Flow,
        gate: &mut Gate,
        cx: &mut Context<'_>,
    ) -> Poll<Option<bool>> {
        if flow.stream_mut().poll_end(cx).is_ready() || gate.is_used_up() {
            return Poll::Ready(None);
        }
        let Poll::Ready(up) = self.poll_up(flow, gate, cx) else {
            return Poll::Ready(None);
        };
        match up + self.poll_down(flow, gate, cx) {
            0 => Poll::Pending,
            _ => Poll::Ready(Some(up > 0)),
        }
    }

    /// From the client: how many datagrams; pending where none will come.
    fn poll_up(&self, flow: &Flow, gate: &mut Gate, cx: &mut Context<'_>) -> Poll<usize> {
        for passed in 0..BURST {
            let fate = gate.ask(Direction::Up, cx);
            if fate == Fate::Wait {
                return Poll::Ready(passed);
            }
            match flow.poll_recv(cx) {
                Poll::Ready(Some(payload)) if fate == Fate::Pass => {
                    gate.spend(Direction::Up, payload.len());
                    // A socket that is full costs this datagram, as a full queue would.
                    let _ = self.socket.try_send_to(&payload, self.to());
                }
                Poll::Ready(Some(_)) => tracing::trace!("beyond the user's rate"),
                Poll::Ready(None) => return Poll::Pending,
                Poll::Pending => {
                    gate.on_empty(Direction::Up);
                    return Poll::Ready(passed);
                }
            }
        }
        Poll::Ready(BURST)
    }

    /// To the client: how many datagrams.
    fn poll_down(&mut self, flow: &Flow, gate: &mut Gate, cx: &mut Context<'_>) -> usize {
        for passed in 0..BURST {
            let fate = gate.ask(Direction::Down, cx);
            if fate == Fate::Wait {
                return passed;
            }
            let Poll::Ready(Some(datagram)) = self.datagrams.poll_recv(cx) else {
                gate.on_empty(Direction::Down);
                return passed;
            };
            if fate == Fate::Pass {
                gate.spend(Direction::Down, datagram.len());
                let _ = flow.send_with(|buffer| {
                    let len = datagram.len().min(buffer.len());
                    buffer[..len].copy_from_slice(&datagram[..len]);
                    Ok(len)
                });
            }
        }
        BURST
    }

    /// The visitor as the socket calls it, which may know IPv4 by IPv6 addresses alone.
    fn to(&self) -> SocketAddr {
        let is_v6 = self.socket.local_addr().is_ok_and(|own| own.is_ipv6());
        match self.from {
            SocketAddr::V4(from) if is_v6 => (from.ip().to_ipv6_mapped(), from.port()).into(),
            from => from,
        }
    }
}
