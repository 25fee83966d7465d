//! How much a program on this machine may write ahead of what its connection carries.
//!
//! Owns the receive buffer of our end of such a connection. The kernel would let it grow to
//! megabytes, because here everything is near and fast; the links behind are neither, and what lies
//! in the buffer is called sent by whoever wrote it. Programs of other machines are left to the
//! kernel: their way to us needs a buffer of its own.

use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

/// Less would cost throughput wherever the links are faster than they look.
const LEAST: usize = 32 * 1024;
/// Enough for any link.
const MOST: usize = 4 << 20;

/// Of one connection.
#[derive(Debug)]
pub struct ReadAhead {
    /// As set last; `None` where it is the kernel's affair.
    given: Option<usize>,
}

impl ReadAhead {
    /// Of a connection with `tcp` as our end.
    #[must_use]
    pub fn of(tcp: &TcpStream) -> Self {
        let is_here = |peer: std::net::SocketAddr| peer.ip().to_canonical().is_loopback();
        Self {
            given: tcp.peer_addr().is_ok_and(is_here).then_some(0),
        }
    }

    /// Has the kernel take in no more than a quarter of `limit`, which the next hop holds at most.
    pub fn follow(&mut self, tcp: &impl AsFd, limit: usize) {
        let Some(given) = self.given else {
            return;
        };
        let wanted = (limit / 4).clamp(LEAST, MOST);
        // Each step costs a system call, and none is worth it that changes little.
        if wanted > given.saturating_mul(5) / 4 || wanted < given / 2 {
            self.given = Some(wanted);
            if let Err(error) = setsockopt(tcp, sockopt::RcvBuf, &wanted) {
                tracing::debug!(%error, "SO_RCVBUF stays as it is");
            }
        }
    }
}
