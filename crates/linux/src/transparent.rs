//! Sockets for what others send through this machine, taken up on its way (TPROXY).
//!
//! Owns the listening sockets, which a packet filter rule points at, and sockets that answer in the
//! name of the destination. Needs `CAP_NET_ADMIN`. What the rule takes is not decided here; without
//! a listener it takes nothing.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;

use crate::buffers::grow_receive;
use crate::caller::Caller;
use crate::capture::next_call;
use crate::hooks::HookError;
use crate::reactor::watch;
use crate::syn_hold::{Scope, SynHold, SynRefusal};

/// As many as wait at other capture sockets.
const BACKLOG: i32 = 1024;
/// Bytes of datagrams that wait for us: a burst of all hosts behind this machine.
const RECV_BUFFER: usize = 4 << 20;

/// How often to try for a port that is free for everything.
const MAX_PORT_ATTEMPTS: usize = 16;

/// Takes up connections and datagrams of others, of both families, on one port of loopback.
#[derive(Debug)]
pub struct Transparent {
    port: u16,
    mark: u32,
    tcp: [Option<TcpListener>; 2],
    /// One of each family's listener, where the kernel lets hosts wait for the answer.
    holds: [Option<SynHold>; 2],
    udp: [Option<AsyncFd<OwnedFd>>; 2],
}

/// Answers in the name of a destination.
#[derive(Debug)]
pub struct Impostor {
    socket: Socket,
}

impl Transparent {
    /// Opens the sockets on a port the kernel chooses; `mark` is put on everything they send.
    /// Without IPv6 there is IPv4 only.
    ///
    /// # Errors
    /// We may not, or no port is free.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open(mark: u32) -> io::Result<Self> {
        let mut failure = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..MAX_PORT_ATTEMPTS {
            match Self::try_open(mark) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => failure = error,
                result => return result,
            }
        }
        Err(failure)
    }

    fn try_open(mark: u32) -> io::Result<Self> {
        let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let v6 = |port| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        let tcp = listener(v4(0), mark)?;
        let port = tcp.local_addr()?.port();
        let has_v6 = Socket::new(Domain::IPV6, Type::STREAM, None).is_ok();
        let (tcp6, udp6) = if has_v6 {
            (
                Some(listener(v6(port), mark)?),
                Some(receiver(v6(port), mark)?),
            )
        } else {
            (None, None)
        };
        Ok(Self {
            port,
            mark,
            udp: [Some(receiver(v4(port), mark)?), udp6],
            tcp: [Some(tcp), tcp6],
            holds: [None, None],
        })
    }

    /// The port, on 127.0.0.1 and `[::1]`.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections taken up from now on send as this congestion control says.
    ///
    /// # Errors
    /// The kernel has none of this name.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        let name = OsString::from(name);
        for listener in self.tcp.iter().flatten() {
            setsockopt(listener, sockopt::TcpCongestion, &name)?;
        }
        Ok(())
    }

    /// From here on hosts wait for a yes or no. Without it they are connected at once. `mark` is
    /// for packets of ours that end the wait; it must lead them here as those of the hosts are.
    ///
    /// # Errors
    /// See [`HookError`]; the listeners are as they were.
    pub fn hold_requests(&mut self, mark: u32) -> Result<(), HookError> {
        let attach = |listener: &Option<TcpListener>| -> Result<_, HookError> {
            let Some(listener) = listener else {
                return Ok(None);
            };
            let listener = [listener.as_fd()];
            SynHold::attach(&listener, Scope::Everything, mark).map(Some)
        };
        let [v4, v6] = &self.tcp;
        self.holds = [attach(v4)?, attach(v6)?];
        Ok(())
    }

    /// The next host that asks for a connection, and where to. Who was not diverted, but has
    /// connected to the listener itself, is turned away: it would be led back here for ever.
    ///
    /// # Errors
    /// Those of `accept(2)`: out of descriptors or memory; may pass.
    pub async fn accept(&self) -> io::Result<(Caller, SocketAddr)> {
        let [v4, v6] = &self.tcp;
        let [hold_v4, hold_v6] = &self.holds;
        loop {
            let (caller, dest) = tokio::select! {
                called = call_on(v4, hold_v4) => called?,
                called = call_on(v6, hold_v6) => called?,
            };
            if is_diverted(dest) {
                return Ok((caller, dest));
            }
            caller.refuse(SynRefusal::Refused);
        }
    }

    /// The next datagram: its length, where it comes from and where it was going. One that was
    /// going to the socket itself is dropped.
    ///
    /// # Errors
    /// Those of `recvmsg(2)`, none of which lasts.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, SocketAddr)> {
        loop {
            let [v4, v6] = &self.udp;
            let ready = tokio::select! {
                ready = readable(v4) => ready?,
                ready = readable(v6) => ready?,
            };
            match ready.try_io(Interest::READABLE, |fd| receive(fd, buffer)) {
                Ok(Some(received)) if is_diverted(received.2) => return Ok(received),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A socket that answers as if it were `dest`.
    ///
    /// # Errors
    /// Out of descriptors, or a socket of this machine has the address.
    pub fn impostor(&self, dest: SocketAddr) -> io::Result<Impostor> {
        let socket = transparent(dest, Type::DGRAM, Protocol::UDP, self.mark)?;
        Ok(Impostor { socket })
    }
}

impl Impostor {
    /// Sends `payload` to `to`.
    ///
    /// # Errors
    /// `WouldBlock` where the socket is full, and what `sendto(2)` says; UDP loses datagrams.
    pub fn try_send(&self, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        self.socket.send_to(payload, &to.into()).map(drop)
    }
}

/// Nothing on its way through this machine is going to its loopback.
fn is_diverted(dest: SocketAddr) -> bool {
    !dest.ip().to_canonical().is_loopback()
}

async fn call_on(
    listener: &Option<TcpListener>,
    hold: &Option<SynHold>,
) -> io::Result<(Caller, SocketAddr)> {
    match listener {
        Some(listener) => next_call(listener, hold.as_ref()).await,
        None => std::future::pending().await,
    }
}

async fn readable(socket: &Option<AsyncFd<OwnedFd>>) -> io::Result<&AsyncFd<OwnedFd>> {
    let Some(socket) = socket else {
        return std::future::pending().await;
    };
    // Kept ready: who reads until it would block clears it.
    socket.readable().await?.retain_ready();
    Ok(socket)
}

fn listener(address: SocketAddr, mark: u32) -> io::Result<TcpListener> {
    let socket = transparent(address, Type::STREAM, Protocol::TCP, mark)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn receiver(address: SocketAddr, mark: u32) -> io::Result<AsyncFd<OwnedFd>> {
    let socket = transparent(address, Type::DGRAM, Protocol::UDP, mark)?;
    grow_receive(&socket, RECV_BUFFER)?;
    match address {
        SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4OrigDstAddr, &true)?,
        SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6OrigDstAddr, &true)?,
    }
    watch(socket.into())
}

