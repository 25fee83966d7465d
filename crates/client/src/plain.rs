//! The way without the session: sockets of ours to the very destination, as the program would have
//! had without us.
//!
//! Owns how such a socket is made and marked as ours. Which way it takes is `plain_way`'s choice.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use tabane_base::Translator;
use tabane_linux::{
    Egress,
    abortive::AbortiveStream,
    join::{Buffer, join},
};
use tabane_tunnel::OWN_MARK;
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::multipath::{Offer, Subflows};
use crate::plain_meter::Meter;

/// The way of a connection without a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlainWay {
    /// As the routing table has it.
    Routed,
    /// By this link, whatever the routing table says.
    Over(Egress),
    /// The same, where only this leads to IPv4.
    Translated(Egress, Translator),
}

impl PlainWay {
    /// The address to send to.
    fn lead_to(&self, dest: SocketAddr) -> io::Result<SocketAddr> {
        match (self, dest) {
            (Self::Translated(_, translator), SocketAddr::V4(v4)) => {
                let led = translator.lead_to(*v4.ip());
                let led = led.ok_or(io::ErrorKind::NetworkUnreachable)?;
                Ok(SocketAddr::new(led.into(), v4.port()))
            }
            _ => Ok(dest),
        }
    }
}

/// The way, and what counts what goes by it.
#[derive(Debug)]
pub(crate) struct MeteredWay {
    pub(crate) way: PlainWay,
    pub meter: Meter,
    /// For a connection: other links beside it.
    pub(crate) offer: Option<Offer>,
}

/// A connection of which every byte counts.
pub(crate) struct Far {
    tcp: AbortiveStream,
    meter: Meter,
    subflows: Option<Box<Subflows>>,
}

/// Connects to `dest`, past our hooks.
pub(crate) async fn connect(dest: SocketAddr, metered: MeteredWay) -> io::Result<Far> {
    let MeteredWay { way, meter, offer } = metered;
    let dest = way.lead_to(dest)?;
    let socket = offer.as_ref().and_then(|offer| offer.socket(dest));
    let (socket, offer) = match socket {
        Some(socket) => (socket, offer),
        None => (tcp_socket(dest)?, None),
    };
    let tcp = connect_by(socket, dest, &way).await?;
    let subflows = offer.and_then(|offer| offer.begin(&tcp)).map(Box::new);
    let tcp = tcp.into();
    Ok(Far {
        tcp,
        meter,
        subflows,
    })
}

/// The same for what is ours, and no program's.
pub(crate) async fn connect_tcp(dest: SocketAddr, way: &PlainWay) -> io::Result<TcpStream> {
    let dest = way.lead_to(dest)?;
    connect_by(tcp_socket(dest)?, dest, way).await
}

fn tcp_socket(dest: SocketAddr) -> io::Result<TcpSocket> {
    match dest {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}

async fn connect_by(socket: TcpSocket, dest: SocketAddr, way: &PlainWay) -> io::Result<TcpStream> {
    mark_if_allowed(&socket)?;
    take(&socket, way)?;
    socket.connect(dest).await
}

impl Far {
    /// Joins it with `program`, of which `early` has been read, until both directions have ended.
    pub(crate) async fn carry(self, program: AbortiveStream, early: Vec<u8>) -> io::Result<()> {
        let Self {
            tcp,
            meter,
            subflows,
        } = self;
        let read = early.len();
        let holds = (Buffer::holding(early), Buffer::default());
        let Some(mut subflows) = subflows else {
            meter.on_stream(read);
            return join(program, tcp, holds, |bytes| meter.on_stream(bytes)).await;
        };
        let (moved, shared) = (subflows.moved(), tcp.share());
        moved.add(read);
        let ended = tokio::select! {
            biased;
            ended = join(program, tcp, holds, |bytes| moved.add(bytes)) => ended,
            () = subflows.attend(&shared) => Err(io::ErrorKind::ConnectionReset.into()),
        };
        subflows.settle(&shared);
        ended
    }
}

/// A UDP socket that speaks with `dest` alone, past our hooks.
pub(crate) async fn connect_udp(dest: SocketAddr, way: &PlainWay) -> io::Result<UdpSocket> {
    let dest = way.lead_to(dest)?;
    let any = match dest {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    mark_if_allowed(&socket)?;
    take(&socket, way)?;
    socket.connect(dest).await?;
    Ok(socket)
}

/// Waits until something was said of what the socket has sent: nobody who waits for datagrams is
/// woken by that.
pub(crate) async fn failed(socket: &UdpSocket) -> io::Error {
    loop {
        if let Err(error) = socket.ready(Interest::ERROR).await {
            return error;
        }
        let seen = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = socket.try_io(Interest::ERROR, seen);
        if let Ok(Some(error)) = socket.take_error() {
            return error;
        }
    }
}

/// The same over one link, from its address `local`.
pub(crate) async fn connect_udp_over(
    egress: &Egress,
    local: SocketAddr,
    dest: SocketAddr,
) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(local).await?;
    mark_if_allowed(&socket)?;
    egress.take(&socket)?;
    socket.connect(dest).await?;
    Ok(socket)
}

/// Makes a socket of ours ready for its way.
pub(crate) fn prepare(socket: &impl AsFd, way: &PlainWay) -> io::Result<()> {
    mark_if_allowed(socket)?;
    take(socket, way)
}

fn take(socket: &impl AsFd, way: &PlainWay) -> io::Result<()> {
    match way {
        PlainWay::Routed => Ok(()),
        PlainWay::Over(egress) | PlainWay::Translated(egress, _) => egress.take(socket),
    }
}

/// Who has hooks may mark; others need no mark.
fn mark_if_allowed(socket: &impl AsFd) -> io::Result<()> {
    match mark(socket) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn mark(socket: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::Mark, &OWN_MARK)?)
}
