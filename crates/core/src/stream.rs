//! All streams of a session, their flow control, and whose turn it is to send [P-6].
//!
//! Owns credit in both directions, for each stream and for the session. Which path a packet takes
//! and when is not known here.

mod flights;
mod receive;
mod send;
mod sending;
mod window;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tabane_base::{Bytes, Duration, Instant};
use thiserror::Error;

pub use receive::ReadState;
use receive::{Inserted, ReceiveHalf};
use send::{Piece, SendHalf, Terms};
pub(crate) use sending::Place;
use window::Window;

use crate::class::ClassId;
use crate::close::Violation;
use crate::config::MAX_STREAMS;
use crate::event::Event;
use crate::id::StreamId;
use crate::parameters::Parameters;
use crate::recovery::{SentFrame, SentFrames};
use crate::wire::{Frame, STREAM_CLASS_MAX, StreamHeader};

/// A writer who came short hears of room once a quarter of its buffer, or this, is free: each
/// wake-up then moves enough to be worth it.
const WRITABLE_STEP: usize = 128 * 1024;
/// Stop room for headers alone: less data than this in a packet is not worth a frame.
const MIN_PIECE: usize = 16;
/// A reader keeps pace who leaves no more than this part of a stream's share unread.
const KEEPS_PACE: usize = 8;
/// How much of the receive memory a stream may hold, per byte that is free.
const SHARE: usize = 4;
/// Memory that fast and far paths use up; with more nothing is sent again in advance.
const LITTLE_MEMORY: u64 = 8_000_000;
/// Part of the peer's memory that is planned with.
const REACH_PER_MEMORY: u64 = 2;
/// Streams looked at for what a scheduler wants to know of all: it asks per packet.
const FIRST_STREAMS: usize = 16;
/// Bytes of a STREAM frame's length.
const LENGTH_FIELD: usize = 2;

/// Why a stream command cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// It never existed, or both sides are done with it.
    #[error("there is no such stream")]
    Unknown,
    /// Our side of it is finished or reset.
    #[error("the stream takes no more data")]
    Finished,
    /// The peer allows no more streams at present.
    #[error("as many streams are open as the other end allows")]
    LimitReached,
    /// The session is not connected, or closed.
    #[error("the session is not connected")]
    NotConnected,
}

#[derive(Debug)]
struct Stream {
    send: SendHalf,
    receive: ReceiveHalf,
    /// What it takes its turns among.
    class: ClassId,
    /// How often its class was said; 0: it is an ordinary one.
    class_number: u64,
    /// Waits in `pending`.
    queued: bool,
    /// Control frames that are due.
    due: Due,
}

#[derive(Clone, Copy, Debug, Default)]
struct Due {
    reset: bool,
    stop: Option<u64>,
    credit: bool,
    class: bool,
}

/// The streams of one session.
#[derive(Debug)]
pub(crate) struct Streams {
    is_client: bool,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams with data to send, in turn, by class: those of one never wait for another's.
    pending: Vec<VecDeque<StreamId>>,
    /// The other end follows classes, and is told of ours.
    tells_classes: bool,
    /// Streams with control frames to send.
    control: VecDeque<StreamId>,
    /// Index of the next stream we open.
    next_local: u64,
    /// We may open streams below this index.
    local_limit: u64,
    /// Peer's streams below this index were opened.
    next_remote: u64,
    /// The peer may open streams below this index.
    remote_limit: u64,
    remote_limit_due: bool,
    /// Bytes for the first time on their way, of all streams.
    sent: u64,
    /// The peer takes this many in all.
    send_credit: u64,
    /// Highest offsets received, of all streams.
    received: u64,
    /// Read or discarded.
    consumed: u64,
    receive_credit: u64,
    receive_window: u64,
    receive_credit_due: bool,
    /// What a stream grants at first, and at the most.
    stream_window: u64,
    stream_window_max: u64,
    peer_stream_window: u64,
    /// How far a stream's data may arrive before what stands in front of it; `None` where the
    /// peer's memory sets no limit.
    peer_reach: Option<u64>,
    /// Bytes sent again before they were late.
    rescued: u64,
    /// Round trip of the farthest path.
    rtt: Duration,
    /// Memory of received data.
    memory: usize,
    memory_max: usize,
    send_limit: usize,
    events: VecDeque<Event>,
}

