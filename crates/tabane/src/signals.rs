//! Signals meant for the command that stand at our door: which are caught, and which are passed on.
//!
//! What the terminal sends (Ctrl-C) reaches the command by itself, because both are in the
//! terminal's foreground group; what a process sends to us is passed on. Ctrl-Z is left to the
//! kernel: both stop, both continue.

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
pub(crate) use tabane_linux::signals::{Arrived, Signals};

/// What ends or steers a command by convention.
const CAUGHT: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// What else would have reached a command that stood where we do, and would end us.
const FOR_COMMANDS: [Signal; 4] = [
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGIO,
    Signal::SIGPWR,
];

/// Catches the first of these from here on.
pub(crate) fn catch() -> Result<Signals> {
    Signals::catch(&CAUGHT).context("cannot catch signals")
}

/// Catches both from here on, to be passed on. SIGWINCH, which ends nobody, is not among them.
pub(crate) fn catch_for_command() -> Result<Signals> {
    let all = [&CAUGHT[..], &FOR_COMMANDS].concat();
    Signals::catch(&all).context("cannot catch signals")
}

/// Passes a signal on to the command, unless the terminal has told it already.
pub(crate) fn pass_on(arrived: Arrived, child: u32) {
    if arrived.from_terminal {
        return;
    }
    if let Ok(pid) = i32::try_from(child) {
        // It may have ended just now; then nobody is left to tell.
        let _ = kill(Pid::from_raw(pid), arrived.signal);
    }
}
