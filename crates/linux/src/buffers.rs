//! Socket buffers beyond what everybody may have.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};

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
