//! UDP sockets that carry a session's packets: one per interface, sent and received in batches.
//!
//! Owns the socket, its options (device, buffers, do-not-fragment, GSO, GRO, packet info) and the
//! translation of addresses: callers see plain IPv4 and IPv6, never the v4-mapped form that a
//! dual-stack socket speaks. One failing datagram never ends a batch, so send errors are values
//! ([`SendFault`]), not reasons to close. Leaves to others what a packet means and when it is sent.

mod bound;
mod fault;
mod receive;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use quinn_udp::{UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use socket2::{SockRef, Socket};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::reactor::{watch_reading, watch_writing};

pub use bound::{BoundUdp, Instruction};
pub use fault::SendFault;
pub use receive::{Datagram, Meta, RecvBatch};

/// The most bytes one [`Transmit`] may hold over all its segments: the largest UDP payload over
/// IPv4 (65,535 less 20 and 8 of headers), which the kernel applies to the GSO batch as a whole.
pub const MAX_TRANSMIT_BYTES: usize = 65_507;

/// What to bind and where.
#[derive(Clone, Copy, Debug)]
pub struct UdpBind<'a> {
    /// Name of the interface that every packet shall use, whatever the routing table says. `None`
    /// leaves the choice to the routing table.
    pub interface: Option<&'a str>,
    /// Local address; `[::]` serves IPv4 as well.
    pub local: SocketAddr,
}

