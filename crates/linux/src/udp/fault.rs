//! What a refused datagram says about the link. Owns the translation of error numbers.

use std::io;

/// What went wrong with one transmission. Never a reason to close the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFault {
    /// `EMSGSIZE`: larger than the interface's MTU; an answer to a path-MTU probe.
    TooLarge,
    /// `ECONNREFUSED`: an ICMP port-unreachable came back earlier.
    Refused,
    /// `ENETUNREACH`: no route to there from this interface or source address.
    NetworkUnreachable,
    /// `EHOSTUNREACH`: the neighbour does not answer ARP or ND.
    HostUnreachable,
    /// `ENETDOWN`: the interface is down.
    NetworkDown,
    /// `ENODEV` or `ENXIO`: the interface is gone.
    NoDevice,
    /// `EADDRNOTAVAIL`: the source address is gone from the interface.
    SourceGone,
    /// `EPERM` or `EACCES`: a firewall rule or a cgroup hook forbids it.
    Denied,
    /// `ENOBUFS`: the interface's queue is full; the packet is lost, later ones may pass.
    QueueFull,
    /// Anything else, by number; `errno(3)` names it.
    Other(i32),
}

impl SendFault {
    /// The fault that `error`, from [`try_send`](super::UdpSocket::try_send), stands for. `None`
    /// for `WouldBlock`, which is no fault: wait with
    /// [`poll_writable`](super::UdpSocket::poll_writable) and send again.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        if error.kind() == io::ErrorKind::WouldBlock {
            return None;
        }
        Some(match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Self::TooLarge,
            Some(libc::ECONNREFUSED) => Self::Refused,
            Some(libc::ENETUNREACH) => Self::NetworkUnreachable,
            Some(libc::EHOSTUNREACH) => Self::HostUnreachable,
            Some(libc::ENETDOWN) => Self::NetworkDown,
            Some(libc::ENODEV | libc::ENXIO) => Self::NoDevice,
            Some(libc::EADDRNOTAVAIL) => Self::SourceGone,
            Some(libc::EPERM | libc::EACCES) => Self::Denied,
            Some(libc::ENOBUFS) => Self::QueueFull,
            other => Self::Other(other.unwrap_or(0)),
        })
    }
}
