//! A user's rate in one direction, shared by turns: over sessions, then over a session's streams.
//!
//! Owns who waits, whose turn it is, and when the next turn may come. Nothing is dropped or held
//! here: whoever waits leaves its bytes where they are, in the TCP connection or in the session,
//! and flow control there slows the sender. Knows no sockets.
//!
//! The rate is one [`Bucket`] for all workers, of a few atomic numbers; who waits is kept by each
//! worker for its own sessions. A worker borrows one turn at a time, or, where others wait as well,
//! one for each of its sessions that wait, so that sessions have equal shares wherever they are.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tabane_base::{Bytes, Duration, Rate};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How much time a turn is worth: short, so that many streams wait little.
const TURN: Duration = Duration::from_millis(2);
/// The least and the most that a turn gives, in bytes: a packet; what one read takes.
const LEAST_TURN: u64 = 1_500;
const MOST_TURN: u64 = 65_536;
/// Time unused that may be made up for: timers are up to a millisecond late, and a busy machine
/// later. More would be a burst beyond the rate.
const CATCH_UP: Duration = Duration::from_millis(5);
/// Turns that a worker borrows at once, at most: the others wait as long.
const MOST_BORROWED: usize = 8;

/// The rate, for all workers.
pub(super) struct Bucket {
    /// Zero: as fast as it goes.
    rate_bps: AtomicU64,
    /// When the rate allows the next turn, in nanoseconds after `began_at`.
    free_at: AtomicU64,
    began_at: Instant,
    /// Workers at which somebody waits.
    waiting: AtomicUsize,
    /// Which of them has borrowed last.
    last: AtomicUsize,
    /// A turn that is waited for may have come nearer.
    changed: Notify,
}

/// Who waits for the rate at one worker.
pub(super) struct Shaper {
    bucket: Arc<Bucket>,
    turns: RefCell<Turns>,
}

#[derive(Default)]
struct Turns {
    /// Sessions with somebody waiting, each once; the next one is in front.
    sessions: VecDeque<u64>,
    waiting: HashMap<u64, VecDeque<Weak<Turn>>>,
    /// Turns that are borrowed and not given yet, and the bytes of each.
    borrowed: (usize, u64),
    /// A task gives out turns.
    is_pumped: bool,
}

/// One stream's place in the queue.
struct Turn {
    waker: RefCell<Waker>,
    granted: Cell<Option<u64>>,
}

/// What one stream may still pass on in one direction.
#[derive(Default)]
pub(super) struct Allowance {
    /// Bytes; below zero where a datagram was larger than what was left.
    left: i64,
    turn: Option<Rc<Turn>>,
}

/// What came of giving a turn.
#[derive(Debug, PartialEq, Eq)]
enum Given {
    Turn,
    /// Nobody waits.
    ToNobody,
    /// Not before this.
    NotBefore(Instant),
}

/// Counts a worker as one where somebody waits.
struct Waiting(Arc<Bucket>);

impl Default for Bucket {
    fn default() -> Self {
        Self {
            rate_bps: AtomicU64::new(0),
            free_at: AtomicU64::new(0),
            began_at: Instant::now(),
            waiting: AtomicUsize::new(0),
            last: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }
}

impl Bucket {
    pub(super) fn set_rate(&self, rate: Option<Rate>) {
        let bps = rate.map_or(0, |rate| rate.as_bps().max(1));
        if self.rate_bps.swap(bps, Ordering::Relaxed) != bps {
            let now = self.nanos(Instant::now());
            self.free_at.store(now, Ordering::Relaxed);
            self.changed.notify_waiters();
        }
    }

