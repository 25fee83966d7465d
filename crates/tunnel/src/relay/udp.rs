//! One UDP flow at the relay: a socket connected to the destination, and the session's end of it.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tabane_base::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use crate::flow::Flow;
use crate::target::Target;

/// How long a flow may be silent, both ways. NATs keep UDP mappings for 30 to 120 s; a client opens
/// another flow where it goes on later.
const IDLE: Duration = Duration::from_secs(60);

/// The same for DNS, where a question has its answer within seconds or never.
const IDLE_DNS: Duration = Duration::from_secs(10);

/// Datagrams in each direction before other tasks have their turn.
const BURST: usize = 64;

/// How long a flow to `target` may be silent.
pub(super) fn idle_timeout(target: &Target) -> Duration {
    match target {
        Target::Resolver => IDLE_DNS,
        Target::Address(_) | Target::Name { .. } | Target::Anywhere => IDLE,
    }
}

/// Passes datagrams on until the client ends the flow, its session ends, or nothing passed for
/// `idle`.
pub(super) async fn serve(mut flow: Flow, socket: &UdpSocket, idle: Duration) {
    let mut active_at = Instant::now();
    loop {
        let deadline = active_at + idle;
        let pass = poll_fn(|cx| poll_pass(&mut flow, socket, cx));
        tokio::select! {
            passed = pass => match passed {
                Passed::Some => active_at = Instant::now(),
                Passed::End => break,
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

enum Passed {
    Some,
    End,
}

/// Passes on what there is; pending where there is nothing.
fn poll_pass(flow: &mut Flow, socket: &UdpSocket, cx: &mut Context<'_>) -> Poll<Passed> {
    if flow.stream_mut().poll_end(cx).is_ready() {
        return Poll::Ready(Passed::End);
    }
    let mut passed = 0;
    for _ in 0..BURST {
        // While the socket is full, datagrams wait in the inbox, which has its limit.
        if socket.poll_send_ready(cx).is_pending() {
            break;
        }
        match flow.poll_recv(cx) {
            Poll::Ready(Some(payload)) => {
                passed += 1;
                // A buffer that has just filled up, or an ICMP error, costs this datagram.
                if let Err(error) = socket.try_send(&payload) {
                    tracing::trace!(%error, "not sent");
                }
            }
            Poll::Ready(None) => return Poll::Ready(Passed::End),
            Poll::Pending => break,
        }
    }
    for _ in 0..BURST {
        match flow.send_with(|buffer| socket.try_recv(buffer)) {
            Ok(Ok(_)) => passed += 1,
            // Longer than a datagram of the tunnel may be: lost, like one beyond any MTU.
            Ok(Err(_)) => passed += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if socket.poll_recv_ready(cx).is_pending() {
                    break;
                }
            }
            // ICMP errors of earlier sends surface here.
            Err(error) => tracing::trace!(%error, "not received"),
        }
    }
    if passed > 0 {
        return Poll::Ready(Passed::Some);
    }
    Poll::Pending
}