impl Streams {
    /// `own` is what the peer is told; `memory` for all of received data; `window_max` for what
    /// a stream's sender may be ahead of its reader at the most.
    pub(crate) fn new(is_client: bool, own: &Parameters, memory: Bytes, window_max: Bytes) -> Self {
        Self {
            is_client,
            streams: BTreeMap::new(),
            pending: vec![VecDeque::new()],
            tells_classes: false,
            control: VecDeque::new(),
            next_local: 0,
            local_limit: 0,
            next_remote: 0,
            remote_limit: own.streams,
            remote_limit_due: false,
            sent: 0,
            send_credit: 0,
            received: 0,
            consumed: 0,
            receive_credit: own.session_credit.get(),
            receive_window: own.session_credit.get(),
            receive_credit_due: false,
            stream_window: own.stream_credit.get(),
            stream_window_max: window_max.get(),
            peer_stream_window: 0,
            peer_reach: None,
            rescued: 0,
            rtt: Duration::ZERO,
            memory: 0,
            memory_max: usize::try_from(memory.get()).unwrap_or(usize::MAX),
            send_limit: 0,
            events: VecDeque::new(),
        }
    }

    /// The peer's first grants.
    pub(crate) fn on_parameters(&mut self, peer: &Parameters) {
        self.local_limit = peer.streams;
        self.send_credit = peer.session_credit.get();
        self.peer_stream_window = peer.stream_credit.get();
        self.tells_classes = self.is_client && peer.classes;
        let memory = peer.receive_memory.map(Bytes::get);
        self.peer_reach = memory
            .filter(|memory| *memory < LITTLE_MEMORY)
            .map(|memory| memory / REACH_PER_MEMORY);
    }

    /// How much each stream may hold unacknowledged.
    pub(crate) fn set_send_limit(&mut self, limit: Bytes) {
        self.send_limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
    }

    /// The farthest path's round trip: what windows must bridge.
    pub(crate) fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Memory that received data occupies.
    pub(crate) const fn memory(&self) -> usize {
        self.memory
    }

    fn is_local(&self, id: StreamId) -> bool {
        id.opened_by_client() == self.is_client
    }

    // Commands of the application.

    pub(crate) fn open(&mut self) -> Result<StreamId, StreamError> {
        if self.next_local >= self.local_limit {
            return Err(StreamError::LimitReached);
        }
        let id = StreamId(self.next_local * 2 + u64::from(!self.is_client));
        self.next_local += 1;
        self.create(id);
        Ok(id)
    }

    fn create(&mut self, id: StreamId) {
        let window = Window::new(self.stream_window, self.stream_window_max);
        let stream = Stream {
            send: SendHalf::new(self.peer_stream_window),
            receive: ReceiveHalf::new(window),
            class: ClassId::ORDINARY,
            class_number: 0,
            queued: false,
            due: Due::default(),
        };
        self.streams.insert(id, stream);
    }

    fn get(&mut self, id: StreamId) -> Result<&mut Stream, StreamError> {
        self.streams.get_mut(&id).ok_or(StreamError::Unknown)
    }

    pub(crate) fn capacity(&self, id: StreamId) -> usize {
        self.streams
            .get(&id)
            .filter(|stream| stream.send.is_open())
            .map_or(0, |stream| {
                self.send_limit.saturating_sub(stream.send.held())
            })
    }

    pub(crate) fn write(&mut self, id: StreamId, data: &[u8]) -> Result<usize, StreamError> {
        let room = self.capacity(id);
        let stream = self.get(id)?;
        if !stream.send.is_open() {
            return Err(StreamError::Finished);
        }
        let n = room.min(data.len());
        stream.send.write(&data[..n]);
        stream.send.writer_waits = n < data.len();
        self.enqueue(id);
        Ok(n)
    }

    /// The class of a stream; those that are not there are ordinary.
    pub(crate) fn class(&self, id: StreamId) -> ClassId {
        let stream = self.streams.get(&id);
        stream.map_or(ClassId::ORDINARY, |stream| stream.class)
    }

