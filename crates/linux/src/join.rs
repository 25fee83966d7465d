//! Bytes from one TCP connection to another, in both directions.
//!
//! Owns the order of endings: each direction ends by itself, both connections end in order after
//! both directions have, and when one breaks, the other is reset as well. What holds the bytes
//! between is the caller's choice: a pipe, so that they never leave the kernel (splice), or memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::pin;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::abortive::AbortiveStream;

/// What a pipe holds, and so what is moved at once.
const PIPE: usize = 1 << 20;
/// What memory holds, at most; there are two for every connection.
const BUFFER: usize = 16 * 1024;

/// Holds the bytes of one direction on their way. Calls do not wait.
pub trait Hold {
    /// Takes what `from` has, when nothing is held; 0 at its end.
    ///
    /// # Errors
    /// What reading says, `WouldBlock` among it.
    fn fill(&mut self, from: &TcpStream) -> io::Result<usize>;

    /// Gives `to` some of what is held; no more than that.
    ///
    /// # Errors
    /// What writing says, `WouldBlock` among it.
    fn drain(&mut self, to: &TcpStream) -> io::Result<()>;

    /// Nothing is held.
    fn is_empty(&self) -> bool;
}

/// Holds bytes in the kernel. Two descriptors.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
}

/// Holds bytes in memory.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    given: usize,
}

/// Joins two connections until both directions have ended: `forth` holds what goes from `one` to
/// `other`, `back` the rest. `count` is told of what came in.
///
/// # Errors
/// What either connection says; both are reset then, and what has not been moved is lost.
pub async fn join(
    one: AbortiveStream,
    other: AbortiveStream,
    (mut forth, mut back): (impl Hold, impl Hold),
    count: impl Fn(usize),
) -> io::Result<()> {
    for stream in [&one, &other] {
        stream.set_nodelay(true)?;
    }
    {
        let mut forth = pin!(move_all(&one, &other, &mut forth, &count));
        let mut back = pin!(move_all(&other, &one, &mut back, &count));
        // Who has said all may still break, which nothing else would show.
        tokio::select! {
            ended = &mut forth => {
                ended?;
                unless_broken(back, &one).await?;
            }
            ended = &mut back => {
                ended?;
                unless_broken(forth, &other).await?;
            }
        }
    }
    one.finish();
    other.finish();
    Ok(())
}

async fn unless_broken(
    moving: impl Future<Output = io::Result<()>>,
    silent: &AbortiveStream,
) -> io::Result<()> {
    tokio::select! {
        biased;
        ended = moving => ended,
        () = silent.broken() => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

async fn move_all(
    from: &AbortiveStream,
    to: &AbortiveStream,
    hold: &mut impl Hold,
    count: &impl Fn(usize),
) -> io::Result<()> {
    loop {
        while !hold.is_empty() {
            to.writable().await?;
            unless_blocked(hold.drain(to))?;
        }
        from.readable().await?;
        match unless_blocked(hold.fill(from))? {
            Some(0) => return to.end_writing(),
            Some(moved) => count(moved),
            None => {}
        }
    }
}

fn unless_blocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}

impl Pipe {
    /// Makes a pipe.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn open() -> io::Result<Self> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // SAFETY: the descriptor is open, and the command takes an int. Beyond what an unprivileged
        // user may have, the pipe stays as it is.
        unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE as libc::c_int) };
        let held = 0;
        Ok(Self { read, write, held })
    }
}

impl Hold for Pipe {
    fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        self.held += from.try_io(Interest::READABLE, || splice(from, &self.write))?;
        Ok(self.held)
    }

    fn drain(&mut self, to: &TcpStream) -> io::Result<()> {
        self.held -= to.try_io(Interest::WRITABLE, || splice(&self.read, to))?;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.held == 0
    }
}

impl Buffer {
    /// One that holds `bytes` already.
    #[must_use]
    pub fn holding(bytes: Vec<u8>) -> Self {
        Self { bytes, given: 0 }
    }
}

impl Hold for Buffer {
    fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        self.given = 0;
        self.bytes.resize(BUFFER, 0);
        let read = from.try_read(&mut self.bytes);
        self.bytes.truncate(*read.as_ref().unwrap_or(&0));
        read
    }

    fn drain(&mut self, to: &TcpStream) -> io::Result<()> {
        self.given += to.try_write(&self.bytes[self.given..])?;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.given == self.bytes.len()
    }
}

fn splice(from: &impl AsFd, to: &impl AsFd) -> io::Result<usize> {
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are open; no offsets are given, so nothing is read through pointers.
    let moved = unsafe {
        libc::splice(
            from.as_fd().as_raw_fd(),
            none,
            to.as_fd().as_raw_fd(),
            none,
            PIPE,
            libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK,
        )
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}
