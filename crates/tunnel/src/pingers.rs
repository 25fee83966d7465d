//! Echo requests of others ("pings"), by sockets of this end's own.
//!
//! Owns the sockets that put them to their destinations and the way back of the replies, and of
//! what routers and hosts say in their place. To who asks, this end is a router of its own. Where
//! the system lets us (`net.ipv4.ping_group_range`) the kernel keeps apart whose reply is whose;
//! else raw sockets do, which need `CAP_NET_RAW`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tabane_base::Duration;
use tabane_linux::undelivered::{self, IcmpError};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::echo::{Echo, Kind};
use crate::icmp_error::Complaint;

/// Echoing programs of one flow at once, each with one destination: a network monitor's worth.
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

/// The pinging programs of one client. Each has leave of some kind (`P`) as long as its socket.
pub(crate) struct Pingers<P> {
    table: BTreeMap<Key, Pinger<P>>,
    replies: mpsc::Sender<Vec<u8>>,
}

struct Pinger<P> {
    /// The task's.
    line: Weak<Line<P>>,
    identifier: u16,
    task: AbortHandle,
}

struct Line<P> {
    socket: UdpSocket,
    _leave: P,
}

impl<P: 'static> Pingers<P> {
    /// None yet; replies come out at the other end of `replies`.
    pub(crate) fn new(replies: mpsc::Sender<Vec<u8>>) -> Self {
        Self {
            table: BTreeMap::new(),
            replies,
        }
    }

    /// Puts a request to its destination; the socket for the first of a program is as `prepare`
    /// makes it, where that gives leave.
    pub(crate) fn send(&mut self, echo: &Echo<'_>, prepare: impl FnOnce(&Socket) -> io::Result<P>) {
        let key = (echo.source, echo.destination, echo.identifier);
        let line = |pinger: &Pinger<P>| pinger.line.upgrade();
        let mut found = self.table.get(&key).and_then(line);
        if found.is_none() {
            self.table.retain(|_, pinger| line(pinger).is_some());
            if self.table.len() >= MAX_PINGERS {
                return;
            }
            match Pinger::start(echo, prepare, self.replies.clone()) {
                Ok(pinger) => {
                    found = line(&pinger);
                    self.table.insert(key, pinger);
                }
                Err(error) => {
                    tracing::debug!(destination = %echo.destination, %error, "cannot ping");
                    return;
                }
            }
        }
        let Some((pinger, line)) = self.table.get(&key).zip(found) else {
            return;
        };
        if echo.hop_limit <= 1 {
            let complaint = Complaint::time_exceeded(echo.destination.is_ipv4());
            let own = line.socket.local_addr().map(|own| own.ip());
            let quoted = echo.emit();
            if let Some(packet) = own
                .ok()
                .zip(quoted)
                .and_then(|(own, quoted)| complaint.emit(own, echo.source, &quoted))
            {
                let _ = self.replies.try_send(packet);
            }
            return;
        }
        line.send(&Echo {
            identifier: pinger.identifier,
            ..echo.clone()
        });
    }
}

/// Pings of programs on this host which go without a session: lost, like any packet, where they
/// cannot be sent.
pub struct EchoSender(Pingers<()>);

impl EchoSender {
    /// None yet; replies come out at the other end of `replies`, as whole IP packets.
    #[must_use]
    pub fn new(replies: mpsc::Sender<Vec<u8>>) -> Self {
        Self(Pingers::new(replies))
    }

    /// Whom a packet pings; `None` where it is no whole echo request.
    #[must_use]
    pub fn destination(packet: &[u8]) -> Option<IpAddr> {
        let echo = Echo::parse(packet)?;
        (echo.kind == Kind::Request).then_some(echo.destination)
    }

    /// Puts the request to its destination, by a socket as `prepare` makes it. Must be called
    /// within a `LocalSet`.
    pub fn send(&mut self, packet: &[u8], prepare: impl FnOnce(&Socket) -> io::Result<()>) {
        if let Some(echo) = Echo::parse(packet) {
            // To its own host's programs this end is no router.
            let hop_limit = echo.hop_limit.saturating_add(1);
            self.0.send(&Echo { hop_limit, ..echo }, prepare);
        }
    }
}

