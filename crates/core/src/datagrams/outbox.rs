//! Datagrams waiting to leave: a queue per flow, flows in turn, and what is dropped.
//!
//! Flows that send little go before those that send much, which take turns by bytes (the queues
//! of FQ-CoDel, RFC 8290). A queue that stays long is shortened from its front, ever faster
//! (CoDel, RFC 8289): what has waited longest is worth least, and the sender learns soonest. What
//! has waited [`limit`](Outbox::new) is dropped in any case. A burst may take so long; of a backlog
//! that goes on, what is older than its own deadline is dropped. Numbers are given when datagrams
//! leave, so what is dropped here leaves no gap.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tabane_base::{Duration, Instant};

use super::label::{DatagramOrder, FlowId, Label, Place};

/// Bytes waiting for all flows; beyond, new ones are refused.
const MAX_QUEUED: usize = 512 * 1024;
/// Flows of which the numbering is remembered: as many as a client may have.
const MAX_FLOWS: usize = 1_024;
/// What a flow may send before it is another's turn: a full packet's data.
const QUANTUM: i64 = 1_472;
/// Of a flow of which less waits, such as questions of a few packets during an outage, nothing is
/// dropped for its deadline.
const BACKLOG: usize = 16 * QUANTUM as usize;
/// CoDel's target as a part of its interval, and of the limit: a standing queue may be so long.
const TARGET_PART: u32 = 6;

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

/// CoDel's control of one queue (RFC 8289 §5).
#[derive(Debug, Default)]
struct Codel {
    /// When the queue will have been too long for an interval.
    above_until: Option<Instant>,
    /// While dropping: when the next one is due.
    drop_at: Option<Instant>,
    drops: u32,
}

/// Whose turn it is within one lane.
#[derive(Debug, Default)]
struct Turns {
    /// Flows that have just begun to send.
    new: VecDeque<FlowId>,
    old: VecDeque<FlowId>,
    /// Of all their datagrams that wait.
    bytes: usize,
}

/// One flow's queue.
#[derive(Debug, Default)]
struct Queue {
    /// Among which flows it takes turns.
    lane: usize,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// Bytes it may send in its turn.
    deficit: i64,
    /// Has its place among those whose turn comes.
    listed: bool,
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
    /// By lane: flows of different lanes do not wait for each other.
    lanes: Vec<Turns>,
    /// Flows that begin anew number their datagrams from here: a forgotten one must not seem to
    /// repeat itself.
    first_number: u64,
    dropped: u64,
}

