//! All streams of a session, their flow control, and whose turn it is to send [P-6].
//!
//! Owns credit in both directions, for each stream and for the session. Which path a packet takes
//! and when is not known here.

mod commands;
mod flights;
mod hold;
mod news;
mod receive;
mod ring;
mod send;
mod sending;
mod standing;
pub(crate) mod window;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tabane_base::{Bytes, Duration, Instant};
use thiserror::Error;

pub use receive::ReadState;
use receive::ReceiveHalf;
use send::{Piece, SendHalf, Terms};
pub(crate) use sending::Place;
use standing::{Counts, Standing};

use crate::class::{ByClass, ClassId};
use crate::config::LITTLE_MEMORY;
use crate::event::Event;
use crate::id::StreamId;
use crate::memory_pool::{Part, SessionPool};
use crate::parameters::Parameters;
use crate::recovery::{SentFrame, SentFrames};
use crate::turns::{Turn, Turns};
use crate::wire::{Frame, STREAM_CLASS_MAX, StreamHeader};

/// A writer who came short hears of room once a quarter of its buffer, or this, is free: each
/// wake-up then moves enough to be worth it.
const WRITABLE_STEP: usize = 128 * 1024;
/// Stop room for headers alone: less data than this in a packet is not worth a frame.
const MIN_PIECE: usize = 16;
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
    /// Its place in `pending`.
    turn: Option<Turn>,
    /// As what it is counted.
    standing: Standing,
    /// Control frames that are due.
    due: Due,
}

#[derive(Clone, Copy, Debug, Default)]
struct Due {
    reset: bool,
    stop: Option<u64>,
    credit: bool,
    class: bool,
    hold: bool,
}

/// The streams of one session.
#[derive(Debug)]
pub(crate) struct Streams {
    is_client: bool,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams with data to send, in turn, by class: those of one never wait for another's.
    pending: ByClass<Turns<StreamId>>,
    /// How all streams stand, by class.
    counts: ByClass<Counts>,
    /// The other end follows classes, and is told of ours.
    tells_classes: bool,
    /// Streams with control frames to send.
    control: VecDeque<StreamId>,
    /// Those whose credit has just left, by one path.
    renewed: Vec<StreamId>,
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
    /// Acknowledged, of all streams; what was sent twice counts as often.
    acked: u64,
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
    /// The other end understands that a stream is held, and there is memory for several.
    tells_holds: bool,
    /// Streams whose readers stand still.
    held: usize,
    /// Memory of received data, and the most there may be of it.
    memory: Part,
    memory_max: usize,
    send_limit: usize,
    /// What their unacknowledged data is held in.
    pool: SessionPool,
    events: VecDeque<Event>,
    /// Turns that were looked at for packets.
    #[cfg(test)]
    looked_at: usize,
}

impl Streams {
    /// `own` is what the peer is told; `memory` for all of received data, held in `part`;
    /// `window_max` for what a stream's sender may be ahead of its reader at the most.
    pub(crate) fn new(
        is_client: bool,
        own: &Parameters,
        (memory, part): (Bytes, Part),
        window_max: Bytes,
        pool: SessionPool,
    ) -> Self {
        Self {
            is_client,
            streams: BTreeMap::new(),
            pending: ByClass::default(),
            counts: ByClass::default(),
            tells_classes: false,
            control: VecDeque::new(),
            renewed: Vec::new(),
            next_local: 0,
            local_limit: 0,
            next_remote: 0,
            remote_limit: own.streams,
            remote_limit_due: false,
            sent: 0,
            acked: 0,
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
            tells_holds: false,
            held: 0,
            memory: part,
            memory_max: usize::try_from(memory.get()).unwrap_or(usize::MAX),
            send_limit: 0,
            pool,
            events: VecDeque::new(),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// The peer's first grants.
    pub(crate) fn on_parameters(&mut self, peer: &Parameters) {
        self.local_limit = peer.streams;
        self.send_credit = peer.session_credit.get();
        self.peer_stream_window = peer.stream_credit.get();
        self.tells_classes = self.is_client && peer.classes;
        self.tells_holds = peer.holds && self.memory_max as u64 >= LITTLE_MEMORY;
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

    pub(crate) fn rtt(&self) -> Duration {
        self.rtt
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Bytes of streams that were acknowledged.
    pub(crate) const fn acked(&self) -> Bytes {
        Bytes::new(self.acked)
    }

    /// Memory that received data occupies.
    pub(crate) const fn memory(&self) -> usize {
        self.memory.bytes()
    }

    /// What it may be at present.
    fn memory_max(&self) -> usize {
        self.memory_max.min(self.memory.limit())
    }

    fn is_local(&self, id: StreamId) -> bool {
        id.opened_by_client() == self.is_client
    }
}

/// Why there is no memory for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It came too long before what stands in front of it.
    Early,
    /// The reader of this stream does not keep pace.
    Unread(StreamId),
}

/// A piece of a stream that was set aside for a packet to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    id: StreamId,
    range: Range<u64>,
    fin: bool,
}
