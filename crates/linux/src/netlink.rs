//! Netlink written by hand: the socket and the messages that the packet filter's queues and logs
//! and the path manager of multipath TCP have in common.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::buffers::grow_receive;
use crate::reactor::watch_reading;

const ERROR: u16 = 2;
pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACKNOWLEDGE: u16 = 4;

/// Bytes of packets that wait for us.
pub(crate) const PACKETS: usize = 16 << 20;
/// The largest packet, and its attributes.
pub(crate) const MESSAGE: usize = 65_536 + 4_096;
/// Headers of netlink, and of nfnetlink or generic netlink.
pub(crate) const HEADER: usize = 20;

/// A socket for one queue, one log, or one use of the path manager.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    watched: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub(crate) fn open(protocol: SockProtocol, buffer: usize) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let family = AddressFamily::Netlink;
        let kind = SockType::Raw;
        let fd = socket(family, kind, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        grow_receive(&fd, buffer)?;
        Ok(Self {
            watched: watch_reading(fd)?,
            buffer: vec![0; MESSAGE],
        })
    }

    /// Has the kernel send what it tells this multicast group.
    pub(crate) fn join_group(&self, group: u32) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the option takes a number of four bytes.
        let done = unsafe {
            libc::setsockopt(
                self.watched.get_ref().as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_ADD_MEMBERSHIP,
                (&raw const group).cast(),
                size_of::<u32>() as libc::socklen_t,
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends a request with these attributes and takes the kernel's answer, which it gives before
    /// it returns.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        number: u16,
        attributes: &[(u16, &[u8])],
    ) -> io::Result<()> {
        let mut message = Vec::with_capacity(64);
        begin(&mut message, kind, REQUEST | ACKNOWLEDGE, number);
        for (kind, value) in attributes {
            attribute(&mut message, *kind, value);
        }
        self.exchange(&mut message, |_| ())
    }

    /// The same with a message that is there; `on_answer` sees what the kernel says beside whether
    /// it has done it.
    pub(crate) fn exchange(
        &mut self,
        message: &mut [u8],
        mut on_answer: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(message)?;
        loop {
            let fd = self.watched.get_ref().as_raw_fd();
            let length = recv(fd, &mut self.buffer, MsgFlags::MSG_DONTWAIT)?;
            let answer = &self.buffer[..length];
            if kind_of(answer) == Some(ERROR) {
                let code = u32_at(answer, 16).map_or(0, |code| code as i32);
                return if code == 0 {
                    Ok(())
                } else {
                    Err(io::Error::from_raw_os_error(-code))
                };
            }
            on_answer(answer);
        }
    }

    /// Sends a message; its length is filled in.
    pub(crate) fn send(&self, message: &mut [u8]) -> io::Result<()> {
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        loop {
            match send(
                self.watched.get_ref().as_raw_fd(),
                message,
                MsgFlags::empty(),
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until there is a message.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        // Kept ready: `receive` clears it when there is nothing left.
        self.watched.readable().await?.retain_ready();
        Ok(())
    }

    /// The next message's length, if there is one: what has arrived by now is found, whether the
    /// runtime has heard of it or not.
    pub(crate) fn receive(&mut self) -> io::Result<Option<usize>> {
        let buffer = &mut self.buffer;
        let fd = self.watched.get_ref().as_raw_fd();
        loop {
            let mut received = recv(fd, buffer, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from);
            if is_empty(&received) {
                // Once more, so that the runtime waits for the next.
                received = self.watched.try_io(Interest::READABLE, |_| {
                    Ok(recv(fd, buffer, MsgFlags::MSG_DONTWAIT)?)
                });
            }
            match received {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // Messages were lost; the packets have passed.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What was received last.
    pub(crate) fn received(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }
}

fn is_empty(received: &io::Result<usize>) -> bool {
    received
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// The two headers; the length is filled in when it is known.
pub(crate) fn begin(out: &mut Vec<u8>, kind: u16, flags: u16, number: u16) {
    out.extend([0; 4]);
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend([0; 8]);
    // Any family, version 0.
    out.extend([0, 0]);
    out.extend(number.to_be_bytes());
}

pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(((value.len() + 4) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// A message's type.
pub(crate) fn kind_of(message: &[u8]) -> Option<u16> {
    u16_at(message, 4)
}

/// A message's attributes: what kind, and where its value is.
pub(crate) fn attributes(message: &[u8]) -> impl Iterator<Item = (u16, Range<usize>)> {
    attributes_within(message, HEADER)
}

/// The same from `at` on: attributes within an attribute.
pub(crate) fn attributes_within(
    message: &[u8],
    mut at: usize,
) -> impl Iterator<Item = (u16, Range<usize>)> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(message, at)?);
        let kind = u16_at(message, at + 2)? & 0x3fff;
        let value = at + 4..at + length;
        if length < 4 || value.end > message.len() {
            return None;
        }
        at = value.end.next_multiple_of(4);
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let value = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes([value[0], value[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let value = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*value))
}
