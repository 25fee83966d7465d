//! A TUN device: IP packets that the kernel routes to it come to us, and ours go to the kernel.
//!
//! Owns the device, which lives as long as this value: routes through it vanish with the process.
//! One packet per call, without offloads: it carries what is neither TCP nor UDP, which is little.

use std::ffi::c_short;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::reactor::watch;

const DEVICE: &str = "/dev/net/tun";

/// Why there is no TUN device.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The kernel has no TUN driver, or does not show it here.
    #[error("cannot open {DEVICE}: {0} (is the tun module loaded?)")]
    Open(#[source] io::Error),
    /// The kernel made no device.
    #[error("cannot make the TUN device {name}: {source}")]
    Make {
        /// The name asked for.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A TUN device.
#[derive(Debug)]
pub struct Tun {
    io: AsyncFd<OwnedFd>,
    name: String,
}

impl Tun {
    /// Makes a device called `template`, in which `%d` stands for the first number that is free.
    /// It is down, without addresses.
    ///
    /// # Errors
    /// See [`TunError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open(template: &str) -> Result<Self, TunError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(DEVICE, flags, Mode::empty())
            .map_err(|errno| TunError::Open(errno.into()))?;
        let name = make(&fd, template).map_err(|source| TunError::Make {
            name: template.to_owned(),
            source,
        })?;
        let io = watch(fd).map_err(TunError::Open)?;
        Ok(Self { io, name })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next packet that the kernel routes here, and returns its length. What is
    /// longer than `buffer` is cut.
    ///
    /// # Errors
    /// The device is down or gone.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io
            .async_io(Interest::READABLE, |fd| {
                Ok(rustix::io::read(fd, &mut *buffer)?)
            })
            .await
    }

    /// Hands a packet to the kernel as if it had come in by the device.
    ///
    /// # Errors
    /// `WouldBlock` where it takes no more; `InvalidInput` for what is no IP packet.
    pub fn try_send(&self, packet: &[u8]) -> io::Result<()> {
        self.io.try_io(Interest::WRITABLE, |fd| {
            Ok(rustix::io::write(fd, packet).map(drop)?)
        })
    }
}

fn make(fd: &OwnedFd, template: &str) -> io::Result<String> {
    // SAFETY: an all-zero `ifreq` is one: integers and an unused union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = template.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which is live.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request.ifr_name.iter().take_while(|c| **c != 0);
    let name = name.map(|c| c.cast_unsigned()).collect();
    String::from_utf8(name).map_err(io::Error::other)
}
