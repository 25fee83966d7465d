//! Those who may borrow the link, and what each of them may still carry.
//!
//! Owns the counts since the start, and the end of what a friend has open when its terms end. Where
//! terms come from, what day it is and what was carried in earlier lives is the caller's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tabane_base::{Bytes, Rate};
use tabane_core::PublicKey;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What a friend may do at present.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// What it is called.
    pub name: String,
    /// What it may still carry, both directions together, counted from when this is told. `None`:
    /// as much as it likes.
    pub allowance: Option<Bytes>,
    /// The most it may carry per second, all its connections together.
    pub cap: Option<Rate>,
    /// Whether it may use the link at this hour.
    pub is_open: bool,
}

/// All friends, by the key that each proves; copies are the same.
#[derive(Clone, Default)]
pub struct Friends(Rc<RefCell<BTreeMap<PublicKey, Rc<Friend>>>>);

pub(crate) struct Friend {
    pub(crate) terms: RefCell<Terms>,
    /// Carried since the start.
    carried: Cell<u64>,
    /// What is left of the allowance.
    left: Cell<Option<u64>>,
    /// With a cap: when the next bytes may be carried.
    next: Cell<Option<Instant>>,
    pub(crate) connections: Cell<usize>,
    /// Ports that pass its datagrams on.
    pub(crate) forwards: Cell<usize>,
    /// Why what it has open must end.
    end: watch::Sender<Option<Ended>>,
}

/// With a cap, datagrams wait for their turn at most so long; what would wait longer is dropped. A
/// queue of this length is what a session's congestion control finds in front of many a link.
const QUEUE_TIME: Duration = Duration::from_millis(50);

/// Why a friend's connections end, or do not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Revoked,
    UsedUp,
    NotNow,
}

impl Ended {
    /// For the log.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::UsedUp => "budget used up",
            Self::NotNow => "out of hours",
        }
    }
}

impl Friends {
    /// A friend may do this from now on. What it has open goes on if that is allowed.
    pub fn set(&self, key: PublicKey, terms: Terms) {
        let mut friends = self.0.borrow_mut();
        if let Some(friend) = friends.get(&key) {
            friend.left.set(terms.allowance.map(Bytes::get));
            friend.terms.replace(terms);
            friend.judge();
            return;
        }
        let friend = Friend {
            carried: Cell::new(0),
            left: Cell::new(terms.allowance.map(Bytes::get)),
            next: Cell::new(None),
            connections: Cell::new(0),
            forwards: Cell::new(0),
            end: watch::Sender::new(None),
            terms: RefCell::new(terms),
        };
        friend.judge();
        friends.insert(key, Rc::new(friend));
    }

    /// A friend is one no longer: what it has open ends now.
    pub fn remove(&self, key: PublicKey) {
        if let Some(friend) = self.0.borrow_mut().remove(&key) {
            friend.end.send_replace(Some(Ended::Revoked));
        }
    }

    /// The friends there are.
    #[must_use]
    pub fn keys(&self) -> Vec<PublicKey> {
        self.0.borrow().keys().copied().collect()
    }

    /// What a friend has carried since it was first told of, in both directions.
    #[must_use]
    pub fn carried(&self, key: PublicKey) -> Bytes {
        let friend = self.find(key);
        Bytes::new(friend.map_or(0, |friend| friend.carried.get()))
    }

    pub(crate) fn find(&self, key: PublicKey) -> Option<Rc<Friend>> {
        self.0.borrow().get(&key).cloned()
    }
}

impl Friend {
    /// Counts bytes that are about to be passed on, and comes back when they may be.
    pub(crate) async fn on_carried(&self, amount: usize) -> Result<(), Ended> {
        let bytes = amount as u64;
        self.count(bytes)?;
        if let Some(due) = self.due(Instant::now(), bytes, Duration::MAX) {
            sleep_until(due).await;
        }
        Ok(())
    }

