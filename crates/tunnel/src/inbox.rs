//! What came in for a session's flows and waits to be taken.
//!
//! Owns the queue of each flow, and the few datagrams that overtook the stream which announces
//! them. Queues are bounded and drop the newest, as a socket's receive buffer does.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tabane_base::{Duration, Instant};
use tabane_core::{Datagram, DatagramOrder, Part, StreamId, datagram_memory};

/// Datagrams that one flow may have waiting: 10 ms at 1 Gbit/s in full packets.
const MAX_WAITING: usize = 1_024;
/// Memory of what one flow may have waiting: 1 MiB in full packets, of which a kernel's default
/// receive buffer is a fifth.
const MAX_WAITING_BYTES: usize = 1_200 << 10;
/// Memory of what all flows of a session may have waiting; one may have as much as that leaves.
const MAX_WAITING_IN_ALL: usize = 8 << 20;
/// Datagrams held for flows that nobody has announced, for the whole session: what one flow may
/// have waiting, since a program's first burst may overtake its announcement as a whole.
const MAX_HELD: usize = MAX_WAITING;
/// Memory of them.
const MAX_HELD_BYTES: usize = MAX_WAITING_BYTES;
/// How long they are held: a lost announcement is repeated within a few round trips.
const HELD_FOR: Duration = Duration::from_secs(2);

/// The datagrams of a session, sorted by flow.
#[derive(Default)]
pub(crate) struct Flows {
    inboxes: HashMap<u64, Inbox>,
    /// For flows that have no inbox, oldest first.
    held: VecDeque<(Instant, u64, Datagram)>,
    held_bytes: usize,
    /// What waits in all inboxes.
    waiting: Part,
}

/// What came in for one flow.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    /// How the other end wants the flow handed out, as its latest datagram says.
    order: DatagramOrder,
    reader: Option<Waker>,
}

impl Flows {
    /// Holds what waits in `waiting` of a pool.
    pub(crate) fn new(waiting: Part) -> Self {
        Self {
            waiting,
            ..Self::default()
        }
    }

    /// Sorts in a datagram as it came out of the session.
    pub(crate) fn handle_datagram(&mut self, now: Instant, datagram: Datagram) {
        let flow = datagram.flow.0;
        if let Some(inbox) = self.inboxes.get_mut(&flow) {
            inbox.push(datagram, &mut self.waiting);
            return;
        }
        self.expire(now);
        let held_bytes = self.held_bytes + datagram_memory(&datagram.data);
        if self.held.len() < MAX_HELD && held_bytes <= MAX_HELD_BYTES {
            self.held_bytes = held_bytes;
            self.held.push_back((now, flow, datagram));
        }
    }

    /// The inbox of the flow that `stream` stands for, made on first sight.
    pub(crate) fn inbox(&mut self, stream: StreamId, now: Instant) -> &mut Inbox {
        let flow = stream.get();
        if !self.inboxes.contains_key(&flow) {
            self.expire(now);
            let mut inbox = Inbox::default();
            let (held_bytes, waiting) = (&mut self.held_bytes, &mut self.waiting);
            self.held.retain(|(_, other, datagram)| {
                let ours = *other == flow;
                if ours {
                    *held_bytes -= datagram_memory(&datagram.data);
                    inbox.push(datagram.clone(), waiting);
                }
                !ours
            });
            self.inboxes.insert(flow, inbox);
        }
        self.inboxes.entry(flow).or_default()
    }

    pub(crate) fn close(&mut self, stream: StreamId) {
        if let Some(inbox) = self.inboxes.remove(&stream.get()) {
            self.waiting.take_off(inbox.waiting_bytes);
        }
    }

    /// The next datagram of the flow that `stream` stands for.
    pub(crate) fn poll(&mut self, stream: StreamId, now: Instant, cx: &Context<'_>) -> Poll<Bytes> {
        let polled = self.inbox(stream, now).poll(cx);
        if let Poll::Ready(payload) = &polled {
            self.waiting.take_off(datagram_memory(payload));
        }
        polled
    }

    pub(crate) fn wake_all(&mut self) {
        for inbox in self.inboxes.values_mut() {
            inbox.wake();
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((held_at, _, datagram)) = self.held.front()
            && now.since(*held_at) > HELD_FOR
        {
            self.held_bytes -= datagram_memory(&datagram.data);
            self.held.pop_front();
        }
    }
}

impl Inbox {
    /// Takes a datagram in, where there is room: `in_all` is what all inboxes of the session hold.
    fn push(&mut self, datagram: Datagram, in_all: &mut Part) {
        self.order = datagram.order;
        let payload = datagram.data;
        let bytes = datagram_memory(&payload);
        let most = MAX_WAITING_IN_ALL.min(in_all.limit());
        let left = most.saturating_sub(in_all.bytes());
        let is_full = self.waiting.len() >= MAX_WAITING
            || self.waiting_bytes + bytes > MAX_WAITING_BYTES.min(left);
        if is_full {
            return;
        }
        in_all.set(in_all.bytes() + bytes);
        self.waiting_bytes += bytes;
        self.waiting.push_back(payload);
        self.wake();
    }

