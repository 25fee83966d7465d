//! Captured datagrams and the way back to the socket that each came from.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Poll;

use socket2::SockRef;

use super::{CaptureError, drop_strangers, loopback_v6};
use crate::hooks::{FlowTable, Original, index_of_v4, index_of_v6, source_v4, source_v6};
use crate::raw_ip::{RawIp, port_unreachable};
use crate::udp::{Meta, RecvBatch, Transmit, UdpBind, UdpSocket};

/// How many flows are remembered to spare a system call per datagram; beyond that all are
/// forgotten and asked for again.
const MAX_KNOWN_FLOWS: usize = 4096;

/// One UDP socket of a program and one destination of it: the key of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapturedFlow {
    index: u32,
    /// The number of the program's socket, the same for all its destinations.
    pub socket: u64,
    /// The program's socket; answers go there.
    pub app: SocketAddr,
    /// Captured through `[::1]`.
    via_v6: bool,
}

/// One datagram on its way out.
#[derive(Debug)]
pub struct CapturedDatagram<'a> {
    /// Where it came from, for answers.
    pub flow: CapturedFlow,
    /// What the program asked for.
    pub original: Original,
    /// What it sent; may be empty.
    pub payload: &'a mut [u8],
}

/// Receives captured UDP datagrams.
#[derive(Debug)]
pub struct CaptureUdp {
    sender: CaptureSender,
    batch: RecvBatch,
    /// By index and source as received.
    known: BTreeMap<(u32, SocketAddr), (CapturedFlow, Original)>,
}

/// Sends answers to captured datagrams. Copies share the sockets.
#[derive(Clone, Debug)]
pub struct CaptureSender {
    v4: Arc<UdpSocket>,
    /// Missing where the host has no IPv6 on loopback.
    v6: Option<Arc<UdpSocket>>,
    /// For errors; missing where we may not send them.
    raw: Option<Arc<RawIp>>,
    port: u16,
}

impl CaptureUdp {
    /// Opens the sockets on `port`, which the hooks must be told; see [`Capture::open`].
    ///
    /// [`Capture::open`]: super::Capture::open
    ///
    /// # Errors
    /// See [`CaptureError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn bind(port: u16, mark: Option<u32>) -> Result<Self, CaptureError> {
        let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        let v4 = UdpSocket::bind(UdpBind {
            interface: None,
            local,
        })?;
        drop_strangers(&v4).map_err(|source| CaptureError::Open { port, source })?;
        let v6 = match bind_v6(port) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                tracing::info!(%error, "unconnected IPv6 UDP sockets are not captured");
                None
            }
        };
        if let Some(mark) = mark {
            for socket in [Some(&v4), v6.as_deref()].into_iter().flatten() {
                socket
                    .set_mark(mark)
                    .map_err(|source| CaptureError::Open { port, source })?;
            }
        }
        Ok(Self {
            sender: CaptureSender {
                v4: Arc::new(v4),
                v6,
                raw: RawIp::open(mark).ok().map(Arc::new),
                port,
            },
            batch: RecvBatch::new(),
            known: BTreeMap::new(),
        })
    }

    /// Whether datagrams of unconnected IPv6 sockets can be captured: what
    /// [`HookConfig::capture_udp6`](crate::hooks::HookConfig) should be set to.
    #[must_use]
    pub fn has_v6(&self) -> bool {
        self.sender.v6.is_some()
    }

    /// The way back, for the task that has the answers.
    #[must_use]
    pub fn sender(&self) -> CaptureSender {
        self.sender.clone()
    }

    /// Waits for datagrams and hands each to `handle`. Returns after at least one system call
    /// that brought some; datagrams that belong to no flow are dropped.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn recv(
        &mut self,
        flows: &FlowTable,
        mut handle: impl FnMut(CapturedDatagram<'_>),
    ) -> io::Result<()> {
        loop {
            self.readable().await?;
            if self.try_recv(flows, &mut handle)? {
                return Ok(());
            }
        }
    }

    /// Hands every datagram that is there to `handle`, one batch per socket. Returns whether
    /// there were any.
    ///
    /// # Errors
    /// Those of `recvmmsg(2)`, none of which lasts.
    pub fn try_recv(
        &mut self,
        flows: &FlowTable,
        mut handle: impl FnMut(CapturedDatagram<'_>),
    ) -> io::Result<bool> {
        let mut any = false;
        let sockets = [Some(&self.sender.v4), self.sender.v6.as_ref()];
        for socket in sockets.into_iter().flatten() {
            match socket.try_recv(&mut self.batch) {
                Ok(_) => any = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            for datagram in self.batch.datagrams() {
                let Some((flow, original)) = identify(&mut self.known, flows, datagram.meta) else {
                    tracing::debug!(from = %datagram.meta.remote, "dropping a datagram of no flow");
                    continue;
                };
                handle(CapturedDatagram {
                    flow,
                    original,
                    payload: datagram.payload,
                });
            }
        }
        Ok(any)
    }

    /// Waits until [`try_recv`](Self::try_recv) is worth calling.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            let v4 = self.sender.v4.poll_readable(cx);
            let v6 = self
                .sender
                .v6
                .as_ref()
                .map_or(Poll::Pending, |v6| v6.poll_readable(cx));
            if v4.is_ready() { v4 } else { v6 }
        })
        .await
    }
}

