//! The host's clock and one precise timer.
//!
//! Owns the meaning of [`Instant`] outside of simulations: nanoseconds on `CLOCK_BOOTTIME`, which
//! counts on while the machine is suspended, since this process first asked. The timer is a
//! `timerfd(2)` on the same clock, because tokio's own timers tick once per millisecond, while a
//! packet on a fast link lasts a microsecond. What a timer is for is left to others.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tabane_base::Instant;
use tokio::io::unix::AsyncFd;

use crate::reactor::watch;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Boot-clock time of the first question, in nanoseconds; every `HostClock` counts from it, so
/// that their instants compare.
static EPOCH_NANOS: OnceLock<u64> = OnceLock::new();

/// The clock that real sessions run by.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    epoch_nanos: u64,
}

impl HostClock {
    /// The clock of this process. All copies agree.
    #[must_use]
    pub fn new() -> Self {
        Self {
            epoch_nanos: *EPOCH_NANOS.get_or_init(boottime_nanos),
        }
    }

    /// Time since the process first made a clock, suspension included. Never goes back.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant::from_nanos(boottime_nanos().saturating_sub(self.epoch_nanos))
    }

    fn to_timespec(self, at: Instant) -> Timespec {
        // Zero would disarm the timer instead of firing it.
        let nanos = self.epoch_nanos.saturating_add(at.as_nanos()).max(1);
        Timespec {
            tv_sec: i64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % NANOS_PER_SECOND).unwrap_or(0),
        }
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self::new()
    }
}

fn boottime_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * NANOS_PER_SECOND + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// A one-shot timer with the kernel's own precision.
#[derive(Debug)]
pub struct Timer {
    fd: AsyncFd<OwnedFd>,
    clock: HostClock,
    /// What the kernel was last told. `None` while disarmed or expired; spares the system call
    /// where a driver sets the same deadline again, as it does after most packets.
    armed_for: Option<Instant>,
}

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// Out of descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self {
            fd: watch(fd)?,
            clock: HostClock::new(),
            armed_for: None,
        })
    }

    /// Sets the timer to expire at `deadline`, at once where that has passed; `None` and
    /// [`Instant::NEVER`] stop it. Does nothing where the deadline is what it was.
    ///
    /// # Errors
    /// None that the kernel documents for a valid descriptor.
    pub fn set(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let deadline = deadline.filter(|at| *at != Instant::NEVER);
        if deadline == self.armed_for {
            return Ok(());
        }
        let stopped = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let spec = Itimerspec {
            it_interval: stopped,
            it_value: deadline.map_or(stopped, |at| self.clock.to_timespec(at)),
        };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        self.armed_for = deadline;
        Ok(())
    }

    /// Ready once per deadline that has passed; the timer is then no longer set.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let mut expirations = [0; 8];
            match rustix::io::read(guard.get_inner(), &mut expirations) {
                Ok(_) => {
                    self.armed_for = None;
                    return Poll::Ready(Ok(()));
                }
                // Set again between expiring and being read: the kernel forgot the expiration.
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Waits until the deadline has passed.
    ///
    /// # Errors
    /// As [`poll_expired`](Self::poll_expired).
    pub async fn expired(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_expired(cx)).await
    }
}

/// Lets timed waits of the calling thread, and of threads it starts from here on, end on time
/// rather than up to 50 µs late to be bundled with others. `timerfd` is exact without it.
///
/// # Errors
/// None that the kernel documents.
pub fn minimize_timer_slack() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(Some(
        NonZeroU64::MIN,
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tabane_base::Duration;

    #[tokio::test]
    async fn never_early_and_once_per_deadline() {
        let clock = HostClock::new();
        let mut timer = Timer::new().unwrap();
        for micros in [1, 250, 3_000] {
            let deadline = clock.now() + Duration::from_micros(micros);
            timer.set(Some(deadline)).unwrap();
            timer.expired().await.unwrap();
            assert!(clock.now() >= deadline, "{micros} µs expired early");
            let again = poll_fn(|cx| Poll::Ready(timer.poll_expired(cx).is_ready())).await;
            assert!(!again, "one deadline expired twice");
        }
    }

    #[tokio::test]
    async fn a_past_deadline_expires_at_once_and_a_cancelled_one_never() {
        let mut timer = Timer::new().unwrap();
        timer.set(Some(Instant::EPOCH)).unwrap();
        timer.expired().await.unwrap();

        // Expired in the kernel, then cancelled before anybody looked.
        timer.set(Some(Instant::EPOCH)).unwrap();
        timer.fd.readable().await.unwrap().retain_ready();
        timer.set(Some(Instant::NEVER)).unwrap();
        assert!(poll_fn(|cx| Poll::Ready(timer.poll_expired(cx).is_pending())).await);
        assert_eq!(timer.armed_for, None);
    }

    #[test]
    fn clocks_agree_and_do_not_go_back() {
        let first = HostClock::new().now();
        let second = HostClock::new().now();
        assert!(second >= first);
    }
}
