//! Datagrams waiting to leave: a queue per flow, flows in turn, and what is dropped.
//!
//! Flows that send little go before those that send much, which take turns by bytes (the queues
//! of FQ-CoDel, RFC 8290). A queue that stays long is shortened from its front, ever faster
//! (CoDel, RFC 8289): what has waited longest is worth least, and the sender learns soonest. What
//! has waited [`limit`](Outbox::new) is dropped in any case. A burst may take so long; of a backlog
//! that goes on, what is older than its own deadline is dropped. Numbers are given when datagrams
//! leave, so what is dropped here leaves no gap.

mod codel;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tabane_base::{Duration, Instant};

use super::OVERHEAD;
use super::label::{DatagramOrder, FlowId, Label, Place};
use crate::class::{ByClass, ClassId};
use crate::memory_pool::take_off;
use crate::turns::{Turn, Turns as Order};
use codel::Codel;

/// Memory of what waits of all flows, 512 kB in full packets; beyond, new ones are refused.
const MAX_QUEUED: usize = 576 * 1024;
/// Flows of which the numbering is remembered: as many as a client may have.
const MAX_FLOWS: usize = 1_024;
/// What a flow may send before it is another's turn: a full packet's data.
const QUANTUM: i64 = 1_472;
/// Of a flow of which less waits, such as questions of a few packets during an outage, nothing is
/// dropped for its deadline.
const BACKLOG: usize = 16 * QUANTUM as usize;

/// So often in [`limit`](Outbox::new) all flows may be looked through, while too much waits.
const SWEEPS: u32 = 8;

/// A datagram that waits.
#[derive(Debug)]
struct Waiting {
    data: Bytes,
    order: DatagramOrder,
    since: Instant,
}

/// Since when, and when last, a queue's first datagram was older than its deadline.
#[derive(Clone, Copy, Debug)]
struct Overdue {
    since: Instant,
    last: Instant,
}

/// Whose turn it is within one class.
#[derive(Debug, Default)]
struct Turns {
    /// Flows that have just begun to send.
    new: Order<FlowId>,
    old: Order<FlowId>,
    /// Of all their datagrams that wait.
    bytes: usize,
}

/// One flow's queue.
#[derive(Debug, Default)]
struct Queue {
    /// Among whose flows it takes turns.
    class: ClassId,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// Bytes it may send in its turn.
    deficit: i64,
    /// Its place among those whose turn comes: whether of the new ones, and which.
    listed: Option<(bool, Turn)>,
    next_number: u64,
    codel: Codel,
    overdue: Option<Overdue>,
    used_at: Instant,
}

/// What waits to leave a session.
#[derive(Debug)]
pub(crate) struct Outbox {
    limit: Duration,
    queues: BTreeMap<FlowId, Queue>,
    /// Flows of different classes do not wait for each other.
    turns: ByClass<Turns>,
    /// Up to it are those that had to make room for others. They go on from `next_number`, so that
    /// they do not seem to repeat themselves.
    last_displaced: Option<FlowId>,
    next_number: u64,
    /// How many datagrams wait.
    count: usize,
    /// When all flows were looked through for what has waited too long.
    swept_at: Instant,
    dropped: u64,
}