    fn rate(&self) -> Option<Rate> {
        match self.rate_bps.load(Ordering::Relaxed) {
            0 => None,
            bps => Some(Rate::from_bps(bps)),
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began_at);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes so many turns out of the rate, and gives the bytes of each; or when to ask again.
    /// Where others wait as well, whoever has borrowed last leaves the next turn to them.
    fn borrow(&self, now: Instant, turns: usize, worker: usize) -> Result<u64, Instant> {
        let Some(rate) = self.rate() else {
            return Ok(MOST_TURN);
        };
        let bytes = rate.amount_in(TURN).get().clamp(LEAST_TURN, MOST_TURN);
        let lasts = rate.time_for(Bytes::new(bytes.saturating_mul(turns as u64)));
        let lasts = u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX);
        let now = self.nanos(now);
        let earliest = now.saturating_sub(CATCH_UP.as_nanos() as u64);
        let is_others = self.is_contested() && self.last.load(Ordering::Relaxed) == worker;
        let behind = if is_others { TURN.as_nanos() as u64 } else { 0 };
        let is_due = |at: u64| at.saturating_add(behind) <= now;
        let take = |at: u64| is_due(at).then(|| at.max(earliest).saturating_add(lasts));
        let order = Ordering::Relaxed;
        match self.free_at.fetch_update(order, order, take) {
            Ok(_) => {
                self.last.store(worker, Ordering::Relaxed);
                Ok(bytes)
            }
            Err(at) => Err(self.at(at.saturating_add(behind))),
        }
    }

    /// Whether somebody waits at several workers.
    fn is_contested(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 1
    }

    fn at(&self, nanos: u64) -> Instant {
        let at = self.began_at.checked_add(Duration::from_nanos(nanos));
        at.unwrap_or(self.began_at)
    }

    fn is_free(&self, now: Instant) -> bool {
        self.rate().is_none() || self.free_at.load(Ordering::Relaxed) <= self.nanos(now)
    }
}

impl Shaper {
    /// Of one worker.
    pub(super) fn new(bucket: Arc<Bucket>) -> Self {
        Self {
            bucket,
            turns: RefCell::default(),
        }
    }

