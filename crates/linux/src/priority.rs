//! Priority of a thread that packets wait for: real-time for one that plays the network, or stands
//! in its way; more of the processor than others have for one that carries what programs send.

use std::io;

use rustix::process::{Pid, getpriority_process};

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

/// As media servers ask for: 92 % of a processor that one ordinary thread wants as well, and a turn
/// as soon as there is a packet.
const NICE: i32 = -11;

/// Has the calling thread go before ordinary ones (`nice` -11), so that other programs' work is no
/// delay of the network's. Threads and programs that it starts are ordinary. Who chose a `nice`
/// keeps it.
///
/// # Errors
/// No `CAP_SYS_NICE` and no `RLIMIT_NICE`.
pub fn prefer_this_thread() -> io::Result<()> {
    // 0 is the calling thread.
    if getpriority_process(None::<Pid>)? != 0 {
        return Ok(());
    }
    // SAFETY: all zeroes are a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
    attributes.sched_nice = NICE;
    // SAFETY: `attributes` outlives the call and says its own size; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::setpriority_process;
    use std::process::Command;
    use std::thread;

    fn on_own_thread(nice: i32) -> (io::Result<()>, i32, String) {
        let asked = thread::spawn(move || {
            if nice != 0 {
                setpriority_process(None, nice).unwrap();
            }
            let outcome = prefer_this_thread();
            let started = Command::new("nice").output().unwrap().stdout;
            let nice = getpriority_process(None).unwrap();
            (outcome, nice, String::from_utf8(started).unwrap())
        });
        asked.join().unwrap()
    }

    #[test]
    fn this_thread_goes_first_and_what_it_starts_does_not() {
        let (outcome, nice, started) = on_own_thread(0);
        match outcome {
            Ok(()) => assert_eq!((nice, started.trim()), (NICE, "0")),
            Err(error) => println!("without the right to it all stays: {error}"),
        }
    }

    #[test]
    fn who_chose_to_be_last_stays_last() {
        let (outcome, nice, started) = on_own_thread(7);
        assert_eq!((nice, started.trim()), (7, "7"));
        assert!(outcome.is_ok());
    }
}
