//! Signals as a stream of values, with who sent each.
//!
//! What the terminal sends (Ctrl-C) reaches every process of its foreground group by itself; what a
//! process sends reaches us alone. `signalfd` tells the two apart, which a handler could not. What
//! is done about a signal is left to others; those not caught keep their default action.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{getpid, getsid};
use tokio::io::unix::AsyncFd;

use crate::reactor;

/// Signals taken out of the way of their default action, for as long as the process lives.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
    /// The same, watched for readiness.
    watched: AsyncFd<OwnedFd>,
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// The signal.
    pub signal: Signal,
    /// The kernel sent it, to the whole foreground group of the terminal.
    pub from_terminal: bool,
}

impl Signals {
    /// Catches `signals`, in this thread and those it starts from here on. Children inherit that
    /// they are blocked; [`child::prepare`](crate::child::prepare) unblocks them.
    ///
    /// # Errors
    /// Out of descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn catch(signals: &[Signal]) -> io::Result<Self> {
        let set: SigSet = signals.iter().copied().collect();
        set.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&set, flags)?;
        let watched = reactor::watch(descriptor.as_fd().try_clone_to_owned()?)?;
        Ok(Self {
            descriptor,
            watched,
        })
    }

    /// The next signal.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub async fn next(&self) -> io::Result<Arrived> {
        loop {
            let mut ready = self.watched.readable().await?;
            let Some(info) = self.descriptor.read_signal()? else {
                ready.clear_ready();
                continue;
            };
            let number = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
            let signal = Signal::try_from(number)?;
            // Codes above zero are the kernel's (sigaction(2)).
            let from_terminal = info.ssi_code > 0 && terminal_tells_all(signal);
            return Ok(Arrived {
                signal,
                from_terminal,
            });
        }
    }
}

/// Whether `signal`, if it is the kernel's, has gone to every process of the foreground group. That
/// a terminal is gone is told to the leader of its session alone.
fn terminal_tells_all(signal: Signal) -> bool {
    match signal {
        Signal::SIGINT | Signal::SIGQUIT | Signal::SIGWINCH => true,
        Signal::SIGHUP => getsid(None) != Ok(getpid()),
        // Timers and descriptors that whoever was here before execve(2) has left.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[tokio::test]
    async fn a_signal_from_a_process_is_told_as_such() {
        let signals = Signals::catch(&[Signal::SIGUSR1]).unwrap();
        raise(Signal::SIGUSR1).unwrap();
        let arrived = signals.next().await.unwrap();
        assert_eq!(
            arrived,
            Arrived {
                signal: Signal::SIGUSR1,
                from_terminal: false
            }
        );
    }
}
