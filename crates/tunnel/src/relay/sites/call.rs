//! How who calls a site meets the task that serves its route: by the two ends of a connection on
//! loopback, or of two sockets there, one with each.
//!
//! Owns the caller's half.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdUdpSocket};

use tabane_base::Protocol;
use tabane_linux::buffers;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::oneshot;

use super::super::attending;
use super::super::host::{Host, Seat, refuse};
use super::super::udp::{self, Destination};
use crate::connection::Connection;
use crate::flow::Flow;
use crate::loopback;
use crate::request::{Status, protocol_byte};
use crate::stream::{Stream, StreamEnd};

/// Of datagrams on their way between the two halves of a flow.
const RECEIVE_BUFFER: usize = 512 * 1024;

/// What leads to the task that serves a route.
pub(super) type Bell = attending::Bell<Call>;

/// Somebody of the group who wants to go there.
pub(super) struct Call {
    pub(super) at: SocketAddr,
    /// On whose behalf; `None` where that is nobody's to know.
    pub(super) from: Option<SocketAddr>,
    pub(super) end: FarHalf,
}

/// Where the half of the caller's worker is met.
pub(super) enum FarHalf {
    /// What the client says of its target is told.
    Tcp(TcpStream, oneshot::Sender<Status>),
    /// Dropped with the half of the client's; and what is spoken, as the client is told.
    Datagrams(UdpSocket, oneshot::Sender<()>, u8),
}

impl FarHalf {
    /// What it takes at the client's session.
    pub(super) fn seat(&self) -> Seat {
        match self {
            Self::Tcp(..) => Seat::SiteTcp,
            Self::Datagrams(.., spoken) if *spoken == protocol_byte(Protocol::Udp) => Seat::SiteUdp,
            Self::Datagrams(..) => Seat::SitePackets,
        }
    }
}

/// Where a destination of a client's leads.
pub(in crate::relay) struct Way {
    pub(super) at: SocketAddr,
    /// On whose behalf, if that is an address that its client may show.
    pub(super) from: Option<SocketAddr>,
    /// By which number the route is known; of one that is away, nobody asks.
    pub(super) route: Option<u64>,
    /// `None`: its site is away.
    pub(super) bell: Option<Bell>,
}

impl Way {
    /// False where nobody will hear the call.
    pub(super) fn call(&self, end: FarHalf) -> bool {
        let (at, from) = (self.at, self.from);
        let bell = self.bell.as_ref();
        bell.is_some_and(|bell| bell.ring(Call { at, from, end }))
    }
}

/// Carries a connection of the client's to a site.
pub(in crate::relay) async fn connect(
    stream: Stream,
    host: &Host,
    way: Way,
) -> Result<(), StreamEnd> {
    let Ok((near, far)) = loopback::pair().await else {
        return refuse(stream, Status::Limit).await;
    };
    // Ends by a reset, however its half ends.
    if far.set_zero_linger().is_err() {
        return refuse(stream, Status::Limit).await;
    }
    let (tell, told) = oneshot::channel();
    if !way.call(FarHalf::Tcp(far, tell)) {
        return refuse(stream, Status::HostUnreachable).await;
    }
    let status = tokio::select! {
        told = told => told.unwrap_or(Status::HostUnreachable),
        end = poll_fn(|cx| stream.poll_reset(cx)) => return Err(end),
    };
    if status != Status::Open {
        return refuse(stream, status).await;
    }
    stream.write_all(&[Status::Open.emit()]).await?;
    let connection = Connection::new(stream, near.into());
    let carried = connection.metered(host.meter()).carry().await;
    tracing::debug!(at = %way.at, ?carried, "a connection to a site is over");
    Ok(())
}

/// Carries a UDP flow of the client's to a site.
pub(in crate::relay) async fn pass_flow(
    mut flow: Flow,
    host: &Host,
    way: Way,
) -> Result<(), StreamEnd> {
    let Ok((near, far)) = udp_pair() else {
        return refuse(flow.into_stream(), Status::Limit).await;
    };
    let (half, gone) = oneshot::channel();
    if !way.call(FarHalf::Datagrams(far, half, protocol_byte(Protocol::Udp))) {
        return refuse(flow.into_stream(), Status::HostUnreachable).await;
    }
    flow.stream().write_all(&[Status::Open.emit()]).await?;
    let outside = Destination {
        socket: near,
        idle: udp::IDLE,
    };
    let is_refused = tokio::select! {
        () = udp::pass(&mut flow, &outside, host.meter()) => false,
        _ = gone => true,
    };
    if is_refused {
        // The client's target, or the client, has gone: the program is told as by ICMP.
        flow.stream().write_some(&[Status::Refused.emit()]);
    }
    flow.stream_mut().end();
    Ok(())
}

/// Two UDP sockets that speak with one another alone.
pub(super) fn udp_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let [near, far] = [open()?, open()?];
    let (at_near, at_far) = (near.local_addr()?, far.local_addr()?);
    Ok((joined(near, at_far)?, joined(far, at_near)?))
}

fn open() -> io::Result<StdUdpSocket> {
    let socket = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Hears the other alone from now on. What came from whoever has found the port before is dropped.
fn joined(socket: StdUdpSocket, other: SocketAddr) -> io::Result<UdpSocket> {
    socket.connect(other)?;
    buffers::grow_receive(&socket, RECEIVE_BUFFER)?;
    while socket.recv(&mut [0]).is_ok() {}
    UdpSocket::from_std(socket)
}

/// The same socket, watched by this thread's loop.
pub(super) fn udp_at_home(socket: UdpSocket) -> io::Result<UdpSocket> {
    UdpSocket::from_std(socket.into_std()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_the_port_of_a_flow_s_half_is_not_heard() {
        crate::block_on(async {
            let [near, far] = [open().unwrap(), open().unwrap()];
            let (at_near, at_far) = (near.local_addr().unwrap(), far.local_addr().unwrap());
            let stranger = open().unwrap();
            for _ in 0..3 {
                stranger.send_to(b"strange", at_far).unwrap();
            }
            let (near, far) = (joined(near, at_far).unwrap(), joined(far, at_near).unwrap());
            stranger.send_to(b"strange", at_far).unwrap();
            near.send(b"ours").await.unwrap();
            let mut heard = [0; 10];
            let len = far.recv(&mut heard).await.unwrap();
            assert_eq!(&heard[..len], b"ours");
        })
        .unwrap();
    }
}
