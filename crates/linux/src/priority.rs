//! Priority of a thread that packets wait for: real-time for one that plays the network, or stands
//! in its way; more of the processor than others have for one that carries what programs send.

use std::io;

use rustix::process::{Pid, getpriority_process};
use rustix::time::{ClockId, clock_gettime};
use tabane_base::{Duration, Instant};

/// Lowest real-time priority: before every ordinary thread, after what the system itself runs.
const PRIORITY: u32 = 1;

/// Makes the calling thread run before all ordinary ones (`SCHED_FIFO`), so that packets leave when
/// they are due, however busy the machine is.
///
/// # Errors
/// No `CAP_SYS_NICE` and no `RLIMIT_RTPRIO`.
pub fn raise_priority() -> io::Result<()> {
    schedule(libc::SCHED_FIFO, 0, PRIORITY)
}

/// As media servers ask for: 92 % of a processor that one ordinary thread wants as well, and a turn
/// as soon as there is a packet.
const NICE: i32 = -11;

/// Has the calling thread go before ordinary ones (`nice` -11), so that other programs' work is no
/// delay of the network's. Threads and programs that it starts are ordinary. Who chose a `nice`
/// or another policy, as [`raise_priority`] does, keeps it.
///
/// # Errors
/// No `CAP_SYS_NICE` and no `RLIMIT_NICE`.
pub fn prefer_this_thread() -> io::Result<()> {
    match (policy(), nice()?) {
        (libc::SCHED_OTHER, 0) => prefer(libc::SCHED_OTHER),
        _ => Ok(()),
    }
}

fn nice() -> io::Result<i32> {
    // 0 is the calling thread.
    Ok(getpriority_process(None::<Pid>)?)
}

fn prefer(policy: libc::c_int) -> io::Result<()> {
    schedule(policy, NICE, 0)
}

/// Of the calling thread. Its children, if there ever are any, go back to ordinary scheduling.
/// By the system call itself: in musl the functions of this name only fail.
fn schedule(policy: libc::c_int, nice: i32, priority: u32) -> io::Result<()> {
    // SAFETY: all zeroes are a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = policy as u32;
    attributes.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
    attributes.sched_nice = nice;
    attributes.sched_priority = priority;
    // SAFETY: `attributes` outlives the call and says its own size; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Of the calling thread.
pub(crate) fn policy() -> libc::c_int {
    // SAFETY: 0 is the calling thread.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    policy as libc::c_int & !libc::SCHED_RESET_ON_FORK
}

/// Has the calling thread, which a [preferred](prefer_this_thread) one has started, not work in
/// batches because that one does: a kernel resets the priority of what is started, and not this.
pub(crate) fn go_back_to(policy: libc::c_int) {
    if self::policy() == libc::SCHED_BATCH && policy == libc::SCHED_OTHER {
        // The kernel's `sched_param`, of which some C libraries have a longer one.
        let ordinary: libc::c_int = 0;
        // SAFETY: 0 is the calling thread, and `ordinary` outlives the call. Refused, all stays.
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const ordinary) };
    }
}

/// How often it is looked how much of a processor the thread has.
const PERIOD: Duration = Duration::from_millis(100);
/// From this share of a processor on it works in batches, and until it has less than the other.
const BATCH_SHARES: [f64; 2] = [0.5, 0.3];

/// Whether a [preferred](prefer_this_thread) thread may interrupt others as soon as it has work.
/// One that has most of a processor comes soon enough: woken for every few packets it would cost
/// whoever writes them, and itself, an eighth of the processor time for each gigabit.
#[derive(Debug)]
pub struct Preemption {
    is_preferred: bool,
    is_batch: bool,
    looked_at: Instant,
    /// Processor time until then.
    used: Duration,
}

impl Preemption {
    /// Of the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self {
            is_preferred: nice().is_ok_and(|nice| nice == NICE),
            is_batch: false,
            looked_at: Instant::EPOCH,
            used: processor_time(),
        }
    }

    /// To be called by that thread, at any `now` of one clock.
    pub fn follow(&mut self, now: Instant) {
        let since = now.since(self.looked_at);
        if !self.is_preferred || since < PERIOD {
            return;
        }
        let used = processor_time();
        let share = used.saturating_sub(self.used).as_secs_f64() / since.as_secs_f64();
        (self.looked_at, self.used) = (now, used);
        let is_batch = share >= BATCH_SHARES[usize::from(self.is_batch)];
        if is_batch == self.is_batch {
            return;
        }
        let policy = match is_batch {
            true => libc::SCHED_BATCH,
            false => libc::SCHED_OTHER,
        };
        match prefer(policy) {
            Ok(()) => self.is_batch = is_batch,
            Err(error) => tracing::debug!(%error, "sched_setattr"),
        }
    }
}

/// Of the calling thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000)
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

    #[test]
    fn who_is_before_all_ordinary_ones_stays_there() {
        let seen = std::thread::spawn(|| {
            let before = (raise_priority(), policy());
            (before, prefer_this_thread(), policy())
        });
        let ((raised, before), outcome, after) = seen.join().unwrap();
        assert_eq!(raised.is_ok(), before == libc::SCHED_FIFO);
        if raised.is_ok() {
            outcome.unwrap();
            assert_eq!(after, libc::SCHED_FIFO);
        }
    }

    #[test]
    fn who_has_most_of_a_processor_interrupts_nobody() {
        let has = move |preemption: &mut Preemption, share: f64| {
            let enough = preemption.used + PERIOD.mul_f64(1.1 * share);
            while processor_time() < enough {}
            let used = processor_time() - preemption.used;
            preemption.follow(preemption.looked_at + used.div_f64(share));
            policy()
        };
        let seen = std::thread::spawn(move || {
            let preferred = prefer_this_thread();
            let mut preemption = Preemption::of_this_thread();
            (
                preferred,
                [0.01, 0.9, 0.4, 0.2].map(|share| has(&mut preemption, share)),
            )
        });
        let (preferred, seen) = seen.join().unwrap();
        let batch = match preferred {
            Ok(()) => libc::SCHED_BATCH,
            Err(_) => libc::SCHED_OTHER,
        };
        assert_eq!(seen, [libc::SCHED_OTHER, batch, batch, libc::SCHED_OTHER]);
    }
}
