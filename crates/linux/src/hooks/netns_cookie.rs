//! The number by which eBPF programs know a network namespace.

use std::mem::size_of;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

/// `SO_NETNS_COOKIE`, Linux 5.14; missing from the `libc` crate.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie of the calling thread's network namespace; `None` before Linux 5.14.
pub(super) fn of_this_thread() -> Option<u64> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).ok()?;
    let mut cookie: u64 = 0;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the value and its length are live, of matching size, and outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(cookie)
}
