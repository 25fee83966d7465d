//! Packets that a packet filter rule hands to us for a verdict (NFQUEUE).
//!
//! Owns the netlink socket of one queue. What is in a packet is not looked at here. Fails open: a
//! full queue lets packets pass, and so does a rule with `--queue-bypass` when nobody listens.

use std::io;

use nix::sys::socket::SockProtocol;

use crate::netlink::{
    MESSAGE, NetlinkSocket, PACKETS, REQUEST, attribute, attributes, begin, kind_of,
};

/// `NFNL_SUBSYS_QUEUE`, shifted to where a message's type has it.
const SUBSYSTEM: u16 = 3 << 8;
const PACKET: u16 = SUBSYSTEM;
const VERDICT: u16 = SUBSYSTEM | 1;
const CONFIG: u16 = SUBSYSTEM | 2;

// Attributes of packets and verdicts.
const PACKET_HEADER: u16 = 1;
const VERDICT_HEADER: u16 = 2;
const PAYLOAD: u16 = 10;
const BUFFER_INFO: u16 = 14;
// Attributes of configuration.
const COMMAND: u16 = 1;
const PARAMETERS: u16 = 2;
const MAX_LENGTH: u16 = 3;
const MASK: u16 = 4;
const FLAGS: u16 = 5;

const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const FAIL_OPEN: u32 = 1;
const OFFLOAD: u32 = 4;
const CHECKSUM_NOT_READY: u32 = 1;
const CHECKSUM_NOT_VERIFIED: u32 = 4;

/// Packets the kernel keeps for us, at most; beyond, they pass.
const QUEUE_LENGTH: u32 = 4_096;

/// One queue.
#[derive(Debug)]
pub struct PacketQueue {
    number: u16,
    socket: NetlinkSocket,
    verdict: Vec<u8>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueVerdict<'a> {
    /// Goes on.
    Accept,
    /// Goes no further.
    Drop,
    /// Goes on with these bytes.
    Replace(&'a [u8]),
}

/// A packet that waits for its verdict.
#[derive(Clone, Copy, Debug)]
pub struct Queued<'a> {
    /// Its name towards the kernel.
    pub id: u32,
    /// From the IP header on.
    pub bytes: &'a [u8],
    /// Its checksum is right, or not filled in yet.
    pub is_checksum_known: bool,
}

impl PacketQueue {
    /// Listens to queue `number` of this network namespace. Packets that hardware would cut into
    /// pieces come whole; those must not be replaced.
    ///
    /// # Errors
    /// We may not, somebody else listens, or the kernel knows no queues.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open(number: u16) -> io::Result<Self> {
        let mut socket = NetlinkSocket::open(SockProtocol::NetlinkNetFilter, PACKETS)?;
        socket.ask(CONFIG, number, &[(COMMAND, &[BIND, 0, 0, 0])])?;
        let mut parameters = u32::from(u16::MAX).to_be_bytes().to_vec();
        parameters.push(COPY_PACKET);
        socket.ask(CONFIG, number, &[(PARAMETERS, &parameters)])?;
        let length = QUEUE_LENGTH.to_be_bytes();
        socket.ask(CONFIG, number, &[(MAX_LENGTH, &length)])?;
        let wanted = (FAIL_OPEN | OFFLOAD).to_be_bytes();
        socket.ask(CONFIG, number, &[(FLAGS, &wanted), (MASK, &wanted)])?;
        Ok(Self {
            number,
            socket,
            verdict: Vec::with_capacity(MESSAGE),
        })
    }

    /// Waits until there is a packet.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// The next packet, if there is one; every one needs a [`verdict`](Self::verdict).
    ///
    /// # Errors
    /// The queue is gone.
    pub fn poll(&mut self) -> io::Result<Option<Queued<'_>>> {
        while let Some(length) = self.socket.receive()? {
            let found = packet(self.socket.received(0..length));
            if let Some((id, at, end, is_checksum_known)) = found {
                return Ok(Some(Queued {
                    id,
                    bytes: self.socket.received(at..end),
                    is_checksum_known,
                }));
            }
        }
        Ok(None)
    }

    /// Lets packet `id` go on, or not.
    ///
    /// # Errors
    /// The kernel takes no more; the packet stays queued.
    pub fn verdict(&mut self, id: u32, verdict: QueueVerdict<'_>) -> io::Result<()> {
        let out = &mut self.verdict;
        out.clear();
        begin(out, VERDICT, REQUEST, self.number);
        let word: u32 = if verdict == QueueVerdict::Drop { 0 } else { 1 };
        let mut header = [0; 8];
        header[..4].copy_from_slice(&word.to_be_bytes());
        header[4..].copy_from_slice(&id.to_be_bytes());
        attribute(out, VERDICT_HEADER, &header);
        if let QueueVerdict::Replace(bytes) = verdict {
            attribute(out, PAYLOAD, bytes);
        }
        self.socket.send(out)
    }
}

/// Where a message has its packet: name, from, to, and whether the checksum is known.
fn packet(message: &[u8]) -> Option<(u32, usize, usize, bool)> {
    if kind_of(message)? != PACKET {
        return None;
    }
    // Without payload there is nothing to look at: it still needs a verdict.
    let (mut id, mut payload, mut info) = (None, 0..0, 0);
    for (kind, range) in attributes(message) {
        let word = || message[range.clone()].first_chunk().copied();
        match kind {
            PACKET_HEADER => id = word().map(u32::from_be_bytes),
            BUFFER_INFO => info = word().map_or(0, u32::from_be_bytes),
            PAYLOAD => payload = range,
            _ => {}
        }
    }
    let is_known = info & CHECKSUM_NOT_READY != 0 || info & CHECKSUM_NOT_VERIFIED == 0;
    Some((id?, payload.start, payload.end, is_known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_found_among_other_attributes() {
        let mut bytes = Vec::new();
        begin(&mut bytes, PACKET, 0, 7);
        attribute(&mut bytes, PACKET_HEADER, &[0, 0, 1, 2, 8, 0, 2]);
        attribute(&mut bytes, 5, &[0, 0, 0, 9]);
        attribute(&mut bytes, PAYLOAD, b"packet");
        let (id, from, to, known) = packet(&bytes).unwrap();
        assert_eq!((id, &bytes[from..to], known), (258, &b"packet"[..], true));
        attribute(
            &mut bytes,
            BUFFER_INFO,
            &CHECKSUM_NOT_VERIFIED.to_be_bytes(),
        );
        assert!(!packet(&bytes).unwrap().3);
        for end in 0..bytes.len() {
            // Cut anywhere: nothing panics.
            let _ = packet(&bytes[..end]);
        }
    }
}
