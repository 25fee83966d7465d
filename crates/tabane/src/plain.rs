//! The way without the session: sockets of ours to the very destination, as the program would have
//! had without us.
//!
//! Owns the mark by which our own hooks know such sockets. Which link they take is `plain_way`'s
//! choice.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::plain_meter::Metered;
use crate::plain_way::{Passage, PlainWay};

/// `SO_MARK` of every socket of ours that leaves this machine: clear of the bits that container
/// networks (0x4000, 0x8000), Tailscale (0xff0000) and Calico (0xffff0000) use.
pub(crate) const MARK: u32 = 0x1062;

/// Whether we may mark sockets (`CAP_NET_ADMIN`).
pub(crate) fn may_mark() -> bool {
    std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).is_ok_and(|socket| mark(&socket).is_ok())
}

/// Connects to `dest`, past our hooks.
pub(crate) async fn connect(dest: SocketAddr, passage: Passage) -> io::Result<Metered> {
    let socket = match dest {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    mark_if_allowed(&socket)?;
    take(&socket, &passage.way)?;
    Ok(Metered::new(socket.connect(dest).await?, passage.meter))
}

/// A UDP socket that speaks with `dest` alone, past our hooks.
pub(crate) async fn connect_udp(dest: SocketAddr, way: &PlainWay) -> io::Result<UdpSocket> {
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

/// The same over one interface, from its address `local`.
pub(crate) async fn connect_udp_over(
    interface: &str,
    local: SocketAddr,
    dest: SocketAddr,
) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(local).await?;
    mark_if_allowed(&socket)?;
    take(&socket, &PlainWay::Over(interface.to_owned()))?;
    socket.connect(dest).await?;
    Ok(socket)
}

/// Carries `program`, of which `early` has been read, to `dest` until both directions have ended.
/// What fails resets the program's end.
pub(crate) async fn carry(
    mut program: TcpStream,
    early: &[u8],
    dest: SocketAddr,
    passage: Passage,
) -> io::Result<()> {
    let carried = async {
        let mut far = connect(dest, passage).await?;
        far.set_nodelay(true)?;
        far.write_all(early).await?;
        tokio::io::copy_bidirectional(&mut program, &mut far).await
    };
    let carried = carried.await;
    if carried.is_err() {
        // Closing would tell the program that it has everything.
        let _ = program.set_zero_linger();
    }
    carried.map(drop)
}

fn take(socket: &impl AsFd, way: &PlainWay) -> io::Result<()> {
    match way {
        PlainWay::Routed => Ok(()),
        PlainWay::Over(link) => Ok(setsockopt(socket, sockopt::BindToDevice, &link.into())?),
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
    Ok(setsockopt(socket, sockopt::Mark, &MARK)?)
}
