//! What this process began with and has otherwise for itself: given to what it starts as it was.
//!
//! Rust ignores SIGPIPE from its start on, and opens standard descriptors that are closed; a
//! runtime cannot wait for children whose ends are ignored; packets want timers and a policy of
//! their own.

use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ptr;
use std::sync::OnceLock;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::priority;

/// Ignored by some who start others (systemd: the first), who count on it.
const IGNORED_BY_SOME: [Signal; 2] = [Signal::SIGPIPE, Signal::SIGCHLD];

struct Beginning {
    is_ignored: [bool; 2],
    blocked: SigSet,
    /// Of standard input, output and error.
    is_closed: [bool; 3],
    timer_slack: u64,
    policy: libc::c_int,
}

static BEGINNING: OnceLock<Beginning> = OnceLock::new();

/// Run by the loader, before Rust's runtime.
#[used]
// SAFETY: the section has functions that are called once, by one thread, and this is one; it uses
// nothing that has to be set up.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn look() {
        let is_ignored = IGNORED_BY_SOME.map(is_ignored);
        if is_ignored[1] {
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: no handler of ours runs. Else the kernel keeps no child's status (wait(2)).
            let _ = unsafe { sigaction(Signal::SIGCHLD, &default) };
        }
        let _ = BEGINNING.set(Beginning {
            is_ignored,
            blocked: SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty()),
            is_closed: [0, 1, 2].map(is_closed),
            timer_slack: rustix::thread::current_timer_slack().unwrap_or(0),
            policy: priority::policy(),
        });
    }
    look
};

fn is_ignored(signal: Signal) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it only asks, and `now` has room for the answer.
    let asked = unsafe { libc::sigaction(signal as libc::c_int, ptr::null(), now.as_mut_ptr()) };
    // SAFETY: it has been answered.
    asked == 0 && unsafe { now.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn is_closed(descriptor: libc::c_int) -> bool {
    // SAFETY: it only asks, of a number.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) == -1 }
}

/// Whether SIGPIPE was ignored when this process began.
pub(crate) fn ignored_pipes() -> bool {
    BEGINNING
        .get()
        .is_some_and(|beginning| beginning.is_ignored[0])
}

/// Whether it is `/dev/null`, which Rust has put where nothing was; what the command was given in
/// its place is something else.
fn is_null(descriptor: libc::c_int) -> bool {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: it only asks, and `found` has room for the answer.
    let asked = unsafe { libc::fstat(descriptor, found.as_mut_ptr()) };
    // SAFETY: it has been answered.
    asked == 0 && unsafe { found.assume_init() }.st_rdev == libc::makedev(1, 3)
}

/// Has the calling thread be as this process began, between `fork` and `exec`: without allocation
/// or lock.
pub(crate) fn restore() -> nix::Result<()> {
    let Some(beginning) = BEGINNING.get() else {
        return Ok(());
    };
    for (signal, is_ignored) in IGNORED_BY_SOME.into_iter().zip(beginning.is_ignored) {
        if is_ignored {
            let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
            // SAFETY: no handler of ours runs.
            unsafe { sigaction(signal, &ignore)? };
        }
    }
    for (descriptor, is_closed) in (0..).zip(beginning.is_closed) {
        if is_closed && is_null(descriptor) {
            // SAFETY: nobody has it between here and exec.
            unsafe { libc::close(descriptor) };
        }
    }
    // A command that is scheduled otherwise is no worse than none.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(beginning.timer_slack));
    priority::go_back_to(beginning.policy);
    beginning.blocked.thread_set_mask()
}
