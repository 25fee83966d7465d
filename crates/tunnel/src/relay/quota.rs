//! How much of its volume a user may still pass on, at whichever workers its sessions are.
//!
//! Owns the count, how far it may go, and who waits for more where a volume is lent part by part:
//! nothing is cut there before nothing more comes. Whoever lends is told as soon as little is left.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tabane_base::Bytes;
use tokio::sync::Notify;

/// The volume of one user.
pub(super) struct Quota {
    used: AtomicU64,
    /// `u64::MAX`: no limit.
    most: AtomicU64,
    /// From so much used on more is wanted; `u64::MAX`: nothing more comes.
    ask_from: AtomicU64,
    asks: Arc<Notify>,
    /// Who waits for more, by [`Waiter`]. As many as streams, which have a limit.
    waiting: Mutex<HashMap<u64, Waker>>,
    waiters: AtomicU64,
}

/// A stream's place among those that wait.
#[derive(Clone, Copy)]
pub(super) struct Waiter(u64);

impl Quota {
    /// Without a limit, until there is one; `asks` is told when more is wanted.
    pub(super) fn new(asks: Arc<Notify>) -> Self {
        Self {
            used: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            ask_from: AtomicU64::new(u64::MAX),
            asks,
            waiting: Mutex::default(),
            waiters: AtomicU64::new(0),
        }
    }

    pub(super) fn set_limit(&self, most: Option<Bytes>, ask_from: Option<Bytes>) {
        let number = |bytes: Option<Bytes>| bytes.map_or(u64::MAX, Bytes::get);
        let (most, ask_from) = (number(most), number(ask_from));
        // Nobody who looks between both is told that nothing more comes.
        if most >= self.most.load(Ordering::Relaxed) {
            self.most.store(most, Ordering::Release);
            self.ask_from.store(ask_from, Ordering::Release);
        } else {
            self.ask_from.store(ask_from, Ordering::Release);
            self.most.store(most, Ordering::Release);
        }
        self.on_changed();
    }

    pub(super) fn set_used(&self, used: Bytes) {
        self.used.store(used.get(), Ordering::Release);
        self.on_changed();
    }

    pub(super) fn used(&self) -> Bytes {
        Bytes::new(self.used.load(Ordering::Relaxed))
    }

    /// So much has passed here, or at another process.
    pub(super) fn spend(&self, bytes: u64) {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let ask_from = self.ask_from.load(Ordering::Acquire);
        if (before..before.saturating_add(bytes)).contains(&ask_from.saturating_sub(1)) {
            self.asks.notify_one();
        }
    }

    /// Little enough is left, and more may come.
    pub(super) fn wants_more(&self) -> bool {
        let ask_from = self.ask_from.load(Ordering::Acquire);
        ask_from != u64::MAX && self.used.load(Ordering::Relaxed) >= ask_from
    }

    /// Nothing is left, and nothing more comes.
    pub(super) fn is_used_up(&self) -> bool {
        self.left() == 0 && self.ask_from.load(Ordering::Acquire) == u64::MAX
    }

    pub(super) fn waiter(&self) -> Waiter {
        Waiter(self.waiters.fetch_add(1, Ordering::Relaxed))
    }

    /// Ready with how many bytes may pass; none where nothing more comes. Each worker is told by
    /// itself, so that several at once go beyond the end by a read each.
    pub(super) fn poll_left(&self, waiter: Waiter, cx: &Context<'_>) -> Poll<u64> {
        if self.left() > 0 || self.is_used_up() {
            return Poll::Ready(self.left());
        }
        self.waiting().insert(waiter.0, cx.waker().clone());
        // What came between both looks has woken nobody.
        if self.left() > 0 || self.is_used_up() {
            return Poll::Ready(self.left());
        }
        self.asks.notify_one();
        Poll::Pending
    }

    /// It is gone.
    pub(super) fn forget(&self, waiter: Waiter) {
        self.waiting().remove(&waiter.0);
    }

    fn left(&self) -> u64 {
        let most = self.most.load(Ordering::Acquire);
        most.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    fn on_changed(&self) {
        if self.wants_more() {
            self.asks.notify_one();
        }
        if self.left() > 0 || self.is_used_up() {
            let woken = std::mem::take(&mut *self.waiting());
            woken.into_values().for_each(Waker::wake);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Desk {
        quota: Quota,
        asks: Arc<Notify>,
        woken: Arc<Woken>,
    }

    impl Desk {
        fn of(most: u64, ask_from: Option<u64>) -> Self {
            let asks = Arc::new(Notify::new());
            let quota = Quota::new(asks.clone());
            let woken = Arc::default();
            let desk = Self { quota, asks, woken };
            desk.lend(most, ask_from);
            desk
        }

        fn lend(&self, most: u64, ask_from: Option<u64>) {
            let ask_from = ask_from.map(Bytes::new);
            self.quota.set_limit(Some(Bytes::new(most)), ask_from);
        }

        fn poll(&self, waiter: Waiter) -> Poll<u64> {
            let waker = self.woken.clone().into();
            self.quota.poll_left(waiter, &Context::from_waker(&waker))
        }

        /// Whether more was asked for since the last look.
        fn has_asked(&self) -> bool {
            let mut asked = std::pin::pin!(self.asks.notified());
            asked
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        }
    }

    #[test]
    fn what_is_lent_is_asked_for_before_it_is_used_up_and_waited_for_after() {
        let desk = Desk::of(1_000, Some(500));
        let waiter = desk.quota.waiter();
        assert_eq!(desk.poll(waiter), Poll::Ready(1_000));
        desk.quota.spend(499);
        assert!(!desk.has_asked() && !desk.quota.wants_more());
        desk.quota.spend(1);
        assert!(desk.has_asked() && desk.quota.wants_more());
        desk.quota.spend(400);
        assert!(!desk.has_asked(), "once");
        assert_eq!(desk.poll(waiter), Poll::Ready(100), "and no more");
        desk.quota.spend(100);
        assert_eq!(desk.poll(waiter), Poll::Pending);
        assert!(desk.has_asked() && !desk.quota.is_used_up());
        // As much again, and the end of it.
        desk.lend(2_000, Some(1_500));
        assert_eq!(desk.woken.0.load(Ordering::Relaxed), 1);
        assert!(!desk.has_asked());
        assert_eq!(desk.poll(waiter), Poll::Ready(1_000));
        desk.quota.spend(1_000);
        assert_eq!(desk.poll(waiter), Poll::Pending);
        desk.lend(2_000, None);
        assert_eq!(desk.woken.0.load(Ordering::Relaxed), 2);
        assert!(desk.quota.is_used_up() && !desk.quota.wants_more());
        assert_eq!(desk.poll(waiter), Poll::Ready(0));
    }

    #[test]
    fn a_part_that_is_too_small_is_asked_for_again_and_who_has_gone_is_not_woken() {
        let desk = Desk::of(10, Some(5));
        let (gone, waiter) = (desk.quota.waiter(), desk.quota.waiter());
        desk.quota.spend(100);
        assert!(desk.has_asked());
        assert_eq!(desk.poll(gone), Poll::Pending);
        assert_eq!(desk.poll(waiter), Poll::Pending);
        desk.quota.forget(gone);
        assert!(desk.has_asked());
        desk.lend(50, Some(45));
        assert!(desk.has_asked(), "it is used up already");
        assert_eq!(desk.woken.0.load(Ordering::Relaxed), 0);
        // A new month.
        desk.quota.set_used(Bytes::ZERO);
        assert_eq!(desk.woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(desk.poll(waiter), Poll::Ready(50));
    }
}