    pub(crate) const fn order(&self) -> DatagramOrder {
        self.order
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Bytes> {
        match self.waiting.pop_front() {
            Some(payload) => {
                self.waiting_bytes -= datagram_memory(&payload);
                Poll::Ready(payload)
            }
            None => {
                self.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_core::{FlowId, MemoryPool};

    fn datagram(flow: u64, payload: &[u8]) -> Datagram {
        Datagram {
            flow: FlowId(flow),
            order: DatagramOrder::AtOnce,
            data: Bytes::copy_from_slice(payload),
        }
    }

    fn recv(flows: &mut Flows, flow: u64, now: Instant) -> Option<Bytes> {
        let cx = Context::from_waker(Waker::noop());
        match flows.poll(StreamId::from_wire(flow), now, &cx) {
            Poll::Ready(payload) => Some(payload),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_latest_datagram_says_how_answers_are_handed_out() {
        let mut flows = Flows::default();
        let stream = StreamId::from_wire(4);
        let order = DatagramOrder::Within(Duration::from_millis(40));
        flows.inbox(stream, Instant::EPOCH);
        flows.handle_datagram(
            Instant::EPOCH,
            Datagram {
                order,
                ..datagram(4, b"x")
            },
        );
        assert_eq!(flows.inbox(stream, Instant::EPOCH).order(), order);
    }

    #[test]
    fn what_overtakes_its_announcement_waits_for_it_but_not_for_ever() {
        let mut flows = Flows::default();
        let now = Instant::from_millis(5);
        flows.handle_datagram(now, datagram(4, b"first"));
        flows.handle_datagram(now, datagram(6, b"other"));
        flows.handle_datagram(now, datagram(4, b"second"));
        assert_eq!(recv(&mut flows, 4, now).as_deref(), Some(&b"first"[..]));
        assert_eq!(recv(&mut flows, 4, now).as_deref(), Some(&b"second"[..]));
        assert_eq!(recv(&mut flows, 4, now), None);
        let late = now + HELD_FOR + Duration::from_millis(1);
        assert_eq!(recv(&mut flows, 6, late), None);
    }

    #[test]
    fn every_queue_has_its_limit() {
        let mut flows = Flows::default();
        let now = Instant::EPOCH;
        for n in 0..2 * MAX_HELD as u64 {
            flows.handle_datagram(now, datagram(n * 2, b"x"));
        }
        assert_eq!(flows.held.len(), MAX_HELD);
        for _ in 0..100 {
            flows.handle_datagram(now + HELD_FOR * 2, datagram(2, &[0; 60_000]));
        }
        assert_eq!((flows.held.len(), flows.held_bytes), (20, 1_202_560));

        flows.inbox(StreamId::from_wire(1_000), now);
        for _ in 0..2 * MAX_WAITING {
            flows.handle_datagram(now, datagram(1_000, b"x"));
        }
        assert_eq!(flows.inboxes[&1_000].waiting.len(), MAX_WAITING);

        flows.inbox(StreamId::from_wire(1_002), now);
        let large = vec![0; 65_000];
        for _ in 0..100 {
            flows.handle_datagram(now, datagram(1_002, &large));
        }
        assert!(flows.inboxes[&1_002].waiting_bytes <= MAX_WAITING_BYTES);

        for flow in 1_003..2_000 {
            flows.inbox(StreamId::from_wire(flow), now);
            for _ in 0..20 {
                flows.handle_datagram(now, datagram(flow, &large));
            }
        }
        let sum = |flows: &Flows| {
            flows
                .inboxes
                .values()
                .map(|inbox| inbox.waiting_bytes)
                .sum()
        };
        let in_all: usize = sum(&flows);
        assert!(in_all <= MAX_WAITING_IN_ALL && in_all == flows.waiting.bytes());
        assert!(recv(&mut flows, 1_002, now).is_some());
        flows.close(StreamId::from_wire(1_003));
        assert_eq!(flows.waiting.bytes(), sum(&flows));
    }

    /// A hostile peer's cost what they occupy, not what is in them.
    #[test]
    fn datagrams_of_nothing_take_room_as_others_do() {
        let pool = MemoryPool::default();
        let mut flows = Flows::new(Part::none_of(&pool));
        let now = Instant::EPOCH;
        for flow in 0..200 {
            flows.inbox(StreamId::from_wire(flow), now);
            for _ in 0..MAX_WAITING {
                flows.handle_datagram(now, datagram(flow, b""));
            }
        }
        let waiting = flows.inboxes.values().map(|inbox| inbox.waiting.len());
        let waiting: usize = waiting.sum();
        assert!(waiting <= MAX_WAITING_IN_ALL / 100, "{waiting}");
        for flow in 0..200 {
            while recv(&mut flows, flow, now).is_some() {}
        }
        assert_eq!(flows.waiting.bytes(), 0);
    }

    #[test]
    fn a_closed_flow_keeps_nothing() {
        let mut flows = Flows::default();
        let stream = StreamId::from_wire(8);
        flows.inbox(stream, Instant::EPOCH);
        flows.handle_datagram(Instant::EPOCH, datagram(8, b"x"));
        flows.close(stream);
        assert_eq!(recv(&mut flows, 8, Instant::EPOCH), None);
    }
}
