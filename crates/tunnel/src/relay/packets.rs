//! IP packets of a client that belong to no connection or UDP flow [P-T.4]: echo requests.
//!
//! Owns the sockets that put them to their destinations and the way back of the replies. Where the
//! system lets us (`net.ipv4.ping_group_range`) the kernel keeps apart whose reply is whose; else
//! raw sockets do, which need `CAP_NET_RAW`. Every other packet is dropped: nothing was promised.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tabane_base::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::echo::{Echo, Kind};
use crate::flow::Flow;

/// Echoing programs of one client at once, each with one destination: a network monitor's worth.
const MAX_PINGERS: usize = 64;
/// Silence that ends one; whoever pings more rarely gets another socket.
const IDLE: Duration = Duration::from_secs(30);
/// Replies that wait to go back; more are lost, as pings may be.
const MAX_WAITING: usize = 64;
/// The longest packet there is.
const MAX_PACKET: usize = 65_535;

/// Whether clients can be served here at all.
pub(super) fn can_ping() -> bool {
    open(IpAddr::from([127, 0, 0, 1])).is_ok()
}

/// Serves the packets of one client to destinations that `allows` until it ends the flow.
pub(super) async fn serve(mut flow: Flow, mark: Option<u32>, allows: impl Fn(IpAddr) -> bool) {
    let (replies, mut replied) = mpsc::channel(MAX_WAITING);
    let mut pingers = Pingers {
        table: BTreeMap::new(),
        replies,
        mark,
    };
    loop {
        tokio::select! {
            packet = poll_fn(|cx| poll_packet(&mut flow, cx)) => match packet {
                Some(packet) => {
                    if let Some(echo) = Echo::parse(&packet)
                        && echo.kind == Kind::Request
                        && allows(echo.destination)
                    {
                        pingers.send(&echo);
                    }
                }
                None => break,
            },
            Some(reply) = replied.recv() => send(&flow, &reply),
        }
    }
    let stream = flow.stream_mut();
    if !stream.is_written {
        stream.finish();
    }
    if !stream.is_read {
        stream.stop();
    }
}

fn poll_packet(flow: &mut Flow, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
    if flow.stream_mut().poll_end(cx).is_ready() {
        return Poll::Ready(None);
    }
    flow.poll_recv(cx)
}

fn send(flow: &Flow, packet: &[u8]) {
    // Lost like any datagram.
    let _ = flow.send_with(|buffer| match buffer.get_mut(..packet.len()) {
        Some(space) => {
            space.copy_from_slice(packet);
            Ok(packet.len())
        }
        None => Err(io::ErrorKind::WouldBlock.into()),
    });
}

/// Who asks, whom, by which number.
type Key = (IpAddr, IpAddr, u16);

struct Pingers {
    table: BTreeMap<Key, Pinger>,
    replies: mpsc::Sender<Vec<u8>>,
    mark: Option<u32>,
}

struct Pinger {
    socket: Rc<UdpSocket>,
    identifier: u16,
    task: AbortHandle,
}

impl Pingers {
    fn send(&mut self, echo: &Echo<'_>) {
        let key = (echo.source, echo.destination, echo.identifier);
        let is_running = |pinger: &Pinger| !pinger.task.is_finished();
        if !self.table.get(&key).is_some_and(is_running) {
            self.table.retain(|_, pinger| is_running(pinger));
            if self.table.len() >= MAX_PINGERS {
                return;
            }
            match Pinger::start(echo, self.mark, self.replies.clone()) {
                Ok(pinger) => drop(self.table.insert(key, pinger)),
                Err(error) => {
                    tracing::debug!(destination = %echo.destination, %error, "cannot ping");
                    return;
                }
            }
        }
        if let Some(pinger) = self.table.get(&key) {
            let echo = Echo {
                identifier: pinger.identifier,
                ..echo.clone()
            };
            let mut message = echo.emit_message();
            if echo.destination.is_ipv6() {
                // The kernel sums up, over its own source address, and this field too.
                message[2..4].fill(0);
            }
            // Past the reactor, which does not know yet that a new socket is writable. ICMP errors
            // of earlier ones surface here; both are lost.
            let _ = SockRef::from(&*pinger.socket).send(&message);
        }
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pinger {
    fn start(
        echo: &Echo<'_>,
        mark: Option<u32>,
        replies: mpsc::Sender<Vec<u8>>,
    ) -> io::Result<Self> {
        let (socket, is_raw) = open(echo.destination)?;
        socket.set_nonblocking(true)?;
        if let Some(mark) = mark {
            socket.set_mark(mark)?;
        }
        socket.connect(&SocketAddr::new(echo.destination, 0).into())?;
        let socket = Rc::new(UdpSocket::from_std(socket.into())?);
        let identifier = next_identifier();
        let awaited = is_raw.then_some(identifier);
        let (source, destination) = (echo.source, echo.destination);
        let (own, asked) = (socket.clone(), echo.identifier);
        let task = tokio::task::spawn_local(async move {
            let mut buffer = vec![0; MAX_PACKET];
            while let Ok(received) = timeout(IDLE, own.recv(&mut buffer)).await {
                // Unreachable, say: the next one may be answered.
                let Ok(length) = received else { continue };
                let message = strip(&buffer[..length], destination, is_raw);
                let reply = Echo::parse_message(message, destination, source);
                let Some(reply) = reply.filter(|reply| reply.kind == Kind::Reply) else {
                    continue;
                };
                if awaited.is_some_and(|awaited| awaited != reply.identifier) {
                    continue;
                }
                let reply = Echo {
                    identifier: asked,
                    ..reply
                };
                if let Some(packet) = reply.emit() {
                    // Lost where nobody takes it off.
                    let _ = replies.try_send(packet);
                }
            }
        });
        Ok(Self {
            socket,
            identifier,
            task: task.abort_handle(),
        })
    }
}

/// Raw IPv4 sockets give the IP header as well.
fn strip(bytes: &[u8], peer: IpAddr, is_raw: bool) -> &[u8] {
    let header = match bytes.first() {
        Some(first) if is_raw && peer.is_ipv4() => usize::from(first & 0x0f) * 4,
        _ => 0,
    };
    bytes.get(header..).unwrap_or_default()
}

/// A socket for echo messages to `peer`, and whether it is a raw one.
fn open(peer: IpAddr) -> io::Result<(Socket, bool)> {
    let (domain, protocol) = match peer {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    match Socket::new(domain, Type::DGRAM, Some(protocol)) {
        Ok(socket) => Ok((socket, false)),
        Err(error) => match Socket::new(domain, Type::RAW, Some(protocol)) {
            Ok(socket) => Ok((socket, true)),
            // What the first one says is what can be mended.
            Err(_) => Err(error),
        },
    }
}

/// Raw sockets see the replies to all of them; numbers come round after 65,536.
fn next_identifier() -> u16 {
    thread_local! {
        static NEXT: Cell<u16> = const { Cell::new(1) };
    }
    NEXT.with(|next| next.replace(next.get().wrapping_add(1)))
}
