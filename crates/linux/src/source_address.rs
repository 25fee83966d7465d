//! Sockets that send from one address of the host's and no other.
//!
//! Owns how the kernel is told. The address may be one that only a route of type `local` leads here
//! (`IP_FREEBIND`, ip(7)): a whole range can be the host's without one address on an interface.
//! The port is left to the kernel.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockRef;

/// Binds a socket to an address.
///
/// # Errors
/// Those of `setsockopt(2)` and `bind(2)`.
pub fn bind(socket: &impl AsFd, from: IpAddr) -> io::Result<()> {
    let it = SockRef::from(socket);
    match from {
        IpAddr::V4(_) => it.set_freebind_v4(true)?,
        IpAddr::V6(_) => it.set_freebind_v6(true)?,
    }
    it.bind(&SocketAddr::new(from, 0).into())
}

/// The same for one that will be connected: its port is chosen then, so that connections to
/// different destinations may share one, as those of sockets that are bound to nothing do.
///
/// # Errors
/// As there.
pub fn bind_connecting(socket: &impl AsFd, from: IpAddr) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the option takes a number of this size. It is of the
    // level of IPv4 for sockets of both families.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    bind(socket, from)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn what_is_sent_comes_from_there() {
        // The loopback's whole range is this host's, with one address of it on the interface.
        let from: IpAddr = "127.5.6.7".parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let tcp = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        bind_connecting(&tcp, from).unwrap();
        tcp.connect(&to.into()).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), from);

        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        bind(&udp, from).unwrap();
        udp.send_to(b"x", &far.local_addr().unwrap().into())
            .unwrap();
        assert_eq!(far.recv_from(&mut [0]).unwrap().1.ip(), from);
    }
}