/// Why a UDP socket could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The kernel gave no socket: out of descriptors, or the address family is switched off.
    #[error("cannot open a UDP socket for {local}: {source}")]
    Open {
        /// The address asked for.
        local: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// `SO_BINDTODEVICE` is not allowed to us.
    #[error(
        "not allowed to bind a socket to interface {interface}: \
         run as root, grant CAP_NET_RAW, or use Linux 5.7 or later"
    )]
    BindToInterfaceDenied {
        /// The interface asked for.
        interface: String,
    },
    /// There is no such interface (any more).
    #[error("there is no interface {interface}; `ip link` lists those there are")]
    NoSuchInterface {
        /// The interface asked for.
        interface: String,
    },
    /// `SO_BINDTODEVICE` failed otherwise.
    #[error("cannot bind a socket to interface {interface}: {source}")]
    BindToInterface {
        /// The interface asked for.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The local address is taken or not ours.
    #[error("cannot bind UDP {local}: {source}")]
    BindAddress {
        /// The address asked for.
        local: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A socket option that we cannot do without was refused.
    #[error("cannot set {option} on the UDP socket for {local}: {source}")]
    Configure {
        /// The address asked for.
        local: SocketAddr,
        /// The option, by its name in the manual page.
        option: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// One or more datagrams of equal size to one address, as one system call.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Where to.
    pub remote: SocketAddr,
    /// The source address to use; `None` lets the kernel choose.
    pub local_ip: Option<IpAddr>,
    /// The size in bytes of every datagram in `contents` but the last, which may be shorter.
    /// `None` where `contents` is a single datagram.
    pub segment_size: Option<usize>,
    /// The payloads one after another, at most [`MAX_TRANSMIT_BYTES`].
    pub contents: &'a [u8],
}

/// A non-blocking UDP socket, registered with the tokio runtime it was made in.
#[derive(Debug)]
pub struct UdpSocket {
    /// Watched for what comes alone: each packet that has left makes room for the next, which would
    /// wake the owner for every send.
    io: AsyncFd<OwnedFd>,
    /// Watches for room, while somebody waits for it.
    room: Mutex<Option<AsyncFd<OwnedFd>>>,
    state: UdpSocketState,
    /// How many segments one send may hold; 1 once the route has shown that it cannot segment.
    /// Ours and not quinn-udp's, which gives GSO up at any `EINVAL`, even for a source address
    /// that has just left the interface.
    gso_segments: AtomicUsize,
    /// An `AF_INET6` socket: IPv4 addresses travel in their v4-mapped form.
    is_v6: bool,
}

impl UdpSocket {
    /// Opens, configures and binds a socket.
    ///
    /// # Errors
    /// See [`UdpError`]; each message says what to do.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn bind(bind: UdpBind<'_>) -> Result<Self, UdpError> {
        Self::watch(BoundUdp::bind(bind)?)
    }

    /// Registers a socket that is bound with the runtime of this thread.
    ///
    /// # Errors
    /// A socket option was refused, or the runtime has no descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn watch(bound: BoundUdp) -> Result<Self, UdpError> {
        let (socket, local) = bound.into_parts();
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).map_err(|source| {
            let option = "IP_PKTINFO, IP_MTU_DISCOVER or UDP_GRO";
            UdpError::Configure {
                local,
                option,
                source,
            }
        })?;
        ignore_traffic_class(&socket, local);
        Ok(Self {
            gso_segments: AtomicUsize::new(state.max_gso_segments()),
            state,
            is_v6: local.is_ipv6(),
            io: watch_reading(socket.into()).map_err(|source| UdpError::Open { local, source })?,
            room: Mutex::default(),
        })
    }

    /// Marks every packet for policy routing and firewalls (`SO_MARK`; needs `CAP_NET_ADMIN`).
    ///
    /// # Errors
    /// `PermissionDenied` without the capability.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        SockRef::from(self.io.get_ref()).set_mark(mark)
    }

    /// Has the kernel say no more to which local address a datagram came, which takes time with
    /// each: [`Meta::local_ip`] is `None` from now on.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn ignore_local_ip(&self) -> io::Result<()> {
        let socket = self.io.get_ref();
        if self.is_v6 {
            setsockopt(socket, Ipv6RecvPacketInfo, &false)?;
        } else {
            setsockopt(socket, Ipv4PacketInfo, &false)?;
        }
        Ok(())
    }

    /// The address bound to, with the port the kernel chose where 0 was asked for.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = SockRef::from(self.io.get_ref()).local_addr()?;
        address
            .as_socket()
            .ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
    }

    /// How many segments one [`Transmit`] may hold: 64 with GSO, 1 without. May fall while running.
    #[must_use]
    pub fn max_gso_segments(&self) -> usize {
        self.gso_segments.load(Ordering::Relaxed)
    }

    /// Receives what is there, at most as much as `batch` holds, and returns the number of
    /// buffers filled (a buffer may hold several datagrams).
    ///
    /// # Errors
    /// `WouldBlock` where nothing is there; else what the kernel reports, after which receiving
    /// may simply go on.
    pub fn try_recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.clear();
        self.io
            .try_io(Interest::READABLE, |socket| batch.fill(&self.state, socket))
    }

    /// The same for a task that is to be woken when something comes, `unasked` also where the event
    /// loop has not been told yet of what has come. What does not fill the batch was all there is:
    /// no second call asks for that.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv) has them; after each, the next call may be ready.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch,
        unasked: bool,
    ) -> Poll<io::Result<usize>> {
        batch.clear();
        // Before receiving: what comes from then on is told of anew.
        let mut told = match self.io.poll_read_ready(cx) {
            Poll::Ready(told) => Some(told?),
            Poll::Pending if unasked => None,
            Poll::Pending => return Poll::Pending,
        };
        let received = batch.fill(&self.state, self.io.get_ref());
        let is_drained = match &received {
            Ok(_) => !batch.is_full(),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if is_drained && let Some(told) = &mut told {
            told.clear_ready();
        }
        Poll::Ready(received)
    }

    /// Sends `transmit`, as one GSO batch where the route can do so, else datagram by datagram.
    ///
    /// # Errors
    /// `WouldBlock` where the socket's buffer is full and nothing was sent. For everything else
    /// ask [`SendFault::of`]; what was not sent counts as lost.
    pub fn try_send(&self, transmit: Transmit<'_>) -> io::Result<()> {
        debug_assert!(transmit.contents.len() <= MAX_TRANSMIT_BYTES);
        let Some(segment_size) = transmit
            .segment_size
            .filter(|size| *size < transmit.contents.len())
        else {
            return self.send_once(transmit, None);
        };
        if self.max_gso_segments() == 1 {
            return self.send_singly(transmit, segment_size);
        }
        let error = match self.send_once(transmit, Some(segment_size)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => error,
            result => return result,
        };
        // Only where the same datagrams pass one by one was GSO to blame.
        self.send_singly(transmit, segment_size)?;
        tracing::info!(%error, "this route cannot segment; sending datagrams one by one");
        self.gso_segments.store(1, Ordering::Relaxed);
        Ok(())
    }

    fn send_singly(&self, transmit: Transmit<'_>, segment_size: usize) -> io::Result<()> {
        for (sent, contents) in transmit.contents.chunks(segment_size.max(1)).enumerate() {
            match self.send_once(
                Transmit {
                    contents,
                    ..transmit
                },
                None,
            ) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent > 0 => {
                    return Ok(());
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn send_once(&self, transmit: Transmit<'_>, segment_size: Option<usize>) -> io::Result<()> {
        let raw = quinn_udp::Transmit {
            destination: self.to_socket_family(transmit.remote),
            ecn: None,
            contents: transmit.contents,
            segment_size,
            src_ip: transmit.local_ip.map(|ip| match ip {
                IpAddr::V4(v4) if self.is_v6 => IpAddr::V6(v4.to_ipv6_mapped()),
                ip => ip,
            }),
        };
        let socket = UdpSockRef::from(self.io.get_ref());
        self.state.try_send(socket, &raw)
    }

    fn to_socket_family(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.is_v6 => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            address => address,
        }
    }

    /// Ready once [`try_recv`](Self::try_recv) is worth calling. Several may wait; the waker of
    /// the last call to `poll_readable` is kept.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx).map_ok(drop)
    }

    /// Ready once [`try_send`](Self::try_send) is worth calling again after `WouldBlock`. The waker
    /// of the last call is kept.
    ///
    /// # Errors
    /// Where the runtime is shutting down, or has no descriptors.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = match &mut *room {
            Some(watched) => watched,
            none => none.insert(watch_writing(self.io.get_ref().try_clone()?)?),
        };
        ready!(watched.poll_write_ready(cx))?.retain_ready();
        *room = None;
        Poll::Ready(Ok(()))
    }

    /// Waits until [`try_recv`](Self::try_recv) is worth calling.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.io.readable().await.map(drop)
    }

    /// Waits until [`try_send`](Self::try_send) is worth calling.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_writable(cx)).await
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.get_ref().as_fd()
    }
}

/// Has the kernel leave out what quinn-udp asks for and nobody reads here: a message that comes
/// with every datagram costs time with every datagram.
fn ignore_traffic_class(socket: &Socket, local: SocketAddr) {
    let v4 = sockopt::set_ip_recvtos(socket, false);
    let v6 = match local {
        SocketAddr::V4(_) => Ok(()),
        SocketAddr::V6(_) => sockopt::set_ipv6_recvtclass(socket, false),
    };
    if let Err(error) = v4.and(v6) {
        tracing::debug!(%error, "IP_RECVTOS or IPV6_RECVTCLASS stays as it is");
    }
}

/// An address as its own family writes it, out of the v4-mapped form of a dual-stack socket.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), v6.port()),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests;