impl Outbox {
    /// Drops what waits longer than `limit`; a sixth of it may stand.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            queues: BTreeMap::new(),
            lanes: vec![Turns::default()],
            first_number: 0,
            dropped: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lanes.iter().map(|turns| turns.bytes).sum()
    }

    pub(crate) fn bytes_in(&self, lane: usize) -> usize {
        self.lanes.get(lane).map_or(0, |turns| turns.bytes)
    }

    /// Datagrams dropped because they had waited too long.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn is_empty(&self, lane: usize) -> bool {
        let turns = self.lanes.get(lane);
        turns.is_none_or(|turns| turns.new.is_empty() && turns.old.is_empty())
    }

    /// There are so many lanes from here on.
    pub(crate) fn add_lanes(&mut self, count: usize) {
        let count = count.max(self.lanes.len());
        self.lanes.resize_with(count, Turns::default);
    }

    /// Has a flow take turns in another lane, with all that waits of it.
    pub(crate) fn set_lane(&mut self, flow: FlowId, lane: usize) {
        let Some(queue) = self.queues.get_mut(&flow) else {
            return;
        };
        let before = std::mem::replace(&mut queue.lane, lane);
        if before == lane {
            return;
        }
        let (bytes, listed) = (queue.bytes, queue.listed);
        self.unlist(flow, before, bytes);
        let turns = &mut self.lanes[lane];
        turns.bytes += bytes;
        if listed {
            turns.old.push_back(flow);
        }
    }

    fn unlist(&mut self, flow: FlowId, lane: usize, bytes: usize) {
        let turns = &mut self.lanes[lane];
        turns.bytes -= bytes;
        turns.new.retain(|other| *other != flow);
        turns.old.retain(|other| *other != flow);
    }

    /// Queues a datagram of a flow in `lane`; `false` when too much waits.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        (flow, lane): (FlowId, usize),
        order: DatagramOrder,
        data: &[u8],
    ) -> bool {
        if self.bytes() + data.len() > MAX_QUEUED {
            return false;
        }
        self.make_room_for(flow);
        self.add_lanes(lane + 1);
        self.set_lane(flow, lane);
        let first_number = self.first_number;
        let queue = self.queues.entry(flow).or_insert_with(|| Queue {
            next_number: first_number,
            lane,
            ..Queue::default()
        });
        queue.used_at = now;
        queue.bytes += data.len();
        let turns = &mut self.lanes[lane];
        turns.bytes += data.len();
        queue.waiting.push_back(Waiting {
            data: Bytes::copy_from_slice(data),
            order,
            since: now,
        });
        if !std::mem::replace(&mut queue.listed, true) {
            queue.deficit = QUANTUM;
            turns.new.push_back(flow);
        }
        true
    }

    /// Size of a lane's next datagram, after dropping what has waited too long.
    pub(crate) fn peek(&mut self, now: Instant, lane: usize) -> Option<(FlowId, usize)> {
        loop {
            let turns = self.lanes.get(lane)?;
            let (flow, is_new) = match (turns.new.front(), turns.old.front()) {
                (Some(flow), _) => (*flow, true),
                (None, Some(flow)) => (*flow, false),
                (None, None) => return None,
            };
            if let Some(size) = self.review(now, lane, flow, is_new) {
                return Some((flow, size));
            }
        }
    }

    /// The size of the first datagram of the flow whose turn it seems to be; `None` when the turn
    /// went on.
    fn review(&mut self, now: Instant, lane: usize, flow: FlowId, is_new: bool) -> Option<usize> {
        let limit = self.limit;
        let turns = &mut self.lanes[lane];
        let queue = self.queues.get_mut(&flow);
        if let Some(queue) = queue {
            while let Some(front) = queue.waiting.front() {
                let waited = now.since(front.since);
                let size = front.data.len();
                let is_last = queue.bytes <= size.max(QUANTUM as usize);
                let is_overdue = match front.order {
                    DatagramOrder::Within(deadline) if waited > deadline => {
                        let since = Overdue::note(&mut queue.overdue, now, limit);
                        let grace = limit.saturating_sub(deadline);
                        queue.bytes > BACKLOG && now.since(since) > grace
                    }
                    DatagramOrder::Within(_) | DatagramOrder::AtOnce => false,
                };
                if waited <= limit
                    && !is_overdue
                    && !queue.codel.drops_now(now, waited, is_last, limit)
                {
                    if queue.deficit > 0 {
                        return Some(size);
                    }
                    queue.deficit += QUANTUM;
                    turns.go_on(is_new);
                    turns.old.push_back(flow);
                    return None;
                }
                queue.waiting.pop_front();
                queue.bytes -= size;
                turns.bytes -= size;
                self.dropped += 1;
            }
            // Whoever leaves the new ones goes behind the old, so that these are not starved.
            if is_new && !turns.old.is_empty() {
                turns.go_on(is_new);
                turns.old.push_back(flow);
                return None;
            }
            queue.listed = false;
        }
        turns.go_on(is_new);
        None
    }

    /// Takes what [`peek`](Self::peek) showed, with its label: `lead` is how much earlier its path
    /// brings it than the slowest the flow uses.
    pub(crate) fn take(&mut self, flow: FlowId, lead: Duration) -> Option<(Label, Bytes)> {
        let queue = self.queues.get_mut(&flow)?;
        let Waiting { data, order, .. } = queue.waiting.pop_front()?;
        queue.bytes -= data.len();
        self.lanes[queue.lane].bytes -= data.len();
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
            self.unlist(flow, queue.lane, queue.bytes);
            self.first_number = self.first_number.max(queue.next_number);
        }
    }

    fn make_room_for(&mut self, flow: FlowId) {
        if self.queues.len() < MAX_FLOWS || self.queues.contains_key(&flow) {
            return;
        }
        let oldest = self.queues.iter().min_by_key(|(_, queue)| queue.used_at);
        if let Some(oldest) = oldest.map(|(flow, _)| *flow) {
            self.forget(oldest);
        }
    }
}

