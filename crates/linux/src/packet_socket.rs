//! Ethernet frames of one interface, in batches, past the kernel's network stack.
//!
//! Owns the `AF_PACKET` socket and the pool its frames come from. Meant for the emulator of the
//! lab: what the interface receives is read here, what is written here leaves through it, and
//! what leaves is not read again. Where frames go is left to others.

mod frame;
mod offload;

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

pub use frame::{FRAME_MAX, Frame, FramePool};
pub use offload::{OffloadError, disable_offloads};

/// Frames per system call: at 1 Gbit/s and one wake-up per 50 µs, 4 arrive; 64 leave room for
/// bursts, and a batch's headers stay within the first-level cache.
const BATCH: usize = 64;

/// Kernel memory for frames not read yet, in bytes. The kernel accounts a full frame with 2.3 KB:
/// this holds 14,000, or 0.17 s at 1 Gbit/s, in which the emulator may be kept from running.
const SOCKET_BUFFER: libc::c_int = 32 * 1024 * 1024;

/// A raw socket bound to one interface.
#[derive(Debug)]
pub struct PacketSocket {
    interface: String,
    fd: OwnedFd,
    pool: FramePool,
    /// Frames to be filled by the next read.
    spare: Vec<Frame>,
}

/// A packet socket could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} on interface `{interface}`: {source}")]
pub struct PacketSocketError {
    /// What was tried.
    pub operation: &'static str,
    /// The interface it was tried on.
    pub interface: String,
    /// What the kernel said.
    pub source: io::Error,
}

impl PacketSocket {
    /// A socket on `interface` of the calling thread's network namespace, not blocking.
    ///
    /// # Errors
    /// No such interface, or no `CAP_NET_RAW`.
    pub fn bind(interface: &str, pool: FramePool) -> Result<Self, PacketSocketError> {
        let fail = |operation| {
            move |source| PacketSocketError {
                operation,
                interface: interface.to_owned(),
                source,
            }
        };
        let index = index_of(interface).map_err(fail("find an index"))?;
        // Protocol 0 reads nothing until the socket is bound: no frame of another interface.
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed.
        let raw = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })
            .map_err(fail("open a packet socket"))?;
        // SAFETY: `raw` is a descriptor just opened that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let options = [
            (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1),
            (libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BUFFER),
            (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SOCKET_BUFFER),
        ];
        for (level, option, value) in options {
            set_option(&fd, level, option, value).map_err(fail("set a socket option"))?;
        }
        bind_to(&fd, index).map_err(fail("bind a packet socket"))?;
        Ok(Self {
            interface: interface.to_owned(),
            fd,
            pool,
            spare: Vec::with_capacity(BATCH),
        })
    }

    /// The interface it is bound to.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Appends up to 64 frames that have arrived to `frames`; returns whether there may be more.
    /// Frames longer than [`FRAME_MAX`] are skipped: with offloads disabled there are none.
    ///
    /// # Errors
    /// Whatever the kernel says, except that there is nothing to read.
    pub fn recv_batch(&mut self, frames: &mut Vec<Frame>) -> io::Result<bool> {
        while self.spare.len() < BATCH {
            self.spare.push(self.pool.take());
        }
        let mut vectors = [const { EMPTY_VECTOR }; BATCH];
        let mut headers = [const { EMPTY_HEADER }; BATCH];
        for ((frame, vector), header) in self.spare.iter_mut().zip(&mut vectors).zip(&mut headers) {
            let room = frame.room_mut();
            vector.iov_base = room.as_mut_ptr().cast();
            vector.iov_len = room.len();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each header points to one vector, each vector to the whole room of one frame in
        // `self.spare`; both arrays and the frames outlive the call and are not touched meanwhile.
        let count = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = match check(count) {
            Ok(count) => count as usize,
            Err(error) if is_momentary(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        for (mut frame, header) in self.spare.drain(..count).zip(&headers) {
            let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            if !truncated {
                frame.set_len(header.msg_len as usize);
                frames.push(frame);
            }
        }
        Ok(count == BATCH)
    }

    /// Sends frames from the front of `frames`, which keeps those that the kernel has no room for
    /// at present. Returns how many the kernel refused; those are gone.
    ///
    /// # Errors
    /// Whatever else the kernel says, such as that the interface is down; `frames` is then as if
    /// the call had not begun with the frame concerned.
    pub fn send_batch(&mut self, frames: &mut VecDeque<Frame>) -> io::Result<usize> {
        let mut refused = 0;
        while !frames.is_empty() {
            match self.send_some(frames) {
                Ok(sent) => drop(frames.drain(..sent)),
                Err(error) if is_momentary(&error) => return Ok(refused),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    frames.pop_front();
                    refused += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    /// Frames that arrived but were lost for want of [`SOCKET_BUFFER`], since the last call.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn take_drops(&self) -> io::Result<u32> {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = mem::size_of_val(&stats) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, the size of `stats`, into it.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut length,
            )
        };
        check(done)?;
        Ok(stats.tp_drops)
    }

    fn send_some(&self, frames: &mut VecDeque<Frame>) -> io::Result<usize> {
        let mut vectors = [const { EMPTY_VECTOR }; BATCH];
        let mut headers = [const { EMPTY_HEADER }; BATCH];
        let count = frames.len().min(BATCH);
        for ((frame, vector), header) in frames.iter_mut().zip(&mut vectors).zip(&mut headers) {
            let bytes = frame.bytes();
            vector.iov_base = bytes.as_ptr().cast_mut().cast();
            vector.iov_len = bytes.len();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` headers point to one vector each, each vector to the bytes of
        // one frame, which the kernel only reads; all of them outlive the call.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        Ok(check(sent)? as usize)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const EMPTY_VECTOR: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

// SAFETY: all-zero bytes are a valid message header: null pointers with zero lengths.
const EMPTY_HEADER: libc::mmsghdr = unsafe { mem::zeroed() };

fn is_momentary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn index_of(interface: &str) -> io::Result<libc::c_int> {
    let name = CString::new(interface)?;
    // SAFETY: `name` is a string that ends in zero and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => libc::c_int::try_from(index).map_err(io::Error::other),
    }
}

fn bind_to(fd: &OwnedFd, index: libc::c_int) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid link-layer address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    let length = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, which outlives the call.
    let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    check(done).map(drop)
}

fn set_option(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    check(done).map(drop)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
