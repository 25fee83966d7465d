//! Who is at the other end of a Unix socket.

use std::io;

use nix::unistd::geteuid;
use tokio::net::UnixStream;

/// Whether this user may be answered, and a directory of its be used: it is ours, or may do
/// anything anyway.
pub(crate) fn is_same_or_root(uid: u32) -> bool {
    uid == geteuid().as_raw() || uid == 0
}

/// Whether an instance at the other end may be believed. Root looks at everybody's, by name.
pub(crate) fn is_believed(stream: &UnixStream) -> io::Result<bool> {
    Ok(geteuid().is_root() || is_same_or_root(stream.peer_cred()?.uid()))
}
