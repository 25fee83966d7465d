//! A TUN device: IP packets that the kernel routes to it come to us, and ours go to the kernel.
//!
//! Owns the device, which lives as long as this value: routes through it vanish with the process.
//! One packet per call. Without offloads where it carries what is neither TCP nor UDP, which is
//! little.

use std::ffi::c_short;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::reactor::watch;

pub(crate) const DEVICE: &str = "/dev/net/tun";

/// Why there is no TUN device.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The kernel has no TUN driver, or does not show it here.
    #[error("cannot open {DEVICE}: {0} (`modprobe tun`; in a container --device {DEVICE})")]
    Open(io::Error),
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
        let (fd, name) = make_device(template, Offloads::None)?;
        let io = watch(fd).map_err(TunError::Open)?;
        Ok(Self { io, name })
    }

    /// The device called `name`, of which this process was left a descriptor.
    ///
    /// # Errors
    /// It cannot be watched.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn inherit(fd: OwnedFd, name: &str) -> Result<Self, TunError> {
        let (io, name) = (watch(fd).map_err(TunError::Open)?, name.to_owned());
        Ok(Self { io, name })
    }

    /// The device itself, for another process.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.io.get_ref().as_fd()
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

/// What comes with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// Nothing.
    None,
    /// The kernel's note before each, both ways (`struct virtio_net_hdr`): TCP segments of the size
    /// of a buffer, and checksums that nobody has added up.
    Noted,
}

/// Makes a device and gives its name.
pub(crate) fn make_device(
    template: &str,
    offloads: Offloads,
) -> Result<(OwnedFd, String), TunError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(DEVICE, flags, Mode::empty())
        .map_err(|errno| TunError::Open(errno.into()))?;
    let failed = |source| TunError::Make {
        name: template.to_owned(),
        source,
    };
    let name = make(&fd, template, offloads).map_err(failed)?;
    if offloads == Offloads::Noted {
        let wanted = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        // SAFETY: the descriptor is open, and TUNSETOFFLOAD takes a number.
        let result = unsafe {
            let wanted = libc::c_ulong::from(wanted);
            libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, wanted)
        };
        if result < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
    }
    Ok((fd, name))
}

fn make(fd: &OwnedFd, template: &str, offloads: Offloads) -> io::Result<String> {
    // SAFETY: an all-zero `ifreq` is one: integers and an unused union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = template.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let notes = match offloads {
        Offloads::None => 0,
        Offloads::Noted => libc::IFF_VNET_HDR,
    };
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | notes) as c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which is live.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request.ifr_name.iter().take_while(|c| **c != 0);
    let name = name.map(|&c| c as u8).collect();
    String::from_utf8(name).map_err(io::Error::other)
}
