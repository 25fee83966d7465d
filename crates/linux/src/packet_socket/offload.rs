//! Turns an interface's offloads off, so that what crosses it are the packets of a real wire: no
//! longer than the MTU, with their checksums filled in.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `ETHTOOL_SRXCSUM`, `ETHTOOL_STXCSUM`, `ETHTOOL_STSO`, `ETHTOOL_SGRO` of `linux/ethtool.h`.
/// Software segmentation (GSO) may stay: it cuts packets before they reach the interface. Without
/// transmit checksums, segmentation of UDP by the interface is off as well.
const OFF: [u32; 4] = [0x15, 0x17, 0x1f, 0x2c];

/// An offload could not be turned off.
#[derive(Debug, thiserror::Error)]
#[error("cannot turn offloads of interface `{interface}` off: {source}")]
pub struct OffloadError {
    /// The interface.
    pub interface: String,
    /// What the kernel said.
    pub source: io::Error,
}

/// `struct ethtool_value` of `linux/ethtool.h`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Turns receive and transmit checksums, TSO, UDP segmentation and GRO of `interface` off, in the
/// calling thread's network namespace.
///
/// # Errors
/// No such interface, or no `CAP_NET_ADMIN`.
pub fn disable_offloads(interface: &str) -> Result<(), OffloadError> {
    let fail = |source| OffloadError {
        interface: interface.to_owned(),
        source,
    };
    // SAFETY: no pointers are passed.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    // SAFETY: `raw` is a descriptor just opened that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    OFF.into_iter()
        .try_for_each(|command| clear(&socket, interface, command))
        .map_err(fail)
}

fn clear(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid interface request.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero and ends the name.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    let mut value = EthtoolValue { command, data: 0 };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: `request` and the `value` it points to have the layout that SIOCETHTOOL expects for
    // this command, and outlive the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