impl Outbox {
    /// Drops what waits longer than `limit`; a sixth of it may stand.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            queues: BTreeMap::new(),
            turns: ByClass::default(),
            last_displaced: None,
            next_number: 0,
            count: 0,
            swept_at: Instant::EPOCH,
            dropped: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.turns.iter().map(|turns| turns.bytes).sum()
    }

    pub(crate) fn bytes_in(&self, class: ClassId) -> usize {
        self.turns.get(class).map_or(0, |turns| turns.bytes)
    }

    /// Memory that what waits occupies.
    fn held(&self) -> usize {
        self.bytes() + self.count * OVERHEAD
    }

    /// Datagrams dropped because they had waited too long.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn is_empty(&self, class: ClassId) -> bool {
        let turns = self.turns.get(class);
        turns.is_none_or(|turns| turns.new.is_empty() && turns.old.is_empty())
    }

    /// Has a flow take turns in another class, with all that waits of it.
    pub(crate) fn set_class(&mut self, flow: FlowId, class: ClassId) {
        let Some(queue) = self.queues.get_mut(&flow) else {
            return;
        };
        let before = std::mem::replace(&mut queue.class, class);
        if before == class {
            return;
        }
        self.turns.get_mut(before).unlist(queue);
        let turns = self.turns.get_mut(class);
        turns.bytes += queue.bytes;
        if queue.listed.is_some() {
            queue.listed = Some((false, turns.old.push_back(flow)));
        }
    }

    /// Queues a datagram of a flow of `class`; `false` when too much waits.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        (flow, class): (FlowId, ClassId),
        order: DatagramOrder,
        data: &[u8],
    ) -> bool {
        let is_full = |all: &Self| all.held() + OVERHEAD + data.len() > MAX_QUEUED;
        if is_full(self) {
            self.sweep(now);
            if is_full(self) {
                return false;
            }
        }
        self.make_room_for(flow);
        self.set_class(flow, class);
        let may_go_on = self.last_displaced.is_some_and(|last| flow <= last);
        let next_number = if may_go_on { self.next_number } else { 0 };
        let queue = self.queues.entry(flow).or_insert_with(|| Queue {
            next_number,
            class,
            ..Queue::default()
        });
        queue.used_at = now;
        queue.bytes += data.len();
        let turns = self.turns.get_mut(class);
        turns.bytes += data.len();
        self.count += 1;
        queue.waiting.push_back(Waiting {
            data: Bytes::copy_from_slice(data),
            order,
            since: now,
        });
        if queue.listed.is_none() {
            queue.deficit = QUANTUM;
            queue.listed = Some((true, turns.new.push_back(flow)));
        }
        true
    }

    /// Size of a class's next datagram, after dropping what has waited too long.
    pub(crate) fn peek(&mut self, now: Instant, class: ClassId) -> Option<(FlowId, usize)> {
        loop {
            let turns = self.turns.get(class)?;
            let (flow, is_new) = match (turns.new.iter().next(), turns.old.iter().next()) {
                (Some(flow), _) => (*flow, true),
                (None, Some(flow)) => (*flow, false),
                (None, None) => return None,
            };
            if let Some(size) = self.review(now, class, flow, is_new) {
                return Some((flow, size));
            }
        }
    }

    /// The size of the first datagram of the flow whose turn it seems to be; `None` when the turn
    /// went on.
    fn review(
        &mut self,
        now: Instant,
        class: ClassId,
        flow: FlowId,
        is_new: bool,
    ) -> Option<usize> {
        let limit = self.limit;
        let turns = self.turns.get_mut(class);
        let queue = self.queues.get_mut(&flow);
        if let Some(queue) = queue {
            while let Some(size) = queue.waiting.front().map(|front| front.data.len()) {
                if !queue.drops_first(now, limit) {
                    if queue.deficit > 0 {
                        return Some(size);
                    }
                    queue.deficit += QUANTUM;
                    turns.go_on(is_new);
                    queue.listed = Some((false, turns.old.push_back(flow)));
                    return None;
                }
                queue.pop(turns, &mut self.count);
                self.dropped += 1;
            }
            // Whoever leaves the new ones goes behind the old, so that these are not starved.
            if is_new && !turns.old.is_empty() {
                turns.go_on(is_new);
                queue.listed = Some((false, turns.old.push_back(flow)));
                return None;
            }
            queue.listed = None;
        }
        turns.go_on(is_new);
        None
    }

    /// Takes what [`peek`](Self::peek) showed, with its label: `lead` is how much earlier its path
    /// brings it than the slowest the flow uses.
    pub(crate) fn take(&mut self, flow: FlowId, lead: Duration) -> Option<(Label, Bytes)> {
        let queue = self.queues.get_mut(&flow)?;
        let turns = self.turns.get_mut(queue.class);
        let Waiting { data, order, .. } = queue.pop(turns, &mut self.count)?;
        queue.deficit -= data.len().max(1) as i64;
        let place = match order {
            DatagramOrder::AtOnce => None,
            DatagramOrder::Within(deadline) => {
                let number = queue.next_number;
                queue.next_number += 1;
                Some(Place {
                    number,
                    deadline,
                    lead,
                })
            }
        };
        Some((Label { flow, place }, data))
    }

    /// The flow is over; what waits of it goes.
    pub(crate) fn forget(&mut self, flow: FlowId) {
        if let Some(queue) = self.queues.remove(&flow) {
            self.turns.get_mut(queue.class).unlist(&queue);
            take_off(&mut self.count, queue.waiting.len());
        }
    }

    /// Drops what of any flow has waited too long: where no path is there for a class, no turn
    /// comes that would. Takes as long as there are flows, so not each time that one is refused.
    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept_at) < self.limit / SWEEPS {
            return;
        }
        self.swept_at = now;
        for queue in self.queues.values_mut() {
            let turns = self.turns.get_mut(queue.class);
            while let Some(first) = queue.waiting.front()
                && now.since(first.since) > self.limit
            {
                queue.pop(turns, &mut self.count);
                self.dropped += 1;
            }
        }
    }

    fn make_room_for(&mut self, flow: FlowId) {
        if self.queues.len() < MAX_FLOWS || self.queues.contains_key(&flow) {
            return;
        }
        let oldest = self.queues.iter().min_by_key(|(_, queue)| queue.used_at);
        if let Some((oldest, number)) = oldest.map(|(flow, queue)| (*flow, queue.next_number)) {
            self.last_displaced = self.last_displaced.max(Some(oldest));
            self.next_number = self.next_number.max(number);
            self.forget(oldest);
        }
    }
}

