//! A SOCKS5 UDP association: a loopback socket whose datagrams carry their destination in a header.
//!
//! It lives as long as the TCP connection that asked for it (RFC 1928 §6). The first sender from
//! the program's address becomes the only one heard and answered, so no third party can use the
//! association or be flooded by it.

use super::socks5;
use socket2::SockRef;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tabane_base::Destination;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Header (at most 262 bytes) and the largest UDP payload.
const MAX_DATAGRAM: usize = 65_535;

/// Bytes of datagrams that wait for us.
const RECV_BUFFER: usize = 4 << 20;

/// A datagram from the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// Where to send it.
    pub destination: Destination,
    /// What to send.
    pub payload: Vec<u8>,
}

/// The receiving half; dropping it ends the association.
#[derive(Debug)]
pub struct UdpAssociation {
    control: TcpStream,
    sender: UdpSender,
    client_ip: std::net::IpAddr,
    buffer: Vec<u8>,
}

/// The sending half, to be held by whoever gets answers.
#[derive(Debug, Clone)]
pub struct UdpSender {
    socket: Arc<UdpSocket>,
    /// Set by the first datagram; answers go there.
    client: Arc<OnceLock<SocketAddr>>,
}

impl UdpAssociation {
    pub(crate) async fn open(mut control: TcpStream) -> io::Result<Self> {
        let client_ip = control.peer_addr()?.ip();
        let socket = UdpSocket::bind((control.local_addr()?.ip(), 0)).await?;
        // As much as we may have: a program sends bursts.
        let _ = SockRef::from(&socket).set_recv_buffer_size(RECV_BUFFER);
        control
            .write_all(&socks5::emit_reply(0, socket.local_addr()?))
            .await?;
        let sender = UdpSender {
            socket: Arc::new(socket),
            client: Arc::default(),
        };
        Ok(Self {
            control,
            sender,
            client_ip,
            buffer: vec![0; MAX_DATAGRAM],
        })
    }

    /// The next datagram from the program; `None` once it closed the association. Broken datagrams
    /// are dropped (RFC 1928 §7).
    pub async fn receive(&mut self) -> io::Result<Option<Incoming>> {
        let mut ignored = [0; 64];
        loop {
            let (n, from) = tokio::select! {
                received = self.sender.socket.recv_from(&mut self.buffer) => match received {
                    Ok(received) => received,
                    // An answer to a program that closed its socket; the association may go on.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                    Err(error) => return Err(error),
                },
                read = self.control.read(&mut ignored) => match read {
                    Ok(0) | Err(_) => return Ok(None),
                    Ok(_) => continue,
                },
            };
            if from.ip() != self.client_ip || *self.sender.client.get_or_init(|| from) != from {
                continue;
            }
            if let Ok(datagram) = socks5::parse_datagram(&self.buffer[..n]) {
                let payload = datagram.payload.to_vec();
                return Ok(Some(Incoming {
                    destination: datagram.destination,
                    payload,
                }));
            }
        }
    }

    /// A handle for answers.
    pub fn sender(&self) -> UdpSender {
        self.sender.clone()
    }
}

impl UdpSender {
    /// Hands an answer to the program. Dropped when its socket is full, as the network would.
    pub fn send(&self, from: &Destination, payload: &[u8]) {
        let Some(&client) = self.client.get() else {
            return;
        };
        let mut datagram = Vec::with_capacity(payload.len() + 32);
        socks5::emit_datagram(from, payload, &mut datagram);
        let _ = self.socket.try_send_to(&datagram, client);
    }
}
