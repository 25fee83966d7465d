//! A UDP socket at every address of a host, whose answers leave by the address that was spoken to.
//!
//! A socket that is bound to all addresses sends from the one that the routing table prefers, which
//! on a host with several is seldom the one that the far end knows. The kernel says to which a
//! datagram came and takes the answer's with it (`IP_PKTINFO`, ip(7); `IPV6_RECVPKTINFO`, RFC 3542
//! §6). Owns this, and the translation of addresses: callers see plain IPv4 and IPv6. Datagrams are
//! fragmented as every program's are, which the sockets of sessions ([`crate::udp`]) are not.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use socket2::{Domain, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Such a socket, watched by the runtime that it was opened in.
#[derive(Debug)]
pub struct AnsweringSocket {
    socket: UdpSocket,
    /// An `AF_INET6` socket: IPv4 addresses travel in their v4-mapped form.
    is_v6: bool,
}

/// A datagram's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UdpTuple {
    /// Who has sent it; answers go there.
    pub remote: SocketAddr,
    /// Which of the host's addresses it was sent to; `None` where the kernel does not say, and for
    /// one that many have.
    pub local_ip: Option<IpAddr>,
}

impl AnsweringSocket {
    /// Opens it; `[::]` serves IPv4 as well. Nobody else has it.
    ///
    /// # Errors
    /// Somebody has, or those of `socket(2)`, `bind(2)` and `setsockopt(2)`.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open(local: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, None)?;
        if local.is_ipv6() {
            socket.set_only_v6(!local.ip().is_unspecified())?;
            // Of IPv4 as well, in the v4-mapped form.
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&local.into())?;
        Ok(Self {
            socket: UdpSocket::from_std(socket.into())?,
            is_v6: local.is_ipv6(),
        })
    }

    /// The next datagram, as much of it as `buffer` holds: its length and addresses.
    ///
    /// # Errors
    /// What hosts and routers have said of what was sent, after which receiving may go on.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<(usize, UdpTuple)> {
        let receive = || receive(self.socket.as_raw_fd(), buffer);
        self.socket.async_io(Interest::READABLE, receive).await
    }

    /// Sends a datagram to `tuple.remote`, from the address that it wrote to.
    ///
    /// # Errors
    /// `WouldBlock` where the socket is full, else those of `sendmsg(2)`.
    pub fn try_answer(&self, payload: &[u8], tuple: UdpTuple) -> io::Result<()> {
        let dest = match tuple.remote {
            SocketAddr::V4(v4) if self.is_v6 => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            other => other,
        };
        let send = || send(self.socket.as_raw_fd(), payload, dest, tuple.local_ip);
        self.socket.try_io(Interest::WRITABLE, send)
    }

    /// The port, and the address if it has but one.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, UdpTuple)> {
    let mut control = nix::cmsg_space!(libc::in6_pktinfo);
    let mut pieces = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrStorage>(socket, &mut pieces, Some(&mut control), flags)?;
    let to = message.cmsgs()?.find_map(|control| match control {
        // The address of ours: that of the header may be everybody's.
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into())
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            Some(IpAddr::from(info.ipi6_addr.s6_addr).to_canonical())
        }
        _ => None,
    });
    let from = message.address.as_ref().and_then(|address| {
        let v4 = address
            .as_sockaddr_in()
            .map(|it| SocketAddr::V4((*it).into()));
        let v6 = || {
            address
                .as_sockaddr_in6()
                .map(|it| SocketAddr::V6((*it).into()))
        };
        v4.or_else(v6)
    });
    let from = from.ok_or(io::ErrorKind::InvalidData)?;
    let from = match from.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::from((v4, from.port())),
        // With its scope.
        IpAddr::V6(_) => from,
    };
    let to = to.filter(|to: &IpAddr| !to.is_multicast() && !to.is_unspecified());
    let tuple = UdpTuple {
        remote: from,
        local_ip: to,
    };
    Ok((message.bytes, tuple))
}

fn send(socket: RawFd, payload: &[u8], dest: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
    let v4 = |address: Ipv4Addr| libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.octets()),
        },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let v6 = |address: [u8; 16]| libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr { s6_addr: address },
        ipi6_ifindex: 0,
    };
    let (v4, v6) = match (from, dest) {
        (None, _) => (None, None),
        (Some(IpAddr::V4(from)), SocketAddr::V4(_)) => (Some(v4(from)), None),
        (Some(IpAddr::V4(from)), SocketAddr::V6(_)) => {
            (None, Some(v6(from.to_ipv6_mapped().octets())))
        }
        (Some(IpAddr::V6(from)), _) => (None, Some(v6(from.octets()))),
    };
    let v4 = v4.as_ref().map(ControlMessage::Ipv4PacketInfo);
    let v6 = v6.as_ref().map(ControlMessage::Ipv6PacketInfo);
    let control: Vec<_> = v4.into_iter().chain(v6).collect();
    let dest = SockaddrStorage::from(dest);
    let pieces = [IoSlice::new(payload)];
    let flags = MsgFlags::MSG_DONTWAIT;
    sendmsg(socket, &pieces, &control, flags, Some(&dest))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answer_leaves_by_the_address_that_was_spoken_to() {
        for (local, spoken) in [
            ("0.0.0.0:0", &["127.0.0.2", "127.0.0.3"][..]),
            ("[::]:0", &["127.0.0.2", "127.0.0.3", "::1"]),
            ("127.0.0.2:0", &["127.0.0.2"]),
        ] {
            let port = AnsweringSocket::open(local.parse().unwrap()).unwrap();
            let number = port.local_addr().unwrap().port();
            for spoken in spoken {
                let ip: IpAddr = spoken.parse().unwrap();
                let any = match ip {
                    IpAddr::V4(_) => "127.0.0.1:0",
                    IpAddr::V6(_) => "[::1]:0",
                };
                let far = UdpSocket::bind(any).await.unwrap();
                let dest = SocketAddr::new(ip, number);
                far.send_to(b"who", dest).await.unwrap();
                let mut buffer = [0; 100];
                let (len, tuple) = port.recv(&mut buffer).await.unwrap();
                assert_eq!(&buffer[..len], b"who");
                assert_eq!(tuple.remote, far.local_addr().unwrap());
                assert_eq!(tuple.local_ip, Some(ip), "{local}");
                // Larger than a packet: fragmented, as anybody's.
                let answer = [7; 20_000];
                port.try_answer(&answer, tuple).unwrap();
                let mut buffer = vec![0; 65_536];
                let (len, from) = far.recv_from(&mut buffer).await.unwrap();
                assert_eq!((len, from), (answer.len(), dest), "{local}");
            }
        }
    }

    #[tokio::test]
    async fn nobody_has_it_twice() {
        let port = AnsweringSocket::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let again = AnsweringSocket::open(port.local_addr().unwrap());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