    /// Whether anything of a stream was ever given out.
    pub(crate) fn has_begun(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| stream.send.has_begun())
    }

    /// Puts a stream into a class, with all of it that waits, and gives the one it was in. Its
    /// first bytes tell the other end, or a frame of its own where they have left.
    pub(crate) fn set_class(&mut self, id: StreamId, class: ClassId) -> Option<ClassId> {
        let stream = self.streams.get_mut(&id)?;
        if stream.class == class {
            return None;
        }
        stream.class_number += 1;
        if self.tells_classes && stream.send.has_begun() {
            stream.due.class = true;
            self.control.push_back(id);
        }
        self.move_to(id, class)
    }

    /// The other end has put a stream into a class. Gives the one it was in before.
    pub(crate) fn on_class(
        &mut self,
        id: StreamId,
        number: u64,
        class: ClassId,
    ) -> Result<Option<ClassId>, Violation> {
        self.ensure(id)?;
        match self.streams.get_mut(&id) {
            Some(stream) if number > stream.class_number => {
                stream.class_number = number;
                Ok(self.move_to(id, class))
            }
            Some(_) | None => Ok(None),
        }
    }

    fn move_to(&mut self, id: StreamId, class: ClassId) -> Option<ClassId> {
        let stream = self.streams.get_mut(&id)?;
        let before = std::mem::replace(&mut stream.class, class);
        if std::mem::take(&mut stream.queued) {
            self.pending[before.index()].retain(|other| *other != id);
        }
        let count = self.pending.len().max(class.index() + 1);
        self.pending.resize_with(count, VecDeque::new);
        self.enqueue(id);
        (before != class).then_some(before)
    }

    pub(crate) fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        let stream = self.get(id)?;
        if !stream.send.is_open() {
            return Err(StreamError::Finished);
        }
        stream.send.finish();
        self.enqueue(id);
        Ok(())
    }

    pub(crate) fn reset(&mut self, id: StreamId, code: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.send.reset(code).is_some() {
            stream.due.reset = true;
            self.control.push_back(id);
        }
    }

    pub(crate) fn stop(&mut self, id: StreamId, code: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.receive.is_stopped() || stream.receive.is_done() {
            return;
        }
        let before = stream.receive.memory();
        let freed = stream.receive.stop();
        stream.due.stop = Some(code);
        self.memory -= before;
        self.control.push_back(id);
        self.on_consumed(freed);
        self.reap(id);
    }

    pub(crate) fn peek(&mut self, id: StreamId) -> Result<ReadState<'_>, StreamError> {
        let last = match self.get(id)?.receive.peek() {
            ReadState::Finished => ReadState::Finished,
            ReadState::Reset(code) => ReadState::Reset(code),
            ReadState::Data(_) | ReadState::Empty => return Ok(self.get(id)?.receive.peek()),
        };
        // The reader knows the end now; the writer may have been done with it for long.
        self.reap(id);
        Ok(last)
    }

    pub(crate) fn consume(&mut self, now: Instant, id: StreamId, n: usize) {
        let rtt = self.rtt;
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let n = stream.receive.consume(n);
        if stream.receive.renews_credit(now, rtt) && !stream.due.credit {
            stream.due.credit = true;
            self.control.push_back(id);
        }
        self.memory -= n;
        self.on_consumed(n as u64);
    }

    fn on_consumed(&mut self, n: u64) {
        self.consumed += n;
        let wanted = self.consumed + self.receive_window;
        if wanted - self.receive_credit >= self.receive_window / 2 {
            self.receive_credit = wanted;
            self.receive_credit_due = true;
        }
    }

    // News from the network.

    /// Whether memory is short enough for [`refuses`](Self::refuses) to refuse anything.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        // With so much of it free no stream can hold more than half of SHARE times what is free.
        2 * self.memory / SHARE >= self.memory_max / (SHARE + 1)
    }

    /// Whether there is no memory for this data. A stream may hold [`SHARE`] times what is free:
    /// one alone most of the memory, and however many are stuck, something is left for the next.
    /// Half of that is kept for what is soon in order: else scattered data from far ahead would
    /// fill it, and nothing but the very next packet would find room. What its reader waits for is
    /// taken in any case, because it makes the rest readable: beyond the limit a stream holds at
    /// most one packet.
    pub(crate) fn refuses(&self, header: StreamHeader, len: usize) -> Option<Refused> {
        let stream = self.streams.get(&header.id)?;
        let (held, unread) = (stream.receive.memory(), stream.receive.unread());
        let others = self.memory - held;
        let most = self.memory_max.saturating_sub(others) / (SHARE + 1) * SHARE;
        let next = stream.receive.ready_to();
        if header.offset <= next {
            let free = self.memory_max.saturating_sub(self.memory);
            let has_room = unread == 0 || free > 0 && unread <= SHARE * free;
            return (!has_room).then_some(Refused::Unread);
        }
        let is_soon = header.offset + len as u64 <= next + most as u64 / 2;
        if held <= most / 2 || is_soon && held <= most {
            return None;
        }
        Some(if unread <= most / KEEPS_PACE {
            Refused::Early
        } else {
            Refused::Unread
        })
    }

    /// Whether this is what a reader waits for who keeps pace.
    pub(crate) fn is_awaited_here(&self, header: StreamHeader, len: usize) -> bool {
        self.streams.get(&header.id).is_some_and(|stream| {
            let next = stream.receive.ready_to();
            (header.offset..header.offset + len as u64).contains(&next)
                && stream.receive.unread() == 0
        })
    }

    /// Whether memory is used up but for what readers wait for.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.memory >= self.memory_max - self.memory_max / 8
    }

    pub(crate) fn on_data(&mut self, header: StreamHeader, data: &[u8]) -> Result<(), Violation> {
        let StreamHeader { id, offset, fin } = header;
        self.with_receiver(id, |receive| receive.insert(offset, data, fin))?;
        Ok(())
    }

    pub(crate) fn on_reset(
        &mut self,
        id: StreamId,
        code: u64,
        final_size: u64,
    ) -> Result<(), Violation> {
        if self.with_receiver(id, |receive| receive.on_reset(code, final_size))? {
            self.events.push_back(Event::StreamReset { id, code });
        }
        Ok(())
    }

    /// Applies a frame to a receiving half and settles credit, memory and news. `true` when
    /// something became readable.
    fn with_receiver(
        &mut self,
        id: StreamId,
        apply: impl FnOnce(&mut ReceiveHalf) -> Result<Inserted, Violation>,
    ) -> Result<bool, Violation> {
        self.ensure(id)?;
        let session_room = self.receive_credit - self.received;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(false);
        };
        let before = stream.receive.memory();
        let inserted = apply(&mut stream.receive)?;
        if inserted.advanced > session_room {
            return Err(Violation::SessionCreditExceeded);
        }
        self.memory = self.memory + stream.receive.memory() - before;
        self.received += inserted.advanced;
        if inserted.readable && !stream.receive.notified {
            stream.receive.notified = true;
            self.events.push_back(Event::StreamReadable(id));
        }
        if inserted.discarded > 0 {
            self.on_consumed(inserted.discarded);
        }
        self.reap(id);
        Ok(inserted.readable)
    }

    /// Makes sure that a stream the peer speaks of exists, unless it is over already.
    fn ensure(&mut self, id: StreamId) -> Result<(), Violation> {
        if self.is_local(id) {
            return if id.index() < self.next_local {
                Ok(())
            } else {
                Err(Violation::ForeignStream)
            };
        }
        if id.index() >= self.remote_limit {
            return Err(Violation::StreamLimitExceeded);
        }
        while self.next_remote <= id.index() {
            let new = StreamId(self.next_remote * 2 + u64::from(self.is_client));
            self.next_remote += 1;
            self.create(new);
            self.events.push_back(Event::StreamOpened(new));
        }
        Ok(())
    }

    pub(crate) fn on_stop(&mut self, id: StreamId, code: u64) -> Result<(), Violation> {
        self.ensure(id)?;
        if self
            .streams
            .get(&id)
            .is_some_and(|stream| !stream.send.is_done())
        {
            self.reset(id, code);
            self.events.push_back(Event::StreamStopped { id, code });
        }
        Ok(())
    }

    pub(crate) fn on_max_data(&mut self, max: u64) {
        self.send_credit = self.send_credit.max(max);
    }

    pub(crate) fn on_max_stream_data(&mut self, id: StreamId, max: u64) -> Result<(), Violation> {
        self.ensure(id)?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.send.on_credit(max);
            self.enqueue(id);
        }
        Ok(())
    }

    pub(crate) fn on_max_streams(&mut self, max: u64) {
        self.local_limit = self.local_limit.max(max);
    }

    pub(crate) fn on_acked(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Stream {
                id,
                offset,
                len,
                fin,
            } => {
                let limit = self.send_limit;
                let Some(stream) = self.streams.get_mut(&id) else {
                    return;
                };
                let was_recovering = stream.send.is_recovering();
                stream.send.on_acked(offset..offset + u64::from(len), fin);
                let room = limit.saturating_sub(stream.send.held());
                if stream.send.writer_waits && room >= WRITABLE_STEP.min(limit / 4) {
                    stream.send.writer_waits = false;
                    self.events.push_back(Event::StreamWritable(id));
                }
                if was_recovering {
                    self.enqueue(id);
                }
                self.reap(id);
            }
            SentFrame::ResetStream(id) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.send.on_reset_acked();
                    self.reap(id);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn on_lost(&mut self, frame: SentFrame) {
        match frame {
            SentFrame::Stream {
                id,
                offset,
                len,
                fin,
            } => {
                let Some(stream) = self.streams.get_mut(&id) else {
                    return;
                };
                stream.send.on_lost(offset..offset + u64::from(len), fin);
                if stream.send.has_waiting() && !stream.queued {
                    stream.queued = true;
                    self.pending[stream.class.index()].push_front(id);
                } else {
                    self.enqueue(id);
                }
            }
            SentFrame::ResetStream(id) => self.due_again(id, |due| due.reset = true),
            SentFrame::StopSending(id) => self.due_again(id, |due| due.stop = Some(0)),
            SentFrame::MaxStreamData(id) => self.due_again(id, |due| due.credit = true),
            SentFrame::StreamClass(id) => self.due_again(id, |due| due.class = true),
            SentFrame::MaxData => self.receive_credit_due = true,
            SentFrame::MaxStreams => self.remote_limit_due = true,
            _ => {}
        }
    }

    /// The peer had no memory for what comes back as lost now.
    pub(crate) fn on_shed(&mut self, frame: SentFrame) {
        let Some(reach) = self.reach() else {
            return;
        };
        if let SentFrame::Stream {
            id, offset, len, ..
        } = frame
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.send.on_shed(offset + u64::from(len), reach * 3 / 2);
        }
    }

    /// Sends a piece again although it may still arrive where it is. `false` when it has arrived,
    /// or is of another class.
    pub(crate) fn repeat(&mut self, class: ClassId, frame: SentFrame) -> bool {
        let SentFrame::Stream {
            id, offset, len, ..
        } = frame
        else {
            return false;
        };
        let range = offset..offset + u64::from(len);
        let Some(stream) = self.streams.get(&id) else {
            return false;
        };
        if stream.class != class || stream.send.outstanding(range).is_none() {
            return false;
        }
        self.on_lost(frame);
        true
    }

    fn due_again(&mut self, id: StreamId, mark: impl FnOnce(&mut Due)) {
        if let Some(stream) = self.streams.get_mut(&id) {
            mark(&mut stream.due);
            self.control.push_back(id);
        }
    }

    /// Forgets a stream that both sides are done with, and lets the peer open another.
    fn reap(&mut self, id: StreamId) {
        let is_over = |stream: &Stream| stream.send.is_done() && stream.receive.is_done();
        if !self.streams.get(&id).is_some_and(is_over) {
            return;
        }
        if let Some(stream) = self.streams.remove(&id) {
            self.memory -= stream.receive.memory();
        }
        if !self.is_local(id) {
            self.remote_limit += 1;
            // Granting in steps saves frames.
            self.remote_limit_due |= self.remote_limit.is_multiple_of(MAX_STREAMS / 16);
        }
    }
}

/// Why there is no memory for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It came too long before what stands in front of it.
    Early,
    /// The reader does not keep pace.
    Unread,
}

/// A piece of a stream that was set aside for a packet to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    id: StreamId,
    range: Range<u64>,
    fin: bool,
}
