//! How many descriptors this process may have open, and which it leaves to one that it starts.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one and returns what it is then, `None` for no limit. The soft
/// limit is 1,024 almost everywhere, for the sake of programs that call `select(2)`.
///
/// # Errors
/// As `setrlimit(2)`; the limit is as it was.
pub fn raise_limit() -> io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        )?;
    }
    Ok(limit.maximum)
}

/// What helps, to be put behind what `error` says, where it says that this process may have no more
/// open.
#[must_use]
pub fn advice(error: &io::Error) -> Option<&'static str> {
    const RAISE: &str = "; raise the limit of open files (`ulimit -n`, a service's LimitNOFILE=)";
    (error.raw_os_error() == Some(libc::EMFILE)).then_some(RAISE)
}

/// A copy of a descriptor that processes have which are started while it is open. Whoever starts
/// another one meanwhile leaves it that, too.
///
/// # Errors
/// Out of descriptors.
pub fn heritable(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::io::dup(descriptor)?)
}

/// The descriptor of this number that the process which started this one has left. Takes it out of
/// what is left to others. For each number once.
///
/// # Errors
/// There is none.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only the number is looked at; the kernel says whether it names anything.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and by the contract above nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_limit().unwrap();
        let now = getrlimit(Resource::Nofile);
        assert_eq!((now.current, now.maximum), (raised, raised));
    }
}