    /// Counts a datagram that is to be passed on, and says when its turn is: never before those
    /// that came before it. `None`: there are too many before it, and it must be dropped.
    pub(crate) fn on_datagram(
        &self,
        now: Instant,
        amount: usize,
    ) -> Result<Option<Instant>, Ended> {
        let bytes = amount as u64;
        let begins = self.next.get().map_or(now, |next| next.max(now));
        let has_cap = self.terms.borrow().cap.is_some();
        if has_cap && self.due(now, bytes, QUEUE_TIME).is_none() {
            return Ok(None);
        }
        self.count(bytes)?;
        Ok(Some(if has_cap { begins } else { now }))
    }

    fn count(&self, bytes: u64) -> Result<(), Ended> {
        if let Some(left) = self.left.get() {
            self.left.set(Some(left.saturating_sub(bytes)));
            if left < bytes {
                self.judge();
                return Err(Ended::UsedUp);
            }
        }
        self.carried.set(self.carried.get() + bytes);
        Ok(())
    }

    /// With a cap: takes room under it, and says from when on. `None` without one, and where the
    /// room begins later than `wait` from now: then nothing is taken.
    fn due(&self, now: Instant, bytes: u64, wait: Duration) -> Option<Instant> {
        let cap = self.terms.borrow().cap?;
        let begins = self.next.get().map_or(now, |due| due.max(now));
        if begins - now > wait {
            return None;
        }
        let span = cap.time_for(Bytes::new(bytes)).min(Duration::from_secs(60));
        self.next.set(Some(begins + span));
        self.next.get()
    }

    /// Why it may not begin anything now.
    pub(crate) fn ended(&self) -> Option<Ended> {
        *self.end.borrow()
    }

    /// Waits until what it has open must end.
    pub(crate) async fn end(&self) -> Ended {
        let mut end = self.end.subscribe();
        loop {
            if let Some(ended) = *end.borrow_and_update() {
                return ended;
            }
            // The sender lives as long as we do.
            let _ = end.changed().await;
        }
    }

    fn judge(&self) {
        let ended = match self.terms.borrow().is_open {
            false => Some(Ended::NotNow),
            true if self.left.get() == Some(0) => Some(Ended::UsedUp),
            true => None,
        };
        self.end.send_replace(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const MS: Duration = Duration::from_millis(1);

    /// A friend that may carry so much, 100 kB each second where it `is_capped`.
    fn friend(allowance: Option<Bytes>, is_capped: bool) -> Rc<Friend> {
        let (friends, key) = (Friends::default(), PublicKey([7; 32]));
        let terms = Terms {
            name: "a friend".to_owned(),
            allowance,
            cap: is_capped.then(|| Rate::from_bps(800_000)),
            is_open: true,
        };
        friends.set(key, terms);
        friends.find(key).unwrap()
    }

    async fn carry(friend: &Friend, times: usize) {
        for _ in 0..times {
            friend.on_carried(10_000).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_share_a_cap_which_saves_nothing_up() {
        let friend = friend(None, true);
        let begin = Instant::now();
        tokio::join!(carry(&friend, 5), carry(&friend, 5));
        assert_eq!(begin.elapsed(), MS * 1_000);
        sleep(MS * 60_000).await;
        let later = Instant::now();
        carry(&friend, 2).await;
        assert_eq!(later.elapsed(), MS * 200);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_cap_nothing_waits_until_the_allowance_is_used_up() {
        let friend = friend(Some(Bytes::kilo(100)), false);
        let begin = Instant::now();
        carry(&friend, 10).await;
        assert_eq!(friend.on_carried(1).await, Err(Ended::UsedUp));
        assert_eq!(friend.end().await, Ended::UsedUp);
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }

    #[test]
    fn datagrams_keep_their_order_under_a_cap_and_what_would_wait_long_is_dropped() {
        let (friend, now) = (friend(None, true), Instant::now());
        let send = |at: Instant| friend.on_datagram(at, 1_000).unwrap();
        // Each takes 10 ms.
        for turn in 0..=5 {
            assert_eq!(send(now), Some(now + MS * 10 * turn));
        }
        assert_eq!((send(now), send(now + MS * 9)), (None, None));
        // What was dropped took no room.
        assert_eq!(send(now + MS * 10), Some(now + MS * 60));
        assert_eq!(friend.carried.get(), 7_000);
    }
}
