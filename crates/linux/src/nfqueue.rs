//! Packets that a packet filter rule hands to us for a verdict (NFQUEUE).
//!
//! Owns the netlink socket of one queue. What is in a packet is not looked at here. Fails open: a
//! full queue lets packets pass, and so does a rule with `--queue-bypass` when nobody listens.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::reactor::watch;

/// `NFNL_SUBSYS_QUEUE`, shifted to where a message's type has it.
const SUBSYSTEM: u16 = 3 << 8;
const PACKET: u16 = SUBSYSTEM;
const VERDICT: u16 = SUBSYSTEM | 1;
const CONFIG: u16 = SUBSYSTEM | 2;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;

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
/// As many of them as have their bytes in the socket.
const SOCKET_BUFFER: usize = 16 << 20;
/// The largest packet, and its attributes.
const MESSAGE: usize = 65_536 + 4_096;
/// Headers of netlink and nfnetlink.
const HEADER: usize = 20;

/// One queue.
#[derive(Debug)]
pub struct PacketQueue {
    number: u16,
    socket: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
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
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let family = AddressFamily::Netlink;
        let kind = SockType::Raw;
        let fd = socket(family, kind, flags, SockProtocol::NetlinkNetFilter)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // The larger one is for root alone.
        if setsockopt(&fd, sockopt::RcvBufForce, &SOCKET_BUFFER).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &SOCKET_BUFFER)?;
        }
        let mut queue = Self {
            number,
            socket: watch(fd)?,
            buffer: vec![0; MESSAGE],
            verdict: Vec::with_capacity(MESSAGE),
        };
        queue.configure(COMMAND, &[BIND, 0, 0, 0])?;
        let mut parameters = u32::from(u16::MAX).to_be_bytes().to_vec();
        parameters.push(COPY_PACKET);
        queue.configure(PARAMETERS, &parameters)?;
        queue.configure(MAX_LENGTH, &QUEUE_LENGTH.to_be_bytes())?;
        let mut message = message(CONFIG, REQUEST | ACKNOWLEDGE, number);
        let wanted = (FAIL_OPEN | OFFLOAD).to_be_bytes();
        attribute(&mut message, FLAGS, &wanted);
        attribute(&mut message, MASK, &wanted);
        queue.ask(message)?;
        Ok(queue)
    }

    fn configure(&mut self, kind: u16, value: &[u8]) -> io::Result<()> {
        let mut message = message(CONFIG, REQUEST | ACKNOWLEDGE, self.number);
        attribute(&mut message, kind, value);
        self.ask(message)
    }

    /// Sends a request and takes the kernel's answer, which it gives before it returns.
    fn ask(&mut self, message: Vec<u8>) -> io::Result<()> {
        self.send(message)?;
        loop {
            let fd = self.socket.get_ref().as_raw_fd();
            let length = recv(fd, &mut self.buffer, MsgFlags::MSG_DONTWAIT)?;
            let answer = &self.buffer[..length];
            if u16_at(answer, 4) == Some(ERROR) {
                let code = u32_at(answer, 16).map_or(0, |code| code as i32);
                return if code == 0 {
                    Ok(())
                } else {
                    Err(io::Error::from_raw_os_error(-code))
                };
            }
        }
    }

    fn send(&self, mut message: Vec<u8>) -> io::Result<()> {
        send_message(self.socket.get_ref(), &mut message)
    }

    /// Waits until there is a packet.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        // Kept ready: `next` clears it when there is nothing left.
        self.socket.readable().await?.retain_ready();
        Ok(())
    }

    /// The next packet, if there is one; every one needs a [`verdict`](Self::verdict).
    ///
    /// # Errors
    /// The queue is gone.
    pub fn poll(&mut self) -> io::Result<Option<Queued<'_>>> {
        loop {
            let buffer = &mut self.buffer;
            let received = self.socket.try_io(Interest::READABLE, |fd| {
                Ok(recv(fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?)
            });
            let length = match received {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // Messages were lost; the packets have passed.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if let Some((id, at, end, is_checksum_known)) = packet(&self.buffer[..length]) {
                return Ok(Some(Queued {
                    id,
                    bytes: &self.buffer[at..end],
                    is_checksum_known,
                }));
            }
        }
    }

    /// Lets packet `id` go on, or not.
    ///
    /// # Errors
    /// The kernel takes no more; the packet stays queued.
    pub fn verdict(&mut self, id: u32, verdict: QueueVerdict<'_>) -> io::Result<()> {
        let mut out = std::mem::take(&mut self.verdict);
        out.clear();
        begin(&mut out, VERDICT, REQUEST, self.number);
        let word: u32 = if verdict == QueueVerdict::Drop { 0 } else { 1 };
        let mut header = [0; 8];
        header[..4].copy_from_slice(&word.to_be_bytes());
        header[4..].copy_from_slice(&id.to_be_bytes());
        attribute(&mut out, VERDICT_HEADER, &header);
        if let QueueVerdict::Replace(bytes) = verdict {
            attribute(&mut out, PAYLOAD, bytes);
        }
        let sent = send_message(self.socket.get_ref(), &mut out);
        self.verdict = out;
        sent
    }
}

fn send_message(fd: &OwnedFd, message: &mut [u8]) -> io::Result<()> {
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    loop {
        match send(fd.as_raw_fd(), message, MsgFlags::empty()) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn message(kind: u16, flags: u16, queue: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    begin(&mut out, kind, flags, queue);
    out
}

/// The two headers; the length is filled in when it is known.
fn begin(out: &mut Vec<u8>, kind: u16, flags: u16, queue: u16) {
    out.extend([0; 4]);
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend([0; 8]);
    // Any family, version 0.
    out.extend([0, 0]);
    out.extend(queue.to_be_bytes());
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(((value.len() + 4) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Where a message has its packet: name, from, to, and whether the checksum is known.
fn packet(message: &[u8]) -> Option<(u32, usize, usize, bool)> {
    if u16_at(message, 4)? != PACKET {
        return None;
    }
    let (mut id, mut payload, mut info) = (None, None, 0);
    let mut at = HEADER;
    while let (Some(length), Some(kind)) = (u16_at(message, at), u16_at(message, at + 2)) {
        let end = at + usize::from(length);
        if usize::from(length) < 4 || end > message.len() {
            break;
        }
        let value = &message[at + 4..end];
        match kind & 0x3fff {
            PACKET_HEADER => id = value.first_chunk().map(|id| u32::from_be_bytes(*id)),
            BUFFER_INFO => info = value.first_chunk().map_or(0, |i| u32::from_be_bytes(*i)),
            PAYLOAD => payload = Some((at + 4, end)),
            _ => {}
        }
        at = end.next_multiple_of(4);
    }
    // Without payload there is nothing to look at: it still needs a verdict.
    let (from, to) = payload.unwrap_or((0, 0));
    let is_known = info & CHECKSUM_NOT_READY != 0 || info & CHECKSUM_NOT_VERIFIED == 0;
    Some((id?, from, to, is_known))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let value = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes([value[0], value[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let value = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_found_among_other_attributes() {
        let mut bytes = message(PACKET, 0, 7);
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
