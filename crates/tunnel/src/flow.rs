//! UDP flows: datagrams whose flow has the number of the stream that stands for it [P-T].
//!
//! Owns the queue of each flow, which flows are handed out in order, and the few datagrams that
//! overtook the stream which announces them. Queues are bounded and drop the newest, as a socket's
//! receive buffer does. When a flow begins and ends is decided where its stream is.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tabane_base::{Duration, Instant};
use tabane_core::{Datagram, DatagramError, DatagramOrder, FlowId, Part, StreamId};

use crate::request::Status;
use crate::stream::Stream;
use crate::target::Target;

/// The most one datagram of a flow may carry, in bytes: what UDP over IPv4 does.
pub const MAX_FLOW_PAYLOAD: usize = 65_507;

/// Ports of protocols that ask and are answered, a datagram each: there is nothing to put in
/// order. DNS, NTP, SNMP, mDNS, STUN.
const AT_ONCE_PORTS: [u16; 5] = [53, 123, 161, 5353, 3478];

/// How flows to `target` are handed out when users want `wanted`.
pub(crate) fn order_for(target: &Target, wanted: DatagramOrder) -> DatagramOrder {
    let port = match target {
        Target::Resolver | Target::Anywhere => return DatagramOrder::AtOnce,
        Target::Address(address) => address.port(),
        Target::Name { port, .. } => *port,
    };
    match AT_ONCE_PORTS.contains(&port) {
        true => DatagramOrder::AtOnce,
        false => wanted,
    }
}

/// Datagrams that one flow may have waiting: 10 ms at 1 Gbit/s in full packets.
const MAX_WAITING: usize = 1_024;

/// Bytes that one flow may have waiting; a kernel's default receive buffer is a fifth of it.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// Bytes that all flows of a session may have waiting; one may have as much as that leaves.
const MAX_WAITING_IN_ALL: usize = 8 << 20;

/// Datagrams held for flows that nobody has announced, for the whole session: what one flow may
/// have waiting, since a program's first burst may overtake its announcement as a whole.
const MAX_HELD: usize = MAX_WAITING;

/// Bytes of them.
const MAX_HELD_BYTES: usize = MAX_WAITING_BYTES;

/// How long they are held: a lost announcement is repeated within a few round trips.
const HELD_FOR: Duration = Duration::from_secs(2);

/// Why a datagram was not taken or none will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// Longer than [`MAX_FLOW_PAYLOAD`].
    #[error("a datagram may have at most {MAX_FLOW_PAYLOAD} bytes")]
    TooLarge,
    /// What was sent did not reach anybody, says the destination's host or a router. The flow goes
    /// on.
    #[error("{0}")]
    Undelivered(Status),
    /// The relay refused the flow.
    #[error("{0}")]
    Refused(Status),
    /// The relay ended the flow, usually because nothing passed for a while. Open another one.
    #[error("the flow has ended")]
    Ended,
    /// The session ended. Flows of the next session can be opened.
    #[error("the session to the relay ended")]
    SessionLost,
}

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
        let held_bytes = self.held_bytes + datagram.data.len();
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
                    *held_bytes -= datagram.data.len();
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
            self.waiting.set(self.waiting.bytes() - inbox.waiting_bytes);
        }
    }

    /// The next datagram of the flow that `stream` stands for.
    pub(crate) fn poll(&mut self, stream: StreamId, now: Instant, cx: &Context<'_>) -> Poll<Bytes> {
        let polled = self.inbox(stream, now).poll(cx);
        if let Poll::Ready(payload) = &polled {
            self.waiting.set(self.waiting.bytes() - payload.len());
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
            self.held_bytes -= datagram.data.len();
            self.held.pop_front();
        }
    }
}