impl Queue {
    /// Takes the first of those that wait off, and off what is counted.
    fn pop(&mut self, turns: &mut Turns, count: &mut usize) -> Option<Waiting> {
        let first = self.waiting.pop_front()?;
        take_off(&mut self.bytes, first.data.len());
        take_off(&mut turns.bytes, first.data.len());
        take_off(count, 1);
        Some(first)
    }

    /// Whether the first of those that wait has waited too long.
    fn drops_first(&mut self, now: Instant, limit: Duration) -> bool {
        let Some(first) = self.waiting.front() else {
            return false;
        };
        let waited = now.since(first.since);
        let is_last = self.bytes <= first.data.len().max(QUANTUM as usize);
        let is_overdue = match first.order {
            DatagramOrder::Within(deadline) if waited > deadline => {
                let since = Overdue::note(&mut self.overdue, now, limit);
                let grace = limit.saturating_sub(deadline);
                self.bytes > BACKLOG && now.since(since) > grace
            }
            DatagramOrder::Within(_) | DatagramOrder::AtOnce => false,
        };
        waited > limit || is_overdue || self.codel.drops_now(now, waited, is_last, limit)
    }
}

impl Turns {
    fn go_on(&mut self, is_new: bool) {
        if is_new {
            self.new.pop_front(true);
        } else {
            self.old.pop_front(true);
        }
    }

    /// A flow is not of the class any more.
    fn unlist(&mut self, queue: &Queue) {
        take_off(&mut self.bytes, queue.bytes);
        match queue.listed {
            Some((true, turn)) => self.new.remove(turn),
            Some((false, turn)) => self.old.remove(turn),
            None => {}
        }
    }
}

impl Overdue {
    /// It is so now; gives since when, interruptions shorter than `limit` included.
    fn note(overdue: &mut Option<Self>, now: Instant, limit: Duration) -> Instant {
        let before = overdue.filter(|before| now.since(before.last) <= limit);
        let since = before.map_or(now, |before| before.since);
        *overdue = Some(Self { since, last: now });
        since
    }
}

#[cfg(test)]
mod tests;
