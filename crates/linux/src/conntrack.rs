//! The kernel's memory of flows (conntrack): having some of it forgotten.
//!
//! Owns the message. Which flows bear which mark is for whoever set it to know.

use std::io;

use nix::sys::socket::SockProtocol;

use crate::netlink::NetlinkSocket;

/// `IPCTNL_MSG_CT_DELETE` of `NFNL_SUBSYS_CTNETLINK`.
const DELETE: u16 = (1 << 8) | 2;
// Attributes of flows.
const MARK: u16 = 8;
const MARK_MASK: u16 = 21;
/// Answers are a word or two.
const ROOM: usize = 4_096;

/// Forgets the flows of this network namespace that bear this mark; a packet of theirs begins
/// another.
///
/// # Errors
/// We may not, or the kernel remembers no flows.
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub fn forget(mark: u32) -> io::Result<()> {
    let mut socket = NetlinkSocket::open(SockProtocol::NetlinkNetFilter, ROOM)?;
    let (mark, all) = (mark.to_be_bytes(), u32::MAX.to_be_bytes());
    socket.ask(DELETE, 0, &[(MARK, &mark), (MARK_MASK, &all)])
}
