//! A process by a descriptor of the kernel's, which no later one of the same number takes over.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// See the module.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    pid: i32,
}

impl Process {
    /// The process that has this number now.
    ///
    /// # Errors
    /// Those of `pidfd_open(2)`: there is none, for one.
    pub fn open(pid: i32) -> io::Result<Self> {
        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty())?;
        Ok(Self { pidfd, pid })
    }

    /// The name of the program that it runs, or did when that was deleted.
    ///
    /// # Errors
    /// It has ended, or we may not look.
    pub fn program(&self) -> io::Result<OsString> {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid))?;
        let name = path.file_name().unwrap_or_default();
        let kept = name.to_str().and_then(|it| it.strip_suffix(" (deleted)"));
        Ok(kept.map_or_else(|| name.to_owned(), OsString::from))
    }

    /// Asks it to end (SIGTERM). Whoever has its number since is not meant.
    ///
    /// # Errors
    /// It has ended, or we may not.
    pub fn terminate(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, Signal::TERM)?)
    }
}
