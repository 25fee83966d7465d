//! Ends the process when a call into the C library does not come back.
//!
//! The library is trusted to return: every call is non-blocking, and the one endless loop that is
//! known of is excluded by the settings. Should there be another one, a program that hangs for ever
//! would be worse than one that dies and says why. A loop in C cannot be left in any other way.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest a call may last: far beyond anything but a loop, also where the machine swaps.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The watch, as long as it lives.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    /// Milliseconds since `started`, plus 1, when the call under way began; 0: none is.
    entered_ms: AtomicU64,
    done: AtomicBool,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a Shared);

impl Watchdog {
    /// Watches; a call that lasts longer than `limit` is told to `bark`, once.
    pub(crate) fn start(limit: Duration, bark: impl FnOnce() + Send + 'static) -> Self {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            entered_ms: AtomicU64::new(0),
            done: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("sctp-watch".to_owned())
            .spawn(move || {
                while !watched.done.load(Ordering::Acquire) {
                    std::thread::park_timeout(limit / 8);
                    if watched.lasts() > limit {
                        return bark();
                    }
                }
            });
        Self {
            shared,
            // Without threads there is no watch; everything else works.
            thread: thread.ok(),
        }
    }

    /// To be held during a call.
    pub(crate) fn enter(&self) -> Call<'_> {
        let now = self.shared.now_ms() + 1;
        self.shared.entered_ms.store(now, Ordering::Release);
        Call(&self.shared)
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    fn lasts(&self) -> Duration {
        match self.entered_ms.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            entered => Duration::from_millis((self.now_ms() + 1).saturating_sub(entered)),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.entered_ms.store(0, Ordering::Release);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only fails where the bark panicked.
            let _ = thread.join();
        }
    }
}

/// What the stack's watchdog does.
pub(crate) fn abort() {
    let _ = writeln!(
        std::io::stderr(),
        "tabane: the SCTP library has not come back from a call for {} s; ending here",
        LIMIT.as_secs()
    );
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_call_that_does_not_return_is_noticed_and_others_are_not() {
        let (tell, heard) = mpsc::channel();
        let limit = Duration::from_millis(40);
        let watchdog = Watchdog::start(limit, move || tell.send(()).unwrap());
        for _ in 0..100 {
            drop(watchdog.enter());
        }
        assert!(heard.try_recv().is_err());
        let _call = watchdog.enter();
        heard.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}