impl CaptureSender {
    /// Sends an answer to the program, from the address it knows. `segment_size` splits
    /// `contents` into datagrams of that size, see [`Transmit`].
    ///
    /// # Errors
    /// `WouldBlock` where the program's socket is full, and whatever else
    /// [`UdpSocket::try_send`] reports; UDP loses datagrams, so they may be dropped.
    pub fn try_send(
        &self,
        flow: CapturedFlow,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let (socket, source) = if flow.via_v6 {
            let socket = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
            (socket, IpAddr::V6(source_v6(flow.index)))
        } else {
            (&self.v4, IpAddr::V4(source_v4(flow.index)))
        };
        socket.try_send(Transmit {
            remote: flow.app,
            local_ip: Some(source),
            segment_size,
            contents,
        })
    }

    /// Tells the program that nobody takes what it sends on this flow, as the host there would have
    /// told it: by an ICMP error (RFC 1122 §3.2.2.1).
    ///
    /// # Errors
    /// We may not send such, or the kernel does not take it.
    pub fn refuse(&self, flow: CapturedFlow) -> io::Result<()> {
        let raw = self.raw.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let source = match flow.via_v6 {
            true => IpAddr::V6(source_v6(flow.index)),
            false => IpAddr::V4(source_v4(flow.index)),
        };
        let dest = SocketAddr::new(source, self.port);
        raw.send(&port_unreachable(flow.app, dest).ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// The flow by which the socket of `flow` hears of `from`, which it did not ask. `None` where
    /// the table refuses, or this socket cannot hear of that family.
    #[must_use]
    pub fn stranger(
        &self,
        flows: &FlowTable,
        flow: CapturedFlow,
        from: SocketAddr,
    ) -> Option<CapturedFlow> {
        if from.is_ipv6() != flow.via_v6 {
            return None;
        }
        let reply = match flow.app.ip() {
            IpAddr::V6(reply) => Some(reply),
            IpAddr::V4(_) => None,
        };
        let index = flows.add(flow.socket, from, reply)?;
        Some(CapturedFlow { index, ..flow })
    }

    /// Waits until the sockets can take more.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn writable(&self, flow: CapturedFlow) -> io::Result<()> {
        match (&self.v6, flow.via_v6) {
            (Some(v6), true) => v6.writable().await,
            _ => self.v4.writable().await,
        }
    }
}

fn bind_v6(port: u16) -> Result<UdpSocket, CaptureError> {
    let socket = UdpSocket::bind(UdpBind {
        interface: None,
        local: loopback_v6(port),
    })?;
    // Answers come from addresses that stand for flows, which no interface has.
    let freebind = SockRef::from(&socket.as_fd()).set_freebind_v6(true);
    freebind.map_err(|source| CaptureError::Open { port, source })?;
    Ok(socket)
}

fn identify(
    known: &mut BTreeMap<(u32, SocketAddr), (CapturedFlow, Original)>,
    flows: &FlowTable,
    meta: Meta,
) -> Option<(CapturedFlow, Original)> {
    let (index, via_v6) = match (meta.remote.ip(), meta.local_ip?) {
        (IpAddr::V4(_), IpAddr::V4(local)) => (index_of_v4(local)?, false),
        (IpAddr::V6(remote), IpAddr::V6(_)) => (index_of_v6(remote)?, true),
        _ => return None,
    };
    let key = (index, meta.remote);
    if let Some(found) = known.get(&key) {
        return Some(*found);
    }
    let (original, socket, reply) = flows.udp(index)?;
    let flow = CapturedFlow {
        index,
        socket,
        app: match via_v6 {
            true => SocketAddr::new(reply.into(), meta.remote.port()),
            false => meta.remote,
        },
        via_v6,
    };
    let found = (flow, original);
    if known.len() >= MAX_KNOWN_FLOWS {
        known.clear();
    }
    known.insert(key, found);
    Some(found)
}
