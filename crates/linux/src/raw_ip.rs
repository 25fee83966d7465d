//! Whole IP packets, sent as they are, whoever they say to be from.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// `IPPROTO_RAW`: what is sent has its own IP header.
const RAW: i32 = 255;
/// Bytes of packets that wait for an interface.
const BUFFER: usize = 4 << 20;

/// Sends packets of both families. They are routed as this machine's own are.
#[derive(Debug)]
pub struct RawIp {
    v4: Socket,
    v6: Option<Socket>,
}

impl RawIp {
    /// Opens the sockets. Without IPv6 there is IPv4 only.
    ///
    /// # Errors
    /// We may not.
    pub fn open() -> io::Result<Self> {
        let open = |domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
            socket.set_nonblocking(true)?;
            socket.set_send_buffer_size(BUFFER)?;
            Ok(socket)
        };
        Ok(Self {
            v4: open(Domain::IPV4)?,
            v6: open(Domain::IPV6).ok(),
        })
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// It is none, or the kernel does not take it.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        let (socket, to) = match packet {
            [first, ..] if first >> 4 == 4 && packet.len() >= 20 => {
                let octets: [u8; 4] = packet[16..20].try_into().map_err(io::Error::other)?;
                (&self.v4, IpAddr::from(Ipv4Addr::from(octets)))
            }
            [first, ..] if first >> 4 == 6 && packet.len() >= 40 => {
                let octets: [u8; 16] = packet[24..40].try_into().map_err(io::Error::other)?;
                let socket = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                (socket, IpAddr::from(Ipv6Addr::from(octets)))
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        socket
            .send_to(packet, &SocketAddr::new(to, 0).into())
            .map(drop)
    }
}
