//! The marks by which our own hooks, listeners and rules know which sockets are ours.

use std::net::{Ipv4Addr, UdpSocket};

use socket2::SockRef;

/// `SO_MARK` of every socket of ours that leaves this machine: clear of the bits that container
/// networks (0x4000, 0x8000), Tailscale (0xff0000) and Calico (0xffff0000) use.
pub const OWN_MARK: u32 = 0x1062;

/// The mark of connection requests that we have held back and let go on.
pub const RELEASE_MARK: u32 = 0x1067;

/// Whether we may mark sockets (`CAP_NET_ADMIN`).
#[must_use]
pub fn may_mark() -> bool {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    socket.is_ok_and(|socket| SockRef::from(&socket).set_mark(OWN_MARK).is_ok())
}
