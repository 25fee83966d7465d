//! Socket buffers beyond what everybody may have.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};

/// Of connections on one machine. The kernel's offloading makes large ones of them anyway.
pub(crate) const SEGMENT: u32 = 8 * 1024;

/// Gives `socket` a receive buffer of `bytes`, which the kernel doubles for its own needs. Beyond
/// `net.core.rmem_max` that takes `CAP_NET_ADMIN`; without, it is as much as that allows.
///
/// # Errors
/// It is no socket.
pub fn grow_receive(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    if setsockopt(socket, sockopt::RcvBufForce, &bytes).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &bytes)?;
    }
    Ok(())
}

/// The same for sending, and `net.core.wmem_max`.
///
/// # Errors
/// It is no socket.
pub(crate) fn grow_send(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    if setsockopt(socket, sockopt::SndBufForce, &bytes).is_err() {
        setsockopt(socket, sockopt::SndBuf, &bytes)?;
    }
    Ok(())
}

/// Has whoever connects to `socket`, or is connected to by it, send segments that small buffers
/// have room for (`read_ahead`).
///
/// # Errors
/// As `setsockopt(2)`.
pub fn allow_small_buffers(socket: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::TcpMaxSeg, &SEGMENT)?)
}
