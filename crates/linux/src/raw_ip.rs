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
    /// Opens the sockets; what they send carries `mark` (`SO_MARK`). Without IPv6 there is IPv4
    /// only.
    ///
    /// # Errors
    /// We may not.
    pub fn open(mark: Option<u32>) -> io::Result<Self> {
        let open = |domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
            socket.set_nonblocking(true)?;
            socket.set_send_buffer_size(BUFFER)?;
            if let Some(mark) = mark {
                socket.set_mark(mark)?;
            }
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

const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOP_LIMIT: u8 = 64;
const UDP_HEADER: usize = 8;

/// What the host of `dest` says to a datagram from `app` that nobody takes: ICMP port unreachable
/// with the datagram's headers (RFC 792, RFC 4443 §3.1). `None` for addresses of two families.
#[must_use]
pub fn port_unreachable(app: SocketAddr, dest: SocketAddr) -> Option<Vec<u8>> {
    const TYPE_AND_CODE: (u8, u8) = (3, 3);
    const TYPE_AND_CODE_V6: (u8, u8) = (1, 4);
    let (protocol, (kind, code)) = match app.is_ipv4() {
        true => (ICMP, TYPE_AND_CODE),
        false => (ICMPV6, TYPE_AND_CODE_V6),
    };
    let mut quoted = ip_header(app.ip(), dest.ip(), UDP, UDP_HEADER)?;
    quoted.extend(app.port().to_be_bytes());
    quoted.extend(dest.port().to_be_bytes());
    quoted.extend((UDP_HEADER as u16).to_be_bytes());
    quoted.extend([0; 2]);
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    message.append(&mut quoted);
    let mut summed = Vec::new();
    if let (IpAddr::V6(from), IpAddr::V6(to)) = (dest.ip(), app.ip()) {
        // The pseudo header (RFC 8200 §8.1); ICMP for IPv4 has none.
        summed.extend(from.octets());
        summed.extend(to.octets());
        summed.extend((message.len() as u32).to_be_bytes());
        summed.extend([0, 0, 0, ICMPV6]);
    }
    summed.extend(&message);
    message[2..4].copy_from_slice(&checksum(&summed).to_be_bytes());
    let mut packet = ip_header(dest.ip(), app.ip(), protocol, message.len())?;
    packet.append(&mut message);
    Some(packet)
}

/// The header of a packet that carries `len` bytes.
fn ip_header(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> Option<Vec<u8>> {
    let mut header = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = u16::try_from(20 + len).ok()?;
            header.extend([0x45, 0]);
            header.extend(total.to_be_bytes());
            header.extend([0, 0, 0, 0, HOP_LIMIT, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            header.extend([0x60, 0, 0, 0]);
            header.extend(u16::try_from(len).ok()?.to_be_bytes());
            header.extend([protocol, HOP_LIMIT]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        _ => return None,
    }
    Some(header)
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_quotes_the_datagram_and_its_sums_are_right() {
        let address = |text: &str| text.parse().unwrap();
        let packet =
            port_unreachable(address("127.0.0.1:5000"), address("127.128.0.9:53")).unwrap();
        assert_eq!(packet.len(), 20 + 8 + 20 + 8);
        assert_eq!((checksum(&packet[..20]), checksum(&packet[20..])), (0, 0));
        assert_eq!(
            (&packet[12..16], &packet[16..20]),
            (&[127, 128, 0, 9][..], &[127, 0, 0, 1][..])
        );
        assert_eq!(&packet[48..52], &[0x13, 0x88, 0, 53]);
        let packet = port_unreachable(address("[::1]:5000"), address("[100::9]:53")).unwrap();
        assert_eq!(
            (packet.len(), packet[6], packet[40], packet[41]),
            (40 + 8 + 40 + 8, 58, 1, 4)
        );
        assert_eq!(
            port_unreachable(address("[::1]:5000"), address("127.0.0.1:53")),
            None
        );
    }
}
