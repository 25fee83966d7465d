//! Multipath TCP as Linux has it (RFC 8684): connections whose subflows we alone begin and end.
//!
//! Owns the sockets of such connections, what is known of their subflows, and the requests for
//! others (`path_manager`). The kernel's own path manager would give every connection of the
//! machine a subflow for every endpoint that anybody has configured, ours one over links that the
//! policy forbids among them. Which manager a connection has is settled when its socket is made,
//! by a switch of the whole network namespace: it is turned for the moment of that one call, and
//! back.

mod path_manager;

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

pub use path_manager::{Events, PathManager};

const ENABLED: &str = "/proc/sys/net/mptcp/enabled";
/// Whose the subflows of sockets made from now on are: the kernel's, or a program's.
const SWITCH: &str = "/proc/sys/net/mptcp/pm_type";
const KERNEL: u8 = b'0';
const PROGRAM: u8 = b'1';

// Of `linux/mptcp.h`.
const SOL_MPTCP: libc::c_int = 284;
const INFO: libc::c_int = 1;
const TCP_INFOS: libc::c_int = 2;
const ADDRESSES: libc::c_int = 3;
const TOKEN_AT: usize = 12;
const INFO_LENGTH: usize = 16;
/// More subflows than Linux makes of one connection.
const MAX_SUBFLOWS: usize = 16;
/// Before the subflows: how long it is, how many there are, how long each is, as the kernel and as
/// we have it.
const HEADER: usize = 16;
const SOCKADDR: usize = 128;

// Of `linux/tcp.h`, see `tcp_info`.
const RECEIVED_AT: usize = 128;
const SENT_AT: usize = 200;
const TCP_INFO_LENGTH: usize = 208;
const ESTABLISHED: u8 = 1;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;

/// Why connections go over one link here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Built without, or before Linux 5.6.
    #[error("the kernel has no multipath TCP")]
    Absent,
    /// Programs manage subflows from Linux 5.19 on.
    #[error("the kernel lets no program manage subflows (Linux 5.19 does)")]
    Old,
    /// By the administrator.
    #[error("multipath TCP is switched off (net.mptcp.enabled=0)")]
    Off,
    /// `mptcpd`, say: it would add subflows of its own to ours.
    #[error("another program manages subflows here (net.mptcp.pm_type=1)")]
    Managed,
    /// That needs `CAP_NET_ADMIN`.
    #[error("subflows are root's to make")]
    NotAllowed,
}

/// One of a connection's TCP connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subflow {
    /// Our end.
    pub local: SocketAddr,
    /// Theirs.
    pub remote: SocketAddr,
    /// Both ends know of it, and neither has ended it.
    pub is_established: bool,
    /// It is over.
    pub is_closed: bool,
    /// Payload of TCP in both directions, what was repeated included.
    pub bytes: u64,
}

/// Whether connections can have subflows of ours in this network namespace.
///
/// # Errors
/// What is missing.
pub fn available() -> Result<(), Unusable> {
    let read = |path: &str| std::fs::read(path).ok();
    match (read(ENABLED), read(SWITCH)) {
        (None, _) => Err(Unusable::Absent),
        (Some(enabled), _) if enabled.starts_with(b"0") => Err(Unusable::Off),
        (Some(_), None) => Err(Unusable::Old),
        (Some(_), Some(manager)) if !manager.starts_with(&[KERNEL]) => Err(Unusable::Managed),
        (Some(_), Some(_)) => Ok(()),
    }
}

/// A socket for a connection whose subflows are ours to make. Does not wait, not even for another
/// process that turns the switch.
///
/// # Errors
/// [`available`] says why, we may not, or somebody else turns the switch just now.
pub fn socket(is_v6: bool) -> io::Result<TcpStream> {
    let domain = if is_v6 { Domain::IPV6 } else { Domain::IPV4 };
    let switch = hold_switch(Path::new(SWITCH))?;
    if position(&switch)? != KERNEL {
        return Err(io::Error::other(Unusable::Managed));
    }
    turn(&switch, PROGRAM)?;
    let made = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::MPTCP));
    // Who turned it in between knows no lock of ours: the socket may be the kernel's.
    let was_ours = position(&switch)? == PROGRAM;
    turn(&switch, KERNEL)?;
    match was_ours {
        true => Ok(made?.into()),
        false => Err(io::Error::other(Unusable::Managed)),
    }
}

