//! Bytes from one TCP connection to another that never leave the kernel (splice).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// What a pipe holds, and so what is moved at once.
const PIPE: usize = 1 << 20;

/// Joins two connections until both directions have ended, each of which ends by itself. `count`
/// is told of what was moved.
///
/// # Errors
/// What either connection says; what has not been moved by then is lost.
pub async fn join(one: &TcpStream, other: &TcpStream, count: impl Fn(usize)) -> io::Result<()> {
    for stream in [one, other] {
        stream.set_nodelay(true)?;
    }
    tokio::try_join!(move_all(one, other, &count), move_all(other, one, &count))?;
    Ok(())
}

async fn move_all(from: &TcpStream, to: &TcpStream, count: &impl Fn(usize)) -> io::Result<()> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    enlarge(&write);
    loop {
        from.readable().await?;
        let moved = from.try_io(Interest::READABLE, || splice(from, &write));
        let mut held = match moved {
            Ok(0) => return finish(to),
            Ok(moved) => moved,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        count(held);
        while held > 0 {
            to.writable().await?;
            match to.try_io(Interest::WRITABLE, || splice(&read, to)) {
                Ok(moved) => held -= moved,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Tells the far end that no more comes.
fn finish(to: &TcpStream) -> io::Result<()> {
    match socket2::SockRef::from(to).shutdown(std::net::Shutdown::Write) {
        // It is closed already.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}

/// Beyond what an unprivileged user may have, the pipe stays as it is.
fn enlarge(pipe: &OwnedFd) {
    // SAFETY: the descriptor is open, and the command takes an int.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE as libc::c_int) };
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