impl<P> Drop for Pinger<P> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<P> Line<P> {
    fn send(&self, echo: &Echo<'_>) {
        let mut message = echo.emit_message();
        let socket = SockRef::from(&self.socket);
        // This end is one of the routers that it passes.
        let hop_limit = u32::from(echo.hop_limit - 1);
        let _ = match echo.destination {
            IpAddr::V4(_) => socket.set_ttl_v4(hop_limit),
            IpAddr::V6(_) => {
                // The kernel sums up, over its own source address, and this field too.
                message[2..4].fill(0);
                socket.set_unicast_hops_v6(hop_limit)
            }
        };
        // Past the reactor, which does not know yet that a new socket is writable. ICMP errors of
        // earlier ones surface here, and are taken up by the task.
        let _ = socket.send(&message);
    }
}

impl<P: 'static> Pinger<P> {
    fn start(
        echo: &Echo<'_>,
        prepare: impl FnOnce(&Socket) -> io::Result<P>,
        replies: mpsc::Sender<Vec<u8>>,
    ) -> io::Result<Self> {
        let (socket, is_raw) = open(echo.destination)?;
        socket.set_nonblocking(true)?;
        let leave = prepare(&socket)?;
        let destination = SocketAddr::new(echo.destination, 0);
        undelivered::ask(&socket, destination)?;
        socket.connect(&destination.into())?;
        let line = Rc::new(Line {
            socket: UdpSocket::from_std(socket.into())?,
            _leave: leave,
        });
        let identifier = next_identifier();
        let asker = Asker {
            source: echo.source,
            destination: echo.destination,
            asked: echo.identifier,
            identifier,
            is_raw,
        };
        let own = Rc::downgrade(&line);
        let task = tokio::task::spawn_local(asker.listen(line, replies));
        Ok(Self {
            line: own,
            identifier,
            task: task.abort_handle(),
        })
    }
}

/// Who is told what comes back.
struct Asker {
    source: IpAddr,
    destination: IpAddr,
    /// The number that it asks by.
    asked: u16,
    /// Ours in its place.
    identifier: u16,
    is_raw: bool,
}

impl Asker {
    /// Hands out what comes, until nothing has come for long; lost where nobody takes it off.
    async fn listen<P>(self, line: Rc<Line<P>>, replies: mpsc::Sender<Vec<u8>>) {
        let socket = &line.socket;
        let mut buffer = vec![0; MAX_PACKET];
        let come = async |buffer: &mut Vec<u8>| {
            tokio::select! {
                received = socket.recv(buffer) => received.ok(),
                () = undelivered::until_said(socket) => None,
            }
        };
        while let Ok(received) = timeout(IDLE, come(&mut buffer)).await {
            if let Some(length) = received {
                if let Some(packet) = self.reply(&buffer[..length]) {
                    let _ = replies.try_send(packet);
                }
                continue;
            }
            while let Some(said) = undelivered::take_said(socket, &mut buffer) {
                if let Some(packet) = self.error(said, &buffer[..said.quoted]) {
                    let _ = replies.try_send(packet);
                }
            }
        }
    }

    fn reply(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let message = strip(bytes, self.destination, self.is_raw);
        let reply = Echo::parse_message(message, self.destination, self.source)?;
        let is_ours = !self.is_raw || reply.identifier == self.identifier;
        let reply = Echo {
            identifier: self.asked,
            ..reply
        };
        (is_ours && reply.kind == Kind::Reply).then(|| reply.emit())?
    }

    /// What was said, about the request as it was before it came here. Of raw sockets each hears
    /// what is said to all that ask this host.
    fn error(&self, said: IcmpError, message: &[u8]) -> Option<Vec<u8>> {
        let request = Echo::parse_message(message, self.source, self.destination)?;
        let is_ours = !self.is_raw || request.identifier == self.identifier;
        let request = Echo {
            identifier: self.asked,
            hop_limit: 1,
            ..request
        };
        let complaint = Complaint {
            kind: said.kind,
            code: said.code,
            mtu: said.mtu.try_into().unwrap_or(0),
        };
        let quoted = request.emit().filter(|_| is_ours)?;
        complaint.emit(said.by, self.source, &quoted)
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
