//! A user's rate in one direction, shared by turns: over sessions, then over a session's streams.
//!
//! Owns who waits, whose turn it is, and when the next turn may come. Nothing is dropped or held
//! here: whoever waits leaves its bytes where they are, in the TCP connection or in the session,
//! and flow control there slows the sender. Knows no sockets.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
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

/// The rate and who waits for it.
#[derive(Default)]
pub(super) struct Shaper {
    turns: RefCell<Turns>,
    /// A turn that is waited for may have come nearer.
    changed: Notify,
}

#[derive(Default)]
struct Turns {
    /// `None`: as fast as it goes.
    rate: Option<Rate>,
    /// When the rate allows the next turn.
    free_at: Option<Instant>,
    /// Sessions with somebody waiting, each once; the next one is in front.
    sessions: VecDeque<u64>,
    waiting: HashMap<u64, VecDeque<Weak<Turn>>>,
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

impl Shaper {
    pub(super) fn set_rate(&self, rate: Option<Rate>) {
        let mut turns = self.turns.borrow_mut();
        if turns.rate != rate {
            turns.rate = rate;
            turns.free_at = None;
            self.changed.notify_one();
        }
    }

    /// Ready with how many bytes the stream may pass on now.
    pub(super) fn poll(
        self: &Rc<Self>,
        allowance: &mut Allowance,
        session: u64,
        cx: &Context<'_>,
    ) -> Poll<usize> {
        let mut turns = self.turns.borrow_mut();
        if turns.rate.is_none() {
            *allowance = Allowance::default();
            return Poll::Ready(usize::MAX);
        }
        loop {
            if let Ok(left @ 1..) = usize::try_from(allowance.left) {
                return Poll::Ready(left);
            }
            let granted = match &allowance.turn {
                Some(turn) => turn.granted.take(),
                None => turns.take_at_once(Instant::now()),
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
                tokio::task::spawn_local(pump(self.clone()));
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

impl Turns {
    /// A turn for somebody who asks while nobody waits.
    fn take_at_once(&mut self, now: Instant) -> Option<u64> {
        let is_due = self.free_at.is_none_or(|at| at <= now);
        (is_due && self.sessions.is_empty()).then(|| self.charge(now))
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

    /// Gives the next turn, if there is one to give; `false` when nobody waits.
    fn grant(&mut self, now: Instant) -> bool {
        while let Some(session) = self.sessions.pop_front() {
            let Some(queue) = self.waiting.get_mut(&session) else {
                continue;
            };
            // Who has given up meanwhile leaves its turn to the next in the same session.
            let turn = std::iter::from_fn(|| queue.pop_front()).find_map(|turn| turn.upgrade());
            if queue.is_empty() {
                self.waiting.remove(&session);
            } else {
                self.sessions.push_back(session);
            }
            if let Some(turn) = turn {
                turn.granted.set(Some(self.charge(now)));
                turn.waker.borrow().wake_by_ref();
                return true;
            }
        }
        false
    }

    /// Takes a turn's bytes out of the rate, and gives how many they are.
    fn charge(&mut self, now: Instant) -> u64 {
        let Some(rate) = self.rate else {
            return MOST_TURN;
        };
        let bytes = rate.amount_in(TURN).get().clamp(LEAST_TURN, MOST_TURN);
        let earliest = now.checked_sub(CATCH_UP).unwrap_or(now);
        let from = self.free_at.map_or(now, |at| at.max(earliest));
        let lasts = rate.time_for(Bytes::new(bytes));
        self.free_at = from.checked_add(lasts).or(Some(from));
        bytes
    }
}

/// Gives out turns as the rate allows, until nobody waits.
async fn pump(shaper: Rc<Shaper>) {
    loop {
        let due_at = shaper.turns.borrow().free_at;
        if let Some(at) = due_at
            && at > Instant::now()
        {
            tokio::select! {
                () = sleep_until(at) => {}
                () = shaper.changed.notified() => {}
            }
            continue;
        }
        {
            let mut turns = shaper.turns.borrow_mut();
            if !turns.grant(Instant::now()) {
                turns.is_pumped = false;
                return;
            }
        }
        // Whoever had the turn asks again before the next is given, or it would lose its place.
        tokio::task::yield_now().await;
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
        fn run(&mut self, turns: &mut Turns, from: Instant, span: Duration) -> u64 {
            let end = from + span;
            let mut now = from;
            while now < end {
                for (session, bytes, place) in &mut self.0 {
                    if let Some(granted) = place.as_ref().and_then(|turn| turn.granted.take()) {
                        *bytes += granted;
                        *place = None;
                    }
                    if place.is_none() {
                        *place = Some(turns.queue(*session, Waker::noop()));
                    }
                }
                match turns.free_at {
                    Some(at) if at > now => now = at,
                    _ => assert!(turns.grant(now)),
                }
            }
            self.0.iter().map(|(_, bytes, _)| bytes).sum()
        }
    }

    #[test]
    fn sessions_have_equal_shares_whatever_the_number_of_their_streams() {
        let mut turns = Turns {
            rate: Some(Rate::from_mbps(50)),
            ..Turns::default()
        };
        let mut busy = Busy::new(&[1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        let total = busy.run(&mut turns, Instant::now(), Duration::from_secs(1));
        assert!((6_200_000..6_300_000).contains(&total), "{total}");
        let first = busy.0[0].1;
        assert!(first.abs_diff(total / 2) < 30_000, "{first} of {total}");
        for (_, bytes, _) in &busy.0[1..] {
            assert!(bytes.abs_diff(total / 20) < 30_000, "{bytes} of {total}");
        }
    }

    #[test]
    fn any_rate_is_kept_and_a_pause_is_no_credit() {
        let seed = Seed(5);
        let mut rng = seed.rng("rates");
        for _ in 0..50 {
            let rate = Rate::from_bps(64_000 + rng.below(2_000_000_000));
            let mut turns = Turns {
                rate: Some(rate),
                ..Turns::default()
            };
            let mut busy = Busy::new(&[1, 2]);
            let span = Duration::from_secs(2);
            let begin = Instant::now();
            let wanted = rate.amount_in(span).get();
            let slack = wanted / 50 + 2 * LEAST_TURN;
            let first = busy.run(&mut turns, begin, span);
            assert!(first.abs_diff(wanted) < slack, "{seed}: {rate:?}: {first}");
            let later = begin + Duration::from_secs(100);
            let second = busy.run(&mut turns, later, span) - first;
            let slack = slack + rate.amount_in(CATCH_UP).get();
            assert!(
                second.abs_diff(wanted) < slack,
                "{seed}: {rate:?}: {second}"
            );
        }
    }

    #[test]
    fn who_gave_up_does_not_hold_up_the_others() {
        let mut turns = Turns {
            rate: Some(Rate::from_mbps(1)),
            ..Turns::default()
        };
        let now = Instant::now();
        drop(turns.queue(1, Waker::noop()));
        drop(turns.queue(2, Waker::noop()));
        let waits = turns.queue(2, Waker::noop());
        assert!(turns.grant(now));
        assert_eq!(waits.granted.get(), Some(LEAST_TURN));
        assert!(!turns.grant(now), "nobody is left");
        assert!(turns.waiting.is_empty());
    }
}