impl Turns {
    fn go_on(&mut self, is_new: bool) {
        if is_new {
            self.new.pop_front();
        } else {
            self.old.pop_front();
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

impl Codel {
    /// Whether the datagram at the front, which has `waited`, is to be dropped.
    fn drops_now(
        &mut self,
        now: Instant,
        waited: Duration,
        is_last: bool,
        interval: Duration,
    ) -> bool {
        if is_last || waited < interval / TARGET_PART {
            self.above_until = None;
            self.drop_at = None;
            return false;
        }
        let Some(until) = self.above_until else {
            self.above_until = Some(now + interval);
            return false;
        };
        match self.drop_at {
            None if until <= now => {
                // Soon after the last time, it goes on where it had been.
                self.drops = (self.drops / 2).max(1);
                self.drop_at = Some(now + self.pause(interval));
                true
            }
            Some(at) if at <= now => {
                self.drops = self.drops.saturating_add(1);
                self.drop_at = Some(at + self.pause(interval));
                true
            }
            None | Some(_) => false,
        }
    }

    /// The control law: an interval over the square root of how many were dropped.
    fn pause(&self, interval: Duration) -> Duration {
        interval.div_f64(f64::from(self.drops.max(1)).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    fn push(outbox: &mut Outbox, now: Instant, flow: u64, len: usize) {
        assert!(outbox.push(now, (FlowId(flow), 0), DatagramOrder::AtOnce, &vec![0; len]));
    }

    fn take(outbox: &mut Outbox, now: Instant) -> Option<u64> {
        let (flow, _) = outbox.peek(now, 0)?;
        outbox
            .take(flow, Duration::ZERO)
            .map(|(label, _)| label.flow.0)
    }

    #[test]
    fn a_flow_that_sends_little_does_not_wait_for_one_that_sends_much() {
        let mut outbox = Outbox::new(LIMIT);
        let now = Instant::EPOCH;
        (0..50).for_each(|_| push(&mut outbox, now, 1, 1_000));
        for _ in 0..5 {
            take(&mut outbox, now);
        }
        push(&mut outbox, now, 2, 100);
        assert_eq!(take(&mut outbox, now), Some(2));
        // Two that send much take turns by bytes.
        (0..50).for_each(|_| push(&mut outbox, now, 3, 500));
        let mut bytes = [0; 2];
        for _ in 0..40 {
            match take(&mut outbox, now) {
                Some(1) => bytes[0] += 1_000_i32,
                Some(3) => bytes[1] += 500,
                other => panic!("{other:?}"),
            }
        }
        assert!(
            (bytes[0] - bytes[1]).abs() <= 2 * QUANTUM as i32,
            "{bytes:?}"
        );
    }

    /// A queue fed at twice the rate at which it is emptied: the longest wait of the last second,
    /// and how many were dropped.
    #[test]
    fn a_queue_that_stays_long_is_shortened_from_the_front_and_nothing_waits_for_ever() {
        let mut outbox = Outbox::new(LIMIT);
        let mut taken = 0;
        for ms in 0..3_000 {
            let now = Instant::from_millis(ms);
            push(&mut outbox, now, 1, 1_000);
            if ms % 2 == 0 {
                taken += u64::from(take(&mut outbox, now).is_some());
            }
            assert!(outbox.bytes() <= 102_000, "{}", outbox.bytes());
        }
        assert_eq!(taken, 1_500);
        assert!(outbox.dropped() > 1_300, "{}", outbox.dropped());
        let late = Instant::from_millis(10_000);
        assert_eq!(take(&mut outbox, late), None);
        assert_eq!((outbox.bytes(), outbox.is_empty(0)), (0, true));
    }

    /// A flow with a deadline that sends more than passes: once that has gone on for as long as a
    /// burst may take, hardly anything is older than the deadline.
    #[test]
    fn of_a_backlog_that_goes_on_what_is_older_than_its_deadline_is_dropped() {
        let deadline = Duration::from_millis(25);
        let mut outbox = Outbox::new(LIMIT);
        let mut oldest = Duration::ZERO;
        for ms in 0..1_000 {
            let now = Instant::from_millis(ms);
            for _ in 0..2 {
                let sent = outbox.push(
                    now,
                    (FlowId(1), 0),
                    DatagramOrder::Within(deadline),
                    &(ms as u32).to_be_bytes().repeat(250),
                );
                assert!(sent);
            }
            let (flow, _) = outbox.peek(now, 0).expect("it waits");
            let (_, data) = outbox.take(flow, Duration::ZERO).expect("it waits");
            let sent_ms = u32::from_be_bytes(data[..4].try_into().expect("four bytes"));
            let waited = now.since(Instant::from_millis(u64::from(sent_ms)));
            if ms < 100 {
                assert_eq!(outbox.dropped(), 0, "a burst of {ms} ms");
            } else if ms > 300 {
                oldest = oldest.max(waited);
            }
        }
        assert!(oldest <= deadline, "{oldest:?}");
    }

    #[test]
    fn a_few_packets_outlive_their_deadline() {
        let mut outbox = Outbox::new(LIMIT);
        let order = DatagramOrder::Within(Duration::from_millis(1));
        for _ in 0..10 {
            assert!(outbox.push(Instant::EPOCH, (FlowId(1), 0), order, &[0; 1_000]));
        }
        let taken = (0..10).filter(|i| take(&mut outbox, Instant::from_millis(90 + i)).is_some());
        assert_eq!((taken.count(), outbox.dropped()), (10, 0));
    }

    #[test]
    fn a_burst_that_drains_loses_nothing() {
        let mut outbox = Outbox::new(LIMIT);
        (0..80).for_each(|_| push(&mut outbox, Instant::EPOCH, 1, 1_000));
        for ms in 0..80 {
            assert_eq!(take(&mut outbox, Instant::from_millis(ms)), Some(1));
        }
        assert_eq!(outbox.dropped(), 0);
    }

    #[test]
    fn numbers_grow_without_gaps_and_never_repeat_even_when_flows_are_forgotten() {
        let mut outbox = Outbox::new(LIMIT);
        let order = DatagramOrder::Within(Duration::from_millis(25));
        let mut last = BTreeMap::new();
        for round in 0..3 {
            for flow in 0..2 * MAX_FLOWS as u64 {
                let now = Instant::from_millis(round * 10_000 + flow);
                assert!(outbox.push(now, (FlowId(flow), 0), order, b"x"));
                let (flow, _) = outbox.peek(now, 0).expect("it waits");
                let (label, _) = outbox.take(flow, Duration::ZERO).expect("it waits");
                let number = label.place.expect("it is in order").number;
                let before = last.insert(flow, number);
                assert!(before.is_none_or(|before| before < number), "{flow:?}");
            }
        }
        assert_eq!(outbox.queues.len(), MAX_FLOWS);
    }

    #[test]
    fn too_much_is_refused() {
        let mut outbox = Outbox::new(LIMIT);
        let big = vec![0; 60_000];
        let taken = (0..20)
            .filter(|_| outbox.push(Instant::EPOCH, (FlowId(1), 0), DatagramOrder::AtOnce, &big));
        assert_eq!(taken.count(), 8);
    }

    #[test]
    fn a_flow_that_changes_its_lane_takes_along_what_waits() {
        let mut outbox = Outbox::new(LIMIT);
        let now = Instant::EPOCH;
        (0..3).for_each(|_| push(&mut outbox, now, 1, 1_000));
        push(&mut outbox, now, 2, 100);
        assert!(outbox.push(now, (FlowId(1), 1), DatagramOrder::AtOnce, b"x"));
        assert_eq!((outbox.bytes_in(0), outbox.bytes_in(1)), (100, 3_001));
        assert_eq!(take(&mut outbox, now), Some(2));
        assert!(outbox.is_empty(0) || outbox.peek(now, 0).is_none());
        assert_eq!(outbox.peek(now, 1), Some((FlowId(1), 1_000)));
        outbox.forget(FlowId(1));
        assert_eq!((outbox.bytes(), outbox.peek(now, 1)), (0, None));
    }
}
