//! Real-time priority, for a thread that packets wait for: one that plays the network, or stands in
//! its way.

use std::io;

/// Lowest real-time priority: before every ordinary thread, after what the system itself runs.
const PRIORITY: libc::c_int = 1;

/// Makes the calling thread run before all ordinary ones (`SCHED_FIFO`), so that packets leave when
/// they are due, however busy the machine is.
///
/// # Errors
/// No `CAP_SYS_NICE` and no `RLIMIT_RTPRIO`.
pub fn raise_priority() -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // Children of the thread, if there ever are any, go back to ordinary scheduling.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameters` outlives the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
