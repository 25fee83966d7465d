//! The terminal that a program was started on.

use std::io::{self, stdin};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Whether the terminal on standard input has hung up: its window was closed, or the connection it
/// came by. Waits for that, or for input, as long as `patience`, a day at most.
///
/// # Errors
/// Standard input cannot be watched.
pub fn has_hung_up(patience: Duration) -> io::Result<bool> {
    const DAY: Duration = Duration::from_secs(86_400);
    let patience = patience.min(DAY);
    let patience = Timespec {
        tv_sec: patience.as_secs() as i64,
        tv_nsec: patience.subsec_nanos().into(),
    };
    let stdin = stdin();
    let mut watched = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut watched, Some(&patience)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(watched[0].revents().contains(PollFlags::HUP))
}
