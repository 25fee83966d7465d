//! The one door to tokio's reactor: a descriptor that we own, watched for readiness.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the current tokio runtime watch `fd`, which must be non-blocking. Callers in this crate
/// never reach for `get_mut`, so the descriptor stays the one registered.
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and names one file description until dropped, and the `AsyncFd`
    // owns it until then.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// As [`watch`], for reading only: a socket on which every message sent makes room for the next
/// would wake its owner each time.
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub(crate) fn watch_reading(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as in `watch`.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// As [`watch`], for writing only.
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub(crate) fn watch_writing(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as in `watch`.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::WRITABLE) }?)
}
