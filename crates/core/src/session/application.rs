//! What the application does with streams and datagrams.
//!
//! Hands each call to the component that owns it; what may leave when is decided elsewhere.

use tabane_base::{Duration, Instant};

use super::Session;
use crate::datagrams::{Datagram, DatagramError, DatagramOrder, FlowId};
use crate::id::StreamId;
use crate::stream::{ReadState, StreamError};

impl Session {
    /// Opens a stream to the other end.
    ///
    /// # Errors
    /// When the session is not connected or the other end allows no more streams.
    pub fn open_stream(&mut self, _now: Instant) -> Result<StreamId, StreamError> {
        if !self.is_connected() {
            return Err(StreamError::NotConnected);
        }
        self.streams.open()
    }

    /// How many bytes [`write`](Self::write) would take now.
    #[must_use]
    pub fn stream_capacity(&self, id: StreamId) -> usize {
        self.streams.capacity(id)
    }

    /// How many bytes a stream may hold that are not acknowledged yet: some round trips of the
    /// paths there are.
    #[must_use]
    pub fn stream_limit(&self, id: StreamId) -> usize {
        self.streams.limit(id)
    }

    /// The smoothed round trip of the farthest path.
    #[must_use]
    pub fn farthest_round_trip(&self) -> Duration {
        self.streams.rtt()
    }

    /// The shortest round trip that a path of it has had of late; none without paths.
    #[must_use]
    pub fn nearest_round_trip(&self) -> Option<Duration> {
        self.paths.iter().map(|path| path.rtt().min()).min()
    }

    /// How far the sender of a stream may go beyond our reader: the more, the faster it reads.
    #[must_use]
    pub fn stream_window(&self, id: StreamId) -> usize {
        self.streams.window(id)
    }

    /// Hands over as much of `data` as there is room for; gives how much that was. After a short
    /// write, [`Event::StreamWritable`] tells when to go on.
    ///
    /// # Errors
    /// When the stream is unknown or our side of it is finished.
    pub fn write(
        &mut self,
        _now: Instant,
        id: StreamId,
        data: &[u8],
    ) -> Result<usize, StreamError> {
        self.streams.write(id, data)
    }

    /// Where to put up to `most` bytes for [`filled`](Self::filled), which saves copying them as
    /// [`write`](Self::write) does; nothing where there is no room.
    ///
    /// # Errors
    /// As [`write`](Self::write) has them.
    pub fn room(&mut self, id: StreamId, most: usize) -> Result<&mut [u8], StreamError> {
        self.streams.room(id, most)
    }

    /// The first `n` bytes of the [`room`](Self::room) given last are written.
    ///
    /// # Panics
    /// There was less room.
    pub fn filled(&mut self, _now: Instant, id: StreamId, n: usize) {
        self.streams.filled(id, n);
    }

    /// Ends our side of a stream after what was written.
    ///
    /// # Errors
    /// When the stream is unknown or our side of it is finished already.
    pub fn finish(&mut self, _now: Instant, id: StreamId) -> Result<(), StreamError> {
        self.streams.finish(id)
    }

    /// Abandons our side of a stream: what is not delivered yet need not be.
    pub fn reset(&mut self, _now: Instant, id: StreamId, code: u64) {
        self.streams.reset(id, code);
    }

    /// Abandons our side of a stream behind what was written: that is delivered first, as far as
    /// the other end has room for it.
    pub fn reset_behind(&mut self, _now: Instant, id: StreamId, code: u64) {
        self.streams.reset_behind(id, code);
    }

    /// Whether the other end has abandoned its side of a stream, of which something may still be
    /// left to read.
    pub fn is_reset(&self, id: StreamId) -> bool {
        self.streams.is_reset(id)
    }

    /// Tells the other end that we read no more of a stream.
    pub fn stop(&mut self, _now: Instant, id: StreamId, code: u64) {
        self.streams.stop(id, code);
    }

    /// What is next to read of a stream; [`consume`](Self::consume) what was used of it.
    ///
    /// # Errors
    /// When the stream is unknown, or both sides were done with it.
    pub fn peek(&mut self, id: StreamId) -> Result<ReadState<'_>, StreamError> {
        self.streams.peek(id)
    }

    /// What [`peek`](Self::peek) shows cannot be used now: whoever reads beyond us takes no more.
    pub fn on_reader_blocked(&mut self, id: StreamId) {
        self.streams.on_reader_blocked(id);
    }

    /// Whether a stream gets no more than its first grant, because sockets take so much for
    /// programs that never read [P-6.4]. Much that was used shows a reader, too, only later than
    /// [`on_reader_known`](Self::on_reader_known).
    #[must_use]
    pub fn reader_is_unknown(&self, id: StreamId) -> bool {
        self.streams.reader_is_unknown(id)
    }

    /// A program is known to read what was used of a stream.
    pub fn on_reader_known(&mut self, id: StreamId) {
        self.streams.on_reader_known(id);
    }

    /// `n` bytes of what [`peek`](Self::peek) showed were used.
    pub fn consume(&mut self, now: Instant, id: StreamId, n: usize) {
        self.streams.consume(now, id, n);
    }

    /// Sends a datagram of a flow, which may get lost. The other end hands the flow out in the
    /// given order; what waits for longer than [`SessionConfig::datagram_wait`] to leave is
    /// dropped.
    ///
    /// # Errors
    /// When it is too large, or too many wait already.
    pub fn send_datagram(
        &mut self,
        now: Instant,
        flow: FlowId,
        order: DatagramOrder,
        data: &[u8],
    ) -> Result<(), DatagramError> {
        if !self.is_connected() {
            return Err(DatagramError::NotConnected);
        }
        let class = self.streams.class(StreamId(flow.0));
        self.datagrams.send(now, (flow, class), order, data)
    }

    /// The next datagram from the other end.
    pub fn poll_datagram(&mut self) -> Option<Datagram> {
        self.datagrams.poll()
    }

    /// Forgets a flow of datagrams: what waits of it to leave, and its order. Numbers of flows that
    /// are over should not be used again.
    pub fn close_flow(&mut self, flow: FlowId) {
        self.datagrams.forget(flow);
    }
}
