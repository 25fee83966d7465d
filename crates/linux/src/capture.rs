//! Where captured traffic arrives: a TCP listener and UDP sockets on loopback.
//!
//! Owns those sockets and the way from the address a packet came to, or from, to the destination
//! its program asked for. Listens on the wildcard address, because flows have four million
//! addresses, but a filter in the kernel drops whatever is not addressed to one of those: nothing
//! beyond this host can reach us. (Binding to the device `lo` would do so too, but leaves answers
//! to programs that bound another local address without a route.) What is done with the payload
//! is left to others.

mod datagram;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol as SocketProtocol, SockFilter, SockRef, Socket, Type};
use tokio::net::TcpListener;

use crate::buffers::allow_small_buffers;
use crate::caller::Caller;
use crate::hooks::{FLOW_NET, FlowTable, HookError, Original, index_of_v4};
use crate::syn_hold::{HeldCall, Scope, SynHold, SynRefusal};

pub use datagram::{CaptureSender, CaptureUdp, CapturedDatagram, CapturedFlow};

/// Connections that may wait to be accepted. A browser opens some dozens at once; beyond this,
/// loopback retransmits after a second.
const BACKLOG: i32 = 1024;

/// How often to try for a port that both TCP and UDP have free.
const MAX_PORT_ATTEMPTS: usize = 16;

/// Why the capture sockets could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// A socket could not be opened, configured or bound.
    #[error("cannot open the capture socket on port {port}: {source}")]
    Open {
        /// The port asked for.
        port: u16,
        /// What the kernel said.
        source: io::Error,
    },
    /// As above, for UDP.
    #[error(transparent)]
    Udp(#[from] crate::udp::UdpError),
    /// No port was free for both TCP and UDP.
    #[error("found no port that is free for both TCP and UDP")]
    NoPort,
}

/// The sockets that captured traffic arrives at, all on one port.
#[derive(Debug)]
pub struct Capture {
    /// Captured connections.
    pub listener: CaptureListener,
    /// Captured datagrams.
    pub udp: CaptureUdp,
    /// The port, for [`HookConfig`](crate::hooks::HookConfig).
    pub port: u16,
}

impl Capture {
    /// Opens the sockets on a port the kernel chooses. Those that send carry `mark` (`SO_MARK`), so
    /// that hooks on our own cgroup leave answers alone.
    ///
    /// # Errors
    /// See [`CaptureError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open(mark: Option<u32>) -> Result<Self, CaptureError> {
        for _ in 0..MAX_PORT_ATTEMPTS {
            let listener = CaptureListener::bind(0)?;
            let port = listener.port()?;
            match CaptureUdp::bind(port, mark) {
                Ok(udp) => {
                    return Ok(Self {
                        listener,
                        udp,
                        port,
                    });
                }
                Err(CaptureError::Udp(crate::udp::UdpError::BindAddress { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Err(CaptureError::NoPort)
    }
}

/// A connection that a program of the hooks' group asks for.
#[derive(Debug)]
pub struct CapturedCall {
    /// The program, to be told yes or no.
    pub caller: Caller,
    /// What it asked for.
    pub original: Original,
}

/// Accepts captured TCP connections.
#[derive(Debug)]
pub struct CaptureListener {
    listener: TcpListener,
    /// Where the kernel lets programs wait for the answer.
    hold: Option<SynHold>,
}

impl CaptureListener {
    /// Listens on `port`; 0 lets the kernel choose.
    ///
    /// # Errors
    /// [`CaptureError::Open`].
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn bind(port: u16) -> Result<Self, CaptureError> {
        let open = || -> io::Result<TcpListener> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(SocketProtocol::TCP))?;
            drop_strangers(&socket)?;
            allow_small_buffers(&socket)?;
            socket.set_nonblocking(true)?;
            socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into())?;
            socket.listen(BACKLOG)?;
            TcpListener::from_std(socket.into())
        };
        let listener = open().map_err(|source| CaptureError::Open { port, source })?;
        let hold = None;
        Ok(Self { listener, hold })
    }

    /// The port listened on.
    ///
    /// # Errors
    /// [`CaptureError::Open`], as `getsockname(2)` fails.
    pub fn port(&self) -> Result<u16, CaptureError> {
        let address = self.listener.local_addr();
        Ok(address
            .map_err(|source| CaptureError::Open { port: 0, source })?
            .port())
    }

    /// From here on programs stay in `connect()` until they are told yes or no. Without it they
    /// are connected at once. `mark` is for packets of ours that end the wait.
    ///
    /// # Errors
    /// See [`HookError`]; the listener is as it was.
    pub fn hold_requests(&mut self, mark: u32) -> Result<(), HookError> {
        let listener = self.listener.as_fd();
        self.hold = Some(SynHold::attach(&[listener], Scope::Flows, mark)?);
        Ok(())
    }

    /// The next program that asks. Who asks for no flow, or for another's, is turned away.
    ///
    /// # Errors
    /// Those of `accept(2)`: out of descriptors or memory; may pass.
    pub async fn accept(&self, flows: &FlowTable) -> io::Result<CapturedCall> {
        loop {
            let (caller, local) = next_call(&self.listener, self.hold.as_ref()).await?;
            let index = match local {
                SocketAddr::V4(local) => index_of_v4(*local.ip()),
                SocketAddr::V6(_) => None,
            };
            let from = caller.from;
            match index.and_then(|index| flows.claim(index, from)) {
                Some(original) => return Ok(CapturedCall { caller, original }),
                None => {
                    tracing::debug!(%from, %local, "turning away a call for no flow");
                    caller.refuse(SynRefusal::Refused);
                }
            }
        }
    }
}

/// The next program that asks at `listener`, and for which address.
pub(crate) async fn next_call(
    listener: &TcpListener,
    hold: Option<&SynHold>,
) -> io::Result<(Caller, SocketAddr)> {
    loop {
        tokio::select! {
            held = next_held(hold) => {
                let held = held?;
                let local = held.to();
                return Ok((Caller::held(held), local));
            }
            accepted = listener.accept() => {
                let (stream, from) = accepted?;
                // Fails where the program has reset the connection since.
                let Ok(local) = stream.local_addr() else {
                    continue;
                };
                let kept = match hold {
                    Some(hold) => hold.deliver(stream, from),
                    None => Some(stream),
                };
                if let Some(stream) = kept {
                    return Ok((Caller::accepted(stream, from), local));
                }
            }
        }
    }
}

async fn next_held(hold: Option<&SynHold>) -> io::Result<HeldCall> {
    match hold {
        Some(hold) => hold.next().await,
        None => std::future::pending().await,
    }
}

/// Has the kernel drop, unanswered, every IPv4 packet that is not addressed to a flow.
fn drop_strangers(socket: &impl AsFd) -> io::Result<()> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Where the destination address lies, counted from the start of the IPv4 header.
    const DESTINATION: u32 = libc::SKF_NET_OFF as u32 + 16;

    let (network, bits) = FLOW_NET;
    let mask = u32::MAX << (32 - bits);
    SockRef::from(socket).attach_filter(&[
        SockFilter::new(LOAD_WORD, 0, 0, DESTINATION),
        SockFilter::new(AND, 0, 0, mask),
        SockFilter::new(JUMP_EQUAL, 0, 1, network.to_bits()),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ])
}

/// `[::1]`, where captured IPv6 datagrams arrive.
fn loopback_v6(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)
}