/// Turns the switch back, which a process of ours was killed over.
///
/// # Errors
/// There is none, or we may not.
pub fn turn_back() -> io::Result<()> {
    let switch = hold_switch(Path::new(SWITCH))?;
    match position(&switch)? {
        PROGRAM => turn(&switch, KERNEL),
        _ => Ok(()),
    }
}

/// One of ours at a time: who finds it turned knows that it was not one of us.
fn hold_switch(path: &Path) -> io::Result<File> {
    let switch = OpenOptions::new().read(true).write(true).open(path)?;
    switch.try_lock()?;
    Ok(switch)
}

fn position(switch: &File) -> io::Result<u8> {
    let mut position = [0];
    switch.read_exact_at(&mut position, 0)?;
    Ok(position[0])
}

fn turn(switch: &File, position: u8) -> io::Result<()> {
    switch.write_all_at(&[position, b'\n'], 0)
}

/// The kernel's number of a connection, for as long as it lasts. `None` where the far end, or
/// something on the way, does not speak multipath TCP: it is plain TCP then.
pub fn token(tcp: &impl AsFd) -> Option<u32> {
    let mut info = [0; INFO_LENGTH];
    let length = read(tcp, INFO, &mut info).ok()?;
    let token = info[..length].get(TOKEN_AT..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*token))
}

/// The subflows of a connection; what it began with stays among them when it is over.
///
/// # Errors
/// It is plain TCP, or over.
pub fn subflows(tcp: &impl AsFd) -> io::Result<Vec<Subflow>> {
    let infos = list::<TCP_INFO_LENGTH>(tcp, TCP_INFOS)?;
    let addresses = list::<{ 2 * SOCKADDR }>(tcp, ADDRESSES)?;
    // Where one has come or gone in between, nobody knows whose is what.
    if infos.len() != addresses.len() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let subflow = |(info, ends): (&[u8; TCP_INFO_LENGTH], &[u8; 2 * SOCKADDR])| {
        let number = |at: usize| u64::from_ne_bytes(*info[at..].first_chunk().expect("it is long"));
        Some(Subflow {
            local: address(&ends[..SOCKADDR])?,
            remote: address(&ends[SOCKADDR..])?,
            is_established: info[0] == ESTABLISHED,
            is_closed: matches!(info[0], TIME_WAIT | CLOSE),
            bytes: number(RECEIVED_AT) + number(SENT_AT),
        })
    };
    let all = infos.iter().zip(&addresses);
    Ok(all.filter_map(subflow).collect())
}

/// Whether a connection without a subflow has come to its end all the same: it said so, or
/// there are bytes that nobody has read.
#[must_use]
pub fn has_ended(tcp: &impl AsFd) -> bool {
    let wanted = PollFlags::IN | PollFlags::RDHUP;
    let at_once = Timespec::default();
    let mut watched = [PollFd::new(tcp, wanted)];
    let polled = poll(&mut watched, Some(&at_once));
    polled.is_ok_and(|ready| ready > 0)
}

/// What the kernel tells of each subflow.
fn list<const N: usize>(tcp: &impl AsFd, option: libc::c_int) -> io::Result<Vec<[u8; N]>> {
    let mut answer = vec![0; HEADER + MAX_SUBFLOWS * N];
    answer[..4].copy_from_slice(&(HEADER as u32).to_ne_bytes());
    answer[12..HEADER].copy_from_slice(&(N as u32).to_ne_bytes());
    let length = read(tcp, option, &mut answer)?;
    let count = u32::from_ne_bytes(*answer[4..].first_chunk().expect("the header is there"));
    let (each, _) = answer[HEADER..length.max(HEADER)].as_chunks::<N>();
    Ok(each.iter().take(count as usize).copied().collect())
}

/// Asks the kernel for an option; gives how much of `value` it has filled.
fn read(tcp: &impl AsFd, option: libc::c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes of `value`.
    let done = unsafe {
        libc::getsockopt(
            tcp.as_fd().as_raw_fd(),
            SOL_MPTCP,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match done {
        0 => Ok((length as usize).min(value.len())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A `sockaddr` of the kernel's.
fn address(sockaddr: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*sockaddr.first_chunk()?);
    let port = u16::from_be_bytes(*sockaddr.get(2..)?.first_chunk()?);
    let ip = match i32::from(family) {
        libc::AF_INET => IpAddr::from(*sockaddr.get(4..)?.first_chunk::<4>()?),
        libc::AF_INET6 => IpAddr::from(*sockaddr.get(8..)?.first_chunk::<16>()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

#[cfg(test)]
mod tests;
