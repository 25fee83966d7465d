//! Programs that say where their datagrams leave: by an interface that each names, or to all hosts
//! of a wire.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use socket2::{Domain, Socket, Type};

use super::world::PATIENCE;

pub(crate) const DESTS: [&str; 2] = ["192.0.2.1:7", "[2001:db8::1]:7"];

/// What arrives at an interface.
pub(crate) struct Wire(Socket);

impl Wire {
    pub(crate) fn of(interface: &str) -> Self {
        let every_protocol = i32::from(0x0003_u16.to_be());
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(every_protocol.into())).unwrap();
        socket.bind_device(Some(interface.as_bytes())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// Waits for a packet to `dest` that ends in `text`.
    pub(crate) fn hear(&self, text: &[u8], dest: &str) {
        let dest: SocketAddr = dest.parse().unwrap();
        let (at, address) = match dest.ip() {
            IpAddr::V4(v4) => (16, v4.octets().to_vec()),
            IpAddr::V6(v6) => (24, v6.octets().to_vec()),
        };
        let mut packet = [0; 2_048];
        loop {
            let length = (&self.0)
                .read(&mut packet)
                .unwrap_or_else(|error| panic!("nothing to {dest}: {error}"));
            let packet = &packet[..length];
            if packet.ends_with(text) && packet[at..].starts_with(&address) {
                return;
            }
        }
    }
}

fn socket(dest: &SocketAddr) -> UdpSocket {
    let local = if dest.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    UdpSocket::bind(local).unwrap()
}

/// Sends with the interface named beside it (`IP_PKTINFO`, `IPV6_PKTINFO`).
fn send_by(socket: &UdpSocket, interface: u32, text: &[u8], dest: SocketAddr) {
    // SAFETY: both are plain numbers, for which zero says nothing.
    let (mut v4, mut v6): (libc::in_pktinfo, libc::in6_pktinfo) = unsafe { std::mem::zeroed() };
    v4.ipi_ifindex = i32::try_from(interface).unwrap();
    v6.ipi6_ifindex = interface;
    let named = match dest {
        SocketAddr::V4(_) => ControlMessage::Ipv4PacketInfo(&v4),
        SocketAddr::V6(_) => ControlMessage::Ipv6PacketInfo(&v6),
    };
    let (text, to) = ([IoSlice::new(text)], SockaddrStorage::from(dest));
    sendmsg(
        socket.as_raw_fd(),
        &text,
        &[named],
        MsgFlags::empty(),
        Some(&to),
    )
    .unwrap();
}

/// Names an interface that leads to the world.
pub(crate) fn by_interface() {
    let interface = if_nametoindex("plain0").unwrap();
    for dest in DESTS.map(|text| text.parse().unwrap()) {
        send_by(&socket(&dest), interface, b"not captured", dest);
    }
}

/// Goes on by the interface that the answer came by, whichever that was.
pub(crate) fn as_answered() {
    for dest in DESTS.map(|text| text.parse().unwrap()) {
        let socket = socket(&dest);
        match dest {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap(),
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true).unwrap(),
        }
        socket.send_to(b"first", dest).unwrap();
        send_by(&socket, answered_by(&socket), b"again", dest);
        assert_ne!(answered_by(&socket), 0);
    }
}

fn answered_by(socket: &UdpSocket) -> u32 {
    let mut text = [0; 16];
    let mut text = [IoSliceMut::new(&mut text)];
    let mut control = nix::cmsg_space!(libc::in6_pktinfo);
    let fd = socket.as_raw_fd();
    let got = recvmsg::<SockaddrStorage>(fd, &mut text, Some(&mut control), MsgFlags::empty());
    let got = got.unwrap();
    let mut said = got.cmsgs().unwrap().map(|it| match it {
        ControlMessageOwned::Ipv4PacketInfo(it) => it.ipi_ifindex.unsigned_abs(),
        ControlMessageOwned::Ipv6PacketInfo(it) => it.ipi6_ifindex,
        other => panic!("{other:?}"),
    });
    said.next().unwrap()
}

/// Speaks to all hosts of a wire, which a socket must say that it means to.
pub(crate) fn to_all() {
    let dest: SocketAddr = "198.51.100.255:7".parse().unwrap();
    let socket = socket(&dest);
    let error = socket.send_to(b"x", dest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    socket.set_broadcast(true).unwrap();
    socket.send_to(b"not captured", dest).unwrap();
}
