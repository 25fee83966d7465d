//! One UDP flow at the relay: the session's end of it, and what is outside, which is a socket
//! connected to the destination as a rule.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use tabane_base::Duration;
use tabane_linux::undelivered;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use super::destination::status;
use super::gate::{Fate, Gate};
use super::user::{Direction, Meter};
use crate::flow::Flow;
use crate::target::Target;

/// How long a flow may be silent, both ways (RFC 4787 REQ-5: not less). How many there are, the
/// bounds of streams say.
pub(super) const IDLE: Duration = Duration::from_secs(120);

/// The same for DNS, where a question has its answer within seconds or never.
const IDLE_DNS: Duration = Duration::from_secs(10);

/// Datagrams in each direction before other tasks have their turn.
pub(super) const BURST: usize = 64;

/// With whom the client's datagrams are exchanged.
pub(super) trait Outside {
    /// How long the flow may be silent from now on.
    fn idle(&self) -> Duration;

    /// Whether it takes a datagram now; while it does not, they wait in the inbox, which has its
    /// limit.
    fn takes(&self, cx: &mut Context<'_>) -> bool;

    /// Takes one of the client's. What it has no room for is lost, as in a full queue.
    fn take(&self, payload: &[u8], flow: &Flow);

    /// Has the flow send the next one for the client, or lose it: how many bytes that was; `None`
    /// where none will ever come.
    fn poll_give(&self, flow: &Flow, is_lost: bool, cx: &mut Context<'_>) -> Poll<Option<usize>>;

    /// Waits until something was said of what it has taken.
    async fn failed(&self);

    /// Tells the client what that was.
    fn tell_failure(&self, flow: &Flow);
}

/// A socket that speaks with one destination.
pub(super) struct Destination {
    pub(super) socket: UdpSocket,
    pub(super) idle: Duration,
}

/// How long a flow to `target` may be silent.
pub(super) fn idle_timeout(target: &Target) -> Duration {
    match target {
        Target::Resolver => IDLE_DNS,
        Target::Address(_) | Target::Name { .. } | Target::Anywhere => IDLE,
    }
}

/// Passes datagrams on until the client ends the flow, its session ends, none will come from
/// outside, or nothing passed for long.
pub(super) async fn serve(mut flow: Flow, outside: impl Outside, meter: Meter) {
    pass(&mut flow, &outside, meter).await;
    flow.stream_mut().end();
}

/// The same, but that the flow's stream is left open.
pub(super) async fn pass(flow: &mut Flow, outside: &impl Outside, meter: Meter) {
    let mut gate = Gate::new(meter);
    let mut active_at = Instant::now();
    loop {
        let deadline = active_at + outside.idle();
        tokio::select! {
            passed = poll_fn(|cx| poll_pass(flow, outside, &mut gate, cx)) => match passed {
                Passed::Some => active_at = Instant::now(),
                Passed::End => break,
            },
            () = outside.failed() => outside.tell_failure(flow),
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
    outside: &impl Outside,
    gate: &mut Gate,
    cx: &mut Context<'_>,
) -> Poll<Passed> {
    if flow.stream_mut().poll_end(cx).is_ready() || gate.is_used_up() {
        return Poll::Ready(Passed::End);
    }
    let up = poll_up(flow, outside, gate, cx);
    let down = poll_down(flow, outside, gate, cx);
    match up.zip(down) {
        None => Poll::Ready(Passed::End),
        Some((0, 0)) => Poll::Pending,
        Some(_) => Poll::Ready(Passed::Some),
    }
}

/// From the client: how many datagrams; `None` where none will come.
fn poll_up(
    flow: &Flow,
    outside: &impl Outside,
    gate: &mut Gate,
    cx: &mut Context<'_>,
) -> Option<usize> {
    for passed in 0..BURST {
        if !outside.takes(cx) {
            return Some(passed);
        }
        let fate = gate.ask(Direction::Up, cx);
        if fate == Fate::Wait {
            return Some(passed);
        }
        match flow.poll_recv(cx) {
            Poll::Ready(Some(payload)) if fate == Fate::Pass => {
                gate.spend(Direction::Up, payload.len());
                outside.take(&payload, flow);
            }
            Poll::Ready(Some(_)) => tracing::trace!("beyond the user's rate"),
            Poll::Ready(None) => return None,
            Poll::Pending => {
                gate.on_empty(Direction::Up);
                return Some(passed);
            }
        }
    }
    Some(BURST)
}

/// To the client: how many datagrams; `None` where none will come.
fn poll_down(
    flow: &Flow,
    outside: &impl Outside,
    gate: &mut Gate,
    cx: &mut Context<'_>,
) -> Option<usize> {
    for passed in 0..BURST {
        let fate = gate.ask(Direction::Down, cx);
        if fate == Fate::Wait {
            return Some(passed);
        }
        match outside.poll_give(flow, fate == Fate::Drop, cx) {
            Poll::Ready(Some(len)) => gate.spend(Direction::Down, len),
            Poll::Ready(None) => return None,
            Poll::Pending => {
                gate.on_empty(Direction::Down);
                return Some(passed);
            }
        }
    }
    Some(BURST)
}

impl Outside for Destination {
    fn idle(&self) -> Duration {
        self.idle
    }

    fn takes(&self, cx: &mut Context<'_>) -> bool {
        self.socket.poll_send_ready(cx).is_ready()
    }

    fn take(&self, payload: &[u8], flow: &Flow) {
        // A buffer that has just filled up costs this datagram; an error of an earlier one does
        // not.
        if let Err(error) = self.socket.try_send(payload) {
            tell(flow, &error);
            let _ = self.socket.try_send(payload);
        }
    }

    fn poll_give(&self, flow: &Flow, is_lost: bool, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        loop {
            let received = match is_lost {
                false => flow.send_with(|buffer| self.socket.try_recv(buffer)),
                true => self.socket.try_recv(&mut [0]).map(|_| Ok(0)),
            };
            match received {
                // Longer than a datagram of the tunnel may be: lost, like one beyond any MTU.
                Ok(sent) => return Poll::Ready(Some(sent.unwrap_or(0))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = ready!(self.socket.poll_recv_ready(cx));
                }
                // ICMP errors of earlier sends surface here.
                Err(error) => tell(flow, &error),
            }
        }
    }

    async fn failed(&self) {
        undelivered::until_said(&self.socket).await;
    }

    fn tell_failure(&self, flow: &Flow) {
        if let Ok(Some(error)) = self.socket.take_error() {
            tell(flow, &error);
        }
    }
}

/// Tells the client that what it sent reached nobody. While the stream is full, that is lost as
/// routers' errors are.
fn tell(flow: &Flow, error: &io::Error) {
    if error.kind() != io::ErrorKind::WouldBlock {
        flow.stream().write_some(&[status(error).emit()]);
    }
}