    /// Ready with how many bytes the stream may pass on now.
    pub(super) fn poll(
        self: &Rc<Self>,
        allowance: &mut Allowance,
        session: u64,
        cx: &Context<'_>,
    ) -> Poll<usize> {
        if self.bucket.rate().is_none() {
            *allowance = Allowance::default();
            return Poll::Ready(usize::MAX);
        }
        let mut turns = self.turns.borrow_mut();
        loop {
            if let Ok(left @ 1..) = usize::try_from(allowance.left) {
                return Poll::Ready(left);
            }
            let granted = match &allowance.turn {
                Some(turn) => turn.granted.take(),
                None => turns.take_at_once(&self.bucket, Instant::now()),
            };
            if let Some(granted) = granted {
                allowance.turn = None;
                allowance.left = allowance.left.saturating_add_unsigned(granted);
                continue;
            }
            match &allowance.turn {
                Some(turn) => turn.waker.borrow_mut().clone_from(cx.waker()),
                None => allowance.turn = Some(turns.queue(session, cx.waker())),
            }
            if !std::mem::replace(&mut turns.is_pumped, true) {
                let waiting = Waiting::at(self.bucket.clone());
                tokio::task::spawn_local(pump(self.clone(), waiting));
            }
            return Poll::Pending;
        }
    }
}

impl Allowance {
    /// `n` bytes were passed on.
    pub(super) fn spend(&mut self, n: usize) {
        self.left = self.left.saturating_sub_unsigned(n as u64);
    }
}

impl Waiting {
    fn at(bucket: Arc<Bucket>) -> Self {
        bucket.waiting.fetch_add(1, Ordering::Relaxed);
        Self(bucket)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turns {
    /// A turn for somebody who asks while nobody waits here.
    fn take_at_once(&mut self, bucket: &Bucket, now: Instant) -> Option<u64> {
        let is_first = self.sessions.is_empty();
        is_first
            .then(|| bucket.borrow(now, 1, self.number()).ok())
            .flatten()
    }

    /// Tells it from those of other workers: where it is, as long as it waits.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn queue(&mut self, session: u64, waker: &Waker) -> Rc<Turn> {
        let turn = Rc::new(Turn {
            waker: RefCell::new(waker.clone()),
            granted: Cell::new(None),
        });
        let queue = self.waiting.entry(session).or_default();
        if queue.is_empty() {
            self.sessions.push_back(session);
        }
        queue.push_back(Rc::downgrade(&turn));
        turn
    }

    /// Gives the next turn, if there is one to give.
    fn grant(&mut self, bucket: &Bucket, now: Instant) -> Given {
        self.drop_leavers();
        if self.sessions.is_empty() {
            self.borrowed.0 = 0;
            return Given::ToNobody;
        }
        if self.borrowed.0 == 0 {
            let turns = match bucket.is_contested() {
                false => 1,
                true => self.sessions.len().min(MOST_BORROWED),
            };
            match bucket.borrow(now, turns, self.number()) {
                Ok(bytes) => self.borrowed = (turns, bytes),
                Err(at) => return Given::NotBefore(at),
            }
        }
        let Some(turn) = self.next() else {
            return Given::ToNobody;
        };
        self.borrowed.0 -= 1;
        turn.granted.set(Some(self.borrowed.1));
        turn.waker.borrow().wake_by_ref();
        Given::Turn
    }

    /// Those in front who have given up leave their turns to others, before any is borrowed.
    fn drop_leavers(&mut self) {
        while let Some(session) = self.sessions.front() {
            let Some(queue) = self.waiting.get_mut(session) else {
                self.sessions.pop_front();
                continue;
            };
            while queue.front().is_some_and(|turn| turn.strong_count() == 0) {
                queue.pop_front();
            }
            if !queue.is_empty() {
                return;
            }
            self.waiting.remove(session);
            self.sessions.pop_front();
        }
    }

    /// Whose turn is next; its session is the last from here on.
    fn next(&mut self) -> Option<Rc<Turn>> {
        let session = self.sessions.pop_front()?;
        let queue = self.waiting.get_mut(&session)?;
        let turn = queue.pop_front()?.upgrade();
        if queue.is_empty() {
            self.waiting.remove(&session);
        } else {
            self.sessions.push_back(session);
        }
        turn
    }
}

/// Gives out turns as the rate allows, until nobody waits.
async fn pump(shaper: Rc<Shaper>, _waiting: Waiting) {
    loop {
        let given = shaper
            .turns
            .borrow_mut()
            .grant(&shaper.bucket, Instant::now());
        match given {
            // Whoever had the turn asks again before the next is given, or it would lose its place.
            Given::Turn => tokio::task::yield_now().await,
            Given::ToNobody => {
                shaper.turns.borrow_mut().is_pumped = false;
                return;
            }
            Given::NotBefore(at) => {
                let mut changed = pin!(shaper.bucket.changed.notified());
                changed.as_mut().enable();
                // It may have changed before somebody listened.
                if !shaper.bucket.is_free(Instant::now()) {
                    tokio::select! {
                        () = sleep_until(at) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    /// Streams that always have something to pass on, as `(session, bytes so far, place)`.
    struct Busy(Vec<(u64, u64, Option<Rc<Turn>>)>);

    impl Busy {
        fn new(sessions: &[u64]) -> Self {
            Self(sessions.iter().map(|&session| (session, 0, None)).collect())
        }

        /// Lets time pass from `from` on, and gives what all passed on together.
        fn run(
            &mut self,
            turns: &mut Turns,
            bucket: &Bucket,
            from: Instant,
            span: Duration,
        ) -> u64 {
            let end = from + span;
            let mut now = from;
            while now < end {
                now = self.take_a_turn(turns, bucket, now);
            }
            self.sum()
        }

        /// All who wait ask, and one is given a turn; gives when to go on.
        fn take_a_turn(&mut self, turns: &mut Turns, bucket: &Bucket, now: Instant) -> Instant {
            for (session, bytes, place) in &mut self.0 {
                if let Some(granted) = place.as_ref().and_then(|turn| turn.granted.take()) {
                    *bytes += granted;
                    *place = None;
                }
                if place.is_none() {
                    *place = Some(turns.queue(*session, Waker::noop()));
                }
            }
            match turns.grant(bucket, now) {
                Given::NotBefore(at) => at,
                given => {
                    assert_eq!(given, Given::Turn);
                    now
                }
            }
        }

        fn sum(&self) -> u64 {
            self.0.iter().map(|(_, bytes, _)| bytes).sum()
        }
    }

    #[test]
    fn sessions_have_equal_shares_whatever_the_number_of_their_streams() {
        let bucket = bucket(Rate::from_mbps(50));
        let mut busy = Busy::new(&[1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        let total = busy.run(
            &mut Turns::default(),
            &bucket,
            Instant::now(),
            Duration::from_secs(1),
        );
        assert!((6_200_000..6_300_000).contains(&total), "{total}");
        let first = busy.0[0].1;
        assert!(first.abs_diff(total / 2) < 30_000, "{first} of {total}");
        for (_, bytes, _) in &busy.0[1..] {
            assert!(bytes.abs_diff(total / 20) < 30_000, "{bytes} of {total}");
        }
    }

    fn bucket(rate: Rate) -> Bucket {
        let bucket = Bucket::default();
        bucket.set_rate(Some(rate));
        bucket
    }

    #[test]
    fn sessions_at_two_workers_have_one_rate_and_equal_shares_of_it() {
        let bucket = Arc::new(bucket(Rate::from_mbps(80)));
        let _waiting = [(); 2].map(|()| Waiting::at(bucket.clone()));
        let mut workers = [&[1_u64][..], &[2, 3, 4]].map(Busy::new);
        let mut turns = [Turns::default(), Turns::default()];
        let begin = Instant::now();
        let mut now = begin;
        while now < begin + Duration::from_secs(1) {
            let mut next = now + Duration::from_secs(1);
            for (busy, turns) in workers.iter_mut().zip(&mut turns) {
                // Each as long as it has something borrowed.
                loop {
                    let at = busy.take_a_turn(turns, &bucket, now);
                    if at > now || turns.borrowed.0 == 0 {
                        next = next.min(at);
                        break;
                    }
                }
            }
            now = next;
        }
        let total: u64 = workers.iter().map(Busy::sum).sum();
        assert!((9_900_000..10_300_000).contains(&total), "{total}");
        for (session, bytes, _) in workers.iter().flat_map(|busy| &busy.0) {
            assert!(
                bytes.abs_diff(total / 4) < total / 20,
                "{session}: {bytes} of {total}"
            );
        }
    }

    #[test]
    fn any_rate_is_kept_and_a_pause_is_no_credit() {
        let seed = Seed(5);
        let mut rng = seed.rng("rates");
        for _ in 0..50 {
            let rate = Rate::from_bps(64_000 + rng.below(2_000_000_000));
            let (mut turns, bucket) = (Turns::default(), bucket(rate));
            let mut busy = Busy::new(&[1, 2]);
            let span = Duration::from_secs(2);
            let begin = Instant::now();
            let wanted = rate.amount_in(span).get();
            let slack = wanted / 50 + 2 * LEAST_TURN;
            let first = busy.run(&mut turns, &bucket, begin, span);
            assert!(first.abs_diff(wanted) < slack, "{seed}: {rate:?}: {first}");
            let later = begin + Duration::from_secs(100);
            let second = busy.run(&mut turns, &bucket, later, span) - first;
            let slack = slack + rate.amount_in(CATCH_UP).get();
            assert!(
                second.abs_diff(wanted) < slack,
                "{seed}: {rate:?}: {second}"
            );
        }
    }

    #[test]
    fn who_gave_up_does_not_hold_up_the_others() {
        let bucket = bucket(Rate::from_mbps(1));
        let mut turns = Turns::default();
        let now = Instant::now();
        drop(turns.queue(1, Waker::noop()));
        drop(turns.queue(2, Waker::noop()));
        let waits = turns.queue(2, Waker::noop());
        assert_eq!(turns.grant(&bucket, now), Given::Turn);
        assert_eq!(waits.granted.get(), Some(LEAST_TURN));
        assert_eq!(turns.grant(&bucket, now), Given::ToNobody);
        assert!(turns.waiting.is_empty());
    }
}
