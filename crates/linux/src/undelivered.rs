//! What routers and hosts say of datagrams that reached nobody (ICMP), for unconnected UDP sockets.
//!
//! The kernel tells a connected socket by an error of its next call. One that speaks with many has
//! to ask for a queue, which says whose datagram it was (`IP_RECVERR`, ip(7)).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};

/// Has the kernel keep what is said to `socket`, of the family of `address`.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn ask(socket: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true)?,
    }
    Ok(())
}

/// The next thing that was said: where the datagram was going, and what the kernel makes of it.
/// `None` where nothing is left.
pub fn take(socket: &impl AsFd) -> Option<(Option<SocketAddr>, io::Error)> {
    let mut control = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    // Not of interest: the beginning of what was sent.
    let mut nothing = [];
    let mut pieces = [io::IoSliceMut::new(&mut nothing)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let socket = socket.as_fd().as_raw_fd();
    let message = recvmsg::<SockaddrStorage>(socket, &mut pieces, Some(&mut control), flags);
    let message = message.ok()?;
    let dest = message.address.as_ref().and_then(|address| {
        let v4 = address
            .as_sockaddr_in()
            .map(|v4| SocketAddr::V4((*v4).into()));
        let v6 = || {
            address
                .as_sockaddr_in6()
                .map(|v6| SocketAddr::V6((*v6).into()))
        };
        v4.or_else(v6)
    });
    let said = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(said, _) | ControlMessageOwned::Ipv6RecvErr(said, _) => {
            i32::try_from(said.ee_errno).ok()
        }
        _ => None,
    });
    Some((dest, io::Error::from_raw_os_error(said.unwrap_or(0))))
}
