//! One UDP flow at the relay: a socket connected to the destination, and the session's end of it.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tabane_base::Duration;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use super::destination::status;
use super::gate::{Fate, Gate};
use super::user::{Direction, Meter};
use crate::flow::Flow;
use crate::target::Target;

/// How long a flow may be silent, both ways. NATs keep UDP mappings for 30 to 120 s; a client opens
/// another flow where it goes on later.
const IDLE: Duration = Duration::from_secs(60);

/// The same for DNS, where a question has its answer within seconds or never.
const IDLE_DNS: Duration = Duration::from_secs(10);

/// Datagrams in each direction before other tasks have their turn.
pub(super) const BURST: usize = 64;

/// How long a flow to `target` may be silent.
pub(super) fn idle_timeout(target: &Target) -> Duration {
    match target {
        Target::Resolver => IDLE_DNS,
        Target::Address(_) | Target::Name { .. } | Target::Anywhere => IDLE,
    }
}

/// Passes datagrams on until the client ends the flow, its session ends, or nothing passed for
/// `idle`.
pub(super) async fn serve(mut flow: Flow, socket: &UdpSocket, idle: Duration, meter: Meter) {
    pass(&mut flow, socket, idle, meter).await;
    end(&mut flow);
}

/// Ends a flow from this end.
pub(super) fn end(flow: &mut Flow) {
    let stream = flow.stream_mut();
    if !stream.is_written {
        stream.finish();
    }
    if !stream.is_read {
        stream.stop();
    }
}

/// The same, but that the flow's stream is left open.
pub(super) async fn pass(flow: &mut Flow, socket: &UdpSocket, idle: Duration, meter: Meter) {
    let mut gate = Gate::new(meter);
    let mut active_at = Instant::now();
    loop {
        let deadline = active_at + idle;
        let pass = poll_fn(|cx| poll_pass(flow, socket, &mut gate, cx));
        tokio::select! {
            passed = pass => match passed {
                Passed::Some => active_at = Instant::now(),
                Passed::End => break,
            },
            () = failed(socket) => {
                if let Ok(Some(error)) = socket.take_error() {
                    tell(flow, &error);
                }
            }
            () = sleep_until(deadline) => break,
        }
        // Lets the loop send, and the other flows have their turn.
        tokio::task::yield_now().await;
    }
}

enum Passed {
    Some,
    End,
}

/// Passes on what there is; pending where there is nothing.
fn poll_pass(
    flow: &mut Flow,
    socket: &UdpSocket,
    gate: &mut Gate,
    cx: &mut Context<'_>,
) -> Poll<Passed> {
    if flow.stream_mut().poll_end(cx).is_ready() || gate.is_used_up() {
        return Poll::Ready(Passed::End);
    }
    let Poll::Ready(up) = poll_up(flow, socket, gate, cx) else {
        return Poll::Ready(Passed::End);
    };
    if up + poll_down(flow, socket, gate, cx) > 0 {
        return Poll::Ready(Passed::Some);
    }
    Poll::Pending
}

/// From the client to the destination: how many datagrams; pending where none will come.
fn poll_up(
    flow: &mut Flow,
    socket: &UdpSocket,
    gate: &mut Gate,
    cx: &mut Context<'_>,
) -> Poll<usize> {
    for passed in 0..BURST {
        // While the socket is full, datagrams wait in the inbox, which has its limit.
        if socket.poll_send_ready(cx).is_pending() {
            return Poll::Ready(passed);
        }
        let fate = gate.ask(Direction::Up, cx);
        if fate == Fate::Wait {
            return Poll::Ready(passed);
        }
        match flow.poll_recv(cx) {
            Poll::Ready(Some(payload)) if fate == Fate::Pass => {
                gate.spend(Direction::Up, payload.len());
                // A buffer that has just filled up costs this datagram; an error of an earlier one
                // does not.
                if let Err(error) = socket.try_send(&payload) {
                    tell(flow, &error);
                    let _ = socket.try_send(&payload);
                }
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

/// From the destination to the client: how many datagrams.
fn poll_down(flow: &mut Flow, socket: &UdpSocket, gate: &mut Gate, cx: &mut Context<'_>) -> usize {
    let mut passed = 0;
    for _ in 0..BURST {
        let received = match gate.ask(Direction::Down, cx) {
            Fate::Wait => break,
            Fate::Pass => flow.send_with(|buffer| socket.try_recv(buffer)),
            Fate::Drop => socket.try_recv(&mut [0]).map(|_| Ok(0)),
        };
        match received {
            Ok(Ok(len)) => {
                gate.spend(Direction::Down, len);
                passed += 1;
            }
            // Longer than a datagram of the tunnel may be: lost, like one beyond any MTU.
            Ok(Err(_)) => passed += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                gate.on_empty(Direction::Down);
                if socket.poll_recv_ready(cx).is_pending() {
                    break;
                }
            }
            // ICMP errors of earlier sends surface here.
            Err(error) => tell(flow, &error),
        }
    }
    passed
}

/// Waits until something was said of what `socket` has sent: nobody who waits for datagrams is
/// woken by that.
pub(super) async fn failed(socket: &UdpSocket) {
    // Fails where the runtime is shutting down.
    let _ = socket.ready(Interest::ERROR).await;
    let seen = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
    let _ = socket.try_io(Interest::ERROR, seen);
}

/// Tells the client that what it sent reached nobody. While the stream is full, that is lost as
/// routers' errors are.
fn tell(flow: &Flow, error: &io::Error) {
    if error.kind() != io::ErrorKind::WouldBlock {
        flow.stream().write_some(&[status(error).emit()]);
    }
}
