//! Echo requests of others ("pings"), by sockets of this end's own.
//!
//! Owns the sockets that put them to their destinations and the way back of the replies. Where the
//! system lets us (`net.ipv4.ping_group_range`) the kernel keeps apart whose reply is whose; else
//! raw sockets do, which need `CAP_NET_RAW`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tabane_base::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::echo::{Echo, Kind};

/// Echoing programs of one client at once, each with one destination: a network monitor's worth.
const MAX_PINGERS: usize = 64;
/// Silence that ends one; whoever pings more rarely gets another socket.
const IDLE: Duration = Duration::from_secs(30);
/// The longest packet there is.
const MAX_PACKET: usize = 65_535;

/// Whether clients can be served here at all.
pub(crate) fn can_ping() -> bool {
    open(IpAddr::from([127, 0, 0, 1])).is_ok()
}

/// Who asks, whom, by which number.
type Key = (IpAddr, IpAddr, u16);

/// The pinging programs of one client.
pub(crate) struct Pingers {
    table: BTreeMap<Key, Pinger>,
    replies: mpsc::Sender<Vec<u8>>,
}

struct Pinger {
    socket: Rc<UdpSocket>,
    identifier: u16,
    task: AbortHandle,
}

impl Pingers {
    /// None yet; replies come out at the other end of `replies`.
    pub(crate) fn new(replies: mpsc::Sender<Vec<u8>>) -> Self {
        Self {
            table: BTreeMap::new(),
            replies,
        }
    }

    /// Puts a request to its destination; the socket for the first of a program is as `prepare`
    /// makes it.
    pub(crate) fn send(
        &mut self,
        echo: &Echo<'_>,
        prepare: impl FnOnce(&Socket) -> io::Result<()>,
    ) {
        let key = (echo.source, echo.destination, echo.identifier);
        let is_running = |pinger: &Pinger| !pinger.task.is_finished();
        if !self.table.get(&key).is_some_and(is_running) {
            self.table.retain(|_, pinger| is_running(pinger));
            if self.table.len() >= MAX_PINGERS {
                return;
            }
            match Pinger::start(echo, prepare, self.replies.clone()) {
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
        prepare: impl FnOnce(&Socket) -> io::Result<()>,
        replies: mpsc::Sender<Vec<u8>>,
    ) -> io::Result<Self> {
        let (socket, is_raw) = open(echo.destination)?;
        socket.set_nonblocking(true)?;
        prepare(&socket)?;
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