impl Inbox {
    /// Takes a datagram in, where there is room: `in_all` is what all inboxes of the session hold.
    fn push(&mut self, datagram: Datagram, in_all: &mut Part) {
        self.order = datagram.order;
        let payload = datagram.data;
        let most = MAX_WAITING_IN_ALL.min(in_all.limit());
        let left = most.saturating_sub(in_all.bytes());
        let is_full = self.waiting.len() >= MAX_WAITING
            || self.waiting_bytes + payload.len() > MAX_WAITING_BYTES.min(left);
        if is_full {
            return;
        }
        in_all.set(in_all.bytes() + payload.len());
        self.waiting_bytes += payload.len();
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
                self.waiting_bytes -= payload.len();
                Poll::Ready(payload)
            }
            None => {
                self.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// One end of a flow, at the client or at the relay. Ends with its stream.
pub(crate) struct Flow {
    stream: Stream,
    /// How what we send is to be handed out; `None`: as the other end wants what it sends.
    order: Option<DatagramOrder>,
    /// Datagrams that core's queue did not take; UDP promises no more.
    dropped: Cell<u64>,
}

impl Flow {
    /// The flow that `stream` stands for, with the order that this end wants, if it has a say.
    pub(crate) fn new(stream: Stream, order: Option<DatagramOrder>) -> Self {
        let id = stream.id();
        stream.visit(|visit| {
            visit.inbox(id);
        });
        let dropped = Cell::new(0);
        Self {
            stream,
            order,
            dropped,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Sends a datagram that `fill` writes into the memory it is given, and returns its length.
    /// `Ok(0)` where it was empty or `fill` failed with `WouldBlock`.
    pub(crate) fn send_with(
        &self,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Result<usize, FlowError>> {
        self.send_part(self.order, |buffer| {
            Ok(0..fill(&mut buffer[..MAX_FLOW_PAYLOAD])?)
        })
    }

    /// The same with a datagram that wants this order, where `fill` has put it somewhere in the
    /// memory it is given: [`MAX_FLOW_PAYLOAD`] and more.
    pub(crate) fn send_part(
        &self,
        order: Option<DatagramOrder>,
        fill: impl FnOnce(&mut [u8]) -> io::Result<Range<usize>>,
    ) -> io::Result<Result<usize, FlowError>> {
        let id = self.stream.id();
        let sent = self.stream.visit(|visit| {
            let part = fill(visit.buffer)?;
            let len = part.len();
            let said = self.stream.label.as_ref();
            let said = said.and_then(|label| label.treatment().order);
            let order = said.or(order);
            let order = order.unwrap_or_else(|| visit.inbox(id).order());
            let datagram = &visit.buffer[part];
            let flow = FlowId(id.get());
            match visit
                .session
                .send_datagram(visit.now, flow, order, datagram)
            {
                Ok(()) => {
                    visit.touch();
                    if let Some(label) = &self.stream.label {
                        label.on_sent(len);
                    }
                }
                Err(DatagramError::TooLarge) => return Ok(Err(FlowError::TooLarge)),
                Err(_) => self.dropped.set(self.dropped.get() + 1),
            }
            Ok(Ok(len))
        });
        sent.unwrap_or(Ok(Err(FlowError::SessionLost)))
    }

    /// The next datagram; `None` once the session has ended.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let id = self.stream.id();
        match self.stream.visit(|visit| visit.poll_datagram(id, cx)) {
            Some(Poll::Ready(payload)) => {
                if let Some(label) = &self.stream.label {
                    label.on_received(payload.len());
                }
                Poll::Ready(Some(payload))
            }
            Some(Poll::Pending) => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

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
    fn questions_are_answered_at_once_and_the_rest_comes_in_order() {
        let wanted = DatagramOrder::Within(Duration::from_millis(25));
        let to = |address: &str| Target::Address(address.parse().unwrap());
        for (target, order) in [
            (Target::Resolver, DatagramOrder::AtOnce),
            (to("192.0.2.1:53"), DatagramOrder::AtOnce),
            (to("[2001:db8::1]:123"), DatagramOrder::AtOnce),
            (to("192.0.2.1:443"), wanted),
            (Target::host("a.example", 5201).unwrap(), wanted),
        ] {
            assert_eq!(order_for(&target, wanted), order, "{target:?}");
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
        assert_eq!((flows.held.len(), flows.held_bytes), (17, 1_020_000));

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
