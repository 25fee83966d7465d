//! Copies of packets that a packet filter rule logs (NFLOG), while the packets themselves go on.
//!
//! Owns the netlink socket of one log group. What is in a packet is not looked at here. Packets
//! wait for nobody: copies that there is no room for are lost.

use std::io;
use std::ops::Range;

use nix::sys::socket::SockProtocol;

use crate::netlink::{NetlinkSocket, PACKETS, attributes, kind_of};

/// `NFNL_SUBSYS_ULOG`, shifted to where a message's type has it.
const SUBSYSTEM: u16 = 4 << 8;
const PACKET: u16 = SUBSYSTEM;
const CONFIG: u16 = SUBSYSTEM | 1;

/// An attribute of packets.
const PAYLOAD: u16 = 9;
// Attributes of configuration.
const COMMAND: u16 = 1;
const MODE: u16 = 2;
const BUFFER: u16 = 3;
const THRESHOLD: u16 = 5;

const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// Packets that are collected before we hear of them.
const AT_ONCE: u32 = 1;
/// What is reserved for each message, which takes more where it is larger. The kernel's own choice
/// is two pages, for several.
const MESSAGE_LEAST: u32 = 256;

/// One log group.
#[derive(Debug)]
pub struct PacketLog {
    socket: NetlinkSocket,
}

impl PacketLog {
    /// Listens to log group `number` of this network namespace. Packets that hardware would cut
    /// into pieces come whole.
    ///
    /// # Errors
    /// We may not, somebody else listens, or the kernel knows no logs.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open(number: u16) -> io::Result<Self> {
        let mut socket = NetlinkSocket::open(SockProtocol::NetlinkNetFilter, PACKETS)?;
        socket.ask(CONFIG, number, &[(COMMAND, &[BIND])])?;
        let mut mode = u32::from(u16::MAX).to_be_bytes().to_vec();
        mode.extend([COPY_PACKET, 0]);
        socket.ask(CONFIG, number, &[(MODE, &mode)])?;
        socket.ask(CONFIG, number, &[(BUFFER, &MESSAGE_LEAST.to_be_bytes())])?;
        socket.ask(CONFIG, number, &[(THRESHOLD, &AT_ONCE.to_be_bytes())])?;
        Ok(Self { socket })
    }

    /// Waits until there is a copy.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// The next packet's copy, from the IP header on, if there is one: that of every packet that
    /// went on before this call. Nobody says whether its checksum was looked at, or is complete.
    ///
    /// # Errors
    /// The log is gone.
    pub fn poll(&mut self) -> io::Result<Option<&[u8]>> {
        while let Some(length) = self.socket.receive()? {
            if let Some(range) = packet(self.socket.received(0..length)) {
                return Ok(Some(self.socket.received(range)));
            }
        }
        Ok(None)
    }
}

/// Where a message has its packet.
fn packet(message: &[u8]) -> Option<Range<usize>> {
    if kind_of(message)? != PACKET {
        return None;
    }
    let mut payload = attributes(message).filter(|(kind, _)| *kind == PAYLOAD);
    payload.next().map(|(_, range)| range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attribute, begin};

    #[test]
    fn a_copy_is_found_among_other_attributes() {
        let mut bytes = Vec::new();
        begin(&mut bytes, PACKET, 0, 7);
        attribute(&mut bytes, 1, &[8, 0, 2, 0]);
        assert_eq!(packet(&bytes), None);
        attribute(&mut bytes, PAYLOAD, b"packet");
        attribute(&mut bytes, 10, b"prefix");
        assert_eq!(&bytes[packet(&bytes).unwrap()], b"packet");
        for end in 0..bytes.len() {
            // Cut anywhere: nothing panics.
            let _ = packet(&bytes[..end]);
        }
        let mut other = Vec::new();
        begin(&mut other, CONFIG, 0, 7);
        attribute(&mut other, PAYLOAD, b"packet");
        assert_eq!(packet(&other), None);
    }
}