fn transparent(
    address: SocketAddr,
    kind: Type,
    protocol: Protocol,
    mark: u32,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Two flows may have the same destination.
    if kind == Type::DGRAM {
        socket.set_reuse_address(true)?;
    }
    set_transparent(&socket, address.ip())?;
    socket.set_mark(mark)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

pub(crate) fn set_transparent(socket: &Socket, ip: IpAddr) -> io::Result<()> {
    let (level, option) = match ip {
        IpAddr::V4(_) => (libc::SOL_IP, libc::IP_TRANSPARENT),
        IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    };
    let on: libc::c_int = 1;
    // SAFETY: the value is live, and its size is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `None` for a datagram that does not say where it was going.
fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr, SocketAddr)>> {
    let mut control = nix::cmsg_space!(libc::sockaddr_in6);
    let mut pieces = [io::IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        fd.as_raw_fd(),
        &mut pieces,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let from = message.address.as_ref().and_then(|address| {
        let v4 = address
            .as_sockaddr_in()
            .map(|v4| SocketAddr::V4((*v4).into()));
        v4.or_else(|| {
            address
                .as_sockaddr_in6()
                .map(|v6| SocketAddr::V6((*v6).into()))
        })
    });
    let dest = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4OrigDstAddr(v4) => {
            Some(SocketAddr::V4(SockaddrIn::from(v4).into()))
        }
        ControlMessageOwned::Ipv6OrigDstAddr(v6) => {
            Some(SocketAddr::V6(SockaddrIn6::from(v6).into()))
        }
        _ => None,
    });
    let bytes = message.bytes;
    Ok(from.zip(dest).map(|(from, dest)| (bytes, from, dest)))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{TcpStream, UdpSocket};

    use super::*;

    /// Runs where the sockets can be had.
    fn with_sockets<F: Future<Output = ()>>(test: impl FnOnce(Transparent) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            match Transparent::open(0x1062) {
                Ok(sockets) => test(sockets).await,
                Err(error) => println!("skipped: {error}"),
            }
        });
    }

    #[test]
    fn who_was_not_diverted_is_turned_away() {
        with_sockets(|sockets| async move {
            for ip in ["127.0.0.1", "::1"] {
                let at = SocketAddr::new(ip.parse().unwrap(), sockets.port());
                let asked = tokio::task::spawn_blocking(move || {
                    let mut stream = TcpStream::connect(at).unwrap();
                    stream.read(&mut [0; 1])
                });
                tokio::select! {
                    taken = sockets.accept() => panic!("taken up: {taken:?}"),
                    told = asked => match told.unwrap() {
                        Ok(length) => assert_eq!(length, 0),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
                    },
                }
            }
        });
    }

    #[test]
    fn a_datagram_that_was_not_diverted_is_dropped() {
        with_sockets(|sockets| async move {
            let loopbacks = ["127.0.0.1:0", "[::1]:0"];
            for (local, receiver) in loopbacks.into_iter().zip(&sockets.udp) {
                let Some(receiver) = receiver else { continue };
                let sender = UdpSocket::bind(local).unwrap();
                let at = SocketAddr::new(sender.local_addr().unwrap().ip(), sockets.port());
                sender.send_to(b"round and round", at).unwrap();
                let waiting = || rustix::io::ioctl_fionread(receiver.get_ref()).unwrap();
                assert!(waiting() > 0);
                let mut buffer = [0; 64];
                let gone = async {
                    while waiting() > 0 {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::select! {
                    biased;
                    taken = sockets.recv(&mut buffer) => panic!("taken up: {taken:?}"),
                    () = gone => {}
                }
            }
        });
    }
}
