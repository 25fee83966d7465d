//! What routers and hosts say of datagrams that reached nobody (ICMP), for unconnected UDP sockets
//! and for those of pings.
//!
//! The kernel tells a connected socket by an error of its next call. One that speaks with many, or
//! wants to pass on what was said, has to ask for a queue, which says whose datagram it was and who
//! says what (`IP_RECVERR`, ip(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// An ICMP error, as the kernel has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Who says it.
    pub by: IpAddr,
    /// The message's type.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// Of a packet that is too big: the largest that is not.
    pub mtu: u32,
    /// How much of what it is about was put into the buffer.
    pub quoted: usize,
}

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

/// The next error that somebody else has said; what is quoted of the datagram goes to `buffer`.
/// `None` where nothing is left. What the kernel says by itself is skipped.
pub fn take_said(socket: &impl AsFd, buffer: &mut [u8]) -> Option<IcmpError> {
    let mut control = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let socket = socket.as_fd().as_raw_fd();
    loop {
        let mut pieces = [io::IoSliceMut::new(buffer)];
        let message = recvmsg::<SockaddrStorage>(socket, &mut pieces, Some(&mut control), flags);
        let message = message.ok()?;
        let quoted = message.bytes;
        let said = message.cmsgs().ok()?.find_map(|control| {
            let (said, by) = match control {
                ControlMessageOwned::Ipv4RecvErr(said, by) => {
                    let ip = |by: libc::sockaddr_in| u32::from_be(by.sin_addr.s_addr);
                    (said, by.map(|by| IpAddr::from(ip(by).to_be_bytes())))
                }
                ControlMessageOwned::Ipv6RecvErr(said, by) => {
                    (said, by.map(|by| IpAddr::from(by.sin6_addr.s6_addr)))
                }
                _ => return None,
            };
            let is_others = matches!(
                said.ee_origin,
                libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6
            );
            by.filter(|_| is_others).map(|by| IcmpError {
                by,
                kind: said.ee_type,
                code: said.ee_code,
                mtu: said.ee_info,
                quoted,
            })
        });
        if said.is_some() {
            return said;
        }
    }
}

/// Waits until something was said of what `socket` has sent: nobody who waits for datagrams is
/// woken by that.
pub async fn until_said(socket: &UdpSocket) {
    // Fails where the runtime is shutting down.
    let _ = socket.ready(Interest::ERROR).await;
    let seen = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
    let _ = socket.try_io(Interest::ERROR, seen);
}
