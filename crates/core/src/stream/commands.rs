//! What the application does with streams.

use tabane_base::Instant;

use super::receive::{ReadState, ReceiveHalf};
use super::send::SendHalf;
use super::window::Window;
use super::{Due, Standing, Stream, StreamError, Streams};
use crate::class::ClassId;
use crate::close::Violation;
use crate::id::StreamId;

impl Streams {
    pub(crate) fn open(&mut self) -> Result<StreamId, StreamError> {
        if self.next_local >= self.local_limit {
            return Err(StreamError::LimitReached);
        }
        let id = StreamId(self.next_local * 2 + u64::from(!self.is_client));
        self.next_local += 1;
        self.create(id);
        Ok(id)
    }

    pub(super) fn create(&mut self, id: StreamId) {
        let window = Window::new(self.stream_window, self.stream_window_max);
        let stream = Stream {
            send: SendHalf::new(self.peer_stream_window, &self.pool),
            receive: ReceiveHalf::new(window),
            class: ClassId::ORDINARY,
            class_number: 0,
            turn: None,
            standing: Standing::default(),
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
                let limit = stream.send.limit(self.send_limit);
                limit.saturating_sub(stream.send.held())
            })
    }

    /// What a stream may hold.
    pub(crate) fn limit(&self, id: StreamId) -> usize {
        let stream = self.streams.get(&id);
        stream.map_or(0, |stream| stream.send.limit(self.send_limit))
    }

    /// What the sender of a stream may be ahead of our reader.
    pub(crate) fn window(&self, id: StreamId) -> usize {
        let stream = self.streams.get(&id);
        stream.map_or(0, |stream| stream.receive.window())
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

    /// Where to put up to `most` bytes of a stream, as far as there is room for them.
    pub(crate) fn room(&mut self, id: StreamId, most: usize) -> Result<&mut [u8], StreamError> {
        let most = most.min(self.capacity(id));
        let stream = self.get(id)?;
        if !stream.send.is_open() {
            return Err(StreamError::Finished);
        }
        Ok(match most {
            0 => &mut [],
            _ => stream.send.room(most),
        })
    }

    /// The first `n` bytes of [`room`](Self::room) are written.
    pub(crate) fn filled(&mut self, id: StreamId, n: usize) {
        if let Ok(stream) = self.get(id) {
            stream.send.filled(n);
            stream.send.writer_waits = false;
            self.enqueue(id);
        }
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

    /// One more, which begins in this class. It is the other end's to say otherwise.
    pub(crate) fn open_within(&mut self, class: ClassId) -> Result<StreamId, StreamError> {
        let id = self.open()?;
        self.move_to(id, class);
        Ok(id)
    }

    /// Puts a stream into a class, with all of it that waits, and gives the one it was in. Its
    /// first bytes tell the other end, or a frame of its own where they have left.
    pub(crate) fn set_class(&mut self, id: StreamId, class: ClassId) -> Option<ClassId> {
        let is_local = self.is_local(id);
        let stream = self.streams.get_mut(&id)?;
        // What the other end has opened may have begun in any class there.
        if stream.class == class && (is_local || stream.class_number > 0) {
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
        stream.uncount(&mut self.counts);
        let before = std::mem::replace(&mut stream.class, class);
        if let Some(turn) = stream.turn.take() {
            self.pending.get_mut(before).remove(turn);
        }
        self.pending.get_mut(class);
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
            stream.recount(&mut self.counts);
            stream.due.reset = true;
            self.control.push_back(id);
        }
    }

    pub(crate) fn reset_behind(&mut self, id: StreamId, code: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.send.reset_behind(code);
            stream.recount(&mut self.counts);
            self.reset_if_due(id);
        }
    }

    /// Sends the reset that waits behind data, once none is left in front of it.
    pub(super) fn reset_if_due(&mut self, id: StreamId) {
        let stream = self.streams.get(&id);
        if let Some(code) = stream.and_then(|stream| stream.send.due_reset()) {
            self.reset(id, code);
        }
    }

    /// Whether the peer has abandoned its side.
    pub(crate) fn is_reset(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| stream.receive.is_reset())
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
        if !stream.receive.is_reset() {
            stream.due.stop = Some(code);
        }
        self.memory.take_off(before);
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

    pub(crate) fn on_reader_blocked(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.receive.hold.on_blocked();
        }
    }

    pub(crate) fn on_reader_known(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.receive.prove_reader();
        }
    }

    /// Whether it would help to know that a stream is read.
    pub(crate) fn reader_is_unknown(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| stream.receive.is_unproved())
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
        let unread = stream.receive.unread();
        if stream.receive.hold.on_read(now, unread) {
            self.held -= 1;
            stream.due.hold = true;
            self.control.push_back(id);
        }
        self.memory.take_off(n);
        self.on_consumed(n as u64);
    }

    pub(super) fn on_consumed(&mut self, n: u64) {
        self.consumed += n;
        let wanted = self.consumed + self.receive_window;
        if wanted - self.receive_credit >= self.receive_window / 2 {
            self.receive_credit = wanted;
            self.receive_credit_due = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Bytes;

    use super::*;
    use crate::event::Event;
    use crate::memory_pool::{MemoryPool, Part, SessionPool};
    use crate::parameters::Parameters;
    use crate::recovery::SentFrame;

    const POOL: Bytes = Bytes::mega(1);

    /// A session's streams, with one open that wants far more than the pool has.
    fn greedy(pool: &MemoryPool) -> (Streams, StreamId) {
        let peer = Parameters {
            streams: 10,
            ..Parameters::default()
        };
        let own = Parameters::default();
        let memory = (POOL, Part::default());
        let mut streams = Streams::new(true, &own, memory, POOL, SessionPool::new(pool.clone()));
        streams.on_parameters(&peer);
        streams.set_send_limit(Bytes::mega(16));
        let id = streams.open().expect("ten are granted");
        (streams, id)
    }

    fn write_all(streams: &mut Streams, id: StreamId) -> usize {
        let data = vec![0; 2 * POOL.get() as usize];
        std::iter::from_fn(|| Some(streams.write(id, &data).expect("open")))
            .take_while(|n| *n > 0)
            .sum()
    }

    #[test]
    fn sessions_that_share_a_pool_leave_each_other_room_and_hear_of_it() {
        let pool = MemoryPool::new(POOL);
        let (mut first, a) = greedy(&pool);
        let (mut second, b) = greedy(&pool);
        let quarter = write_all(&mut first, a);
        assert_eq!(quarter, POOL.get() as usize / 4);
        let less = write_all(&mut second, b);
        assert!(less < quarter && less > quarter / 2, "{less}");
        assert_eq!(pool.held().get() as usize, quarter + less);

        // What the first holds too much since the second came goes before it may write again.
        let acked = |to: usize| SentFrame::Stream {
            id: a,
            offset: 0,
            len: to as u32,
            fin: false,
        };
        first.on_acked(acked(quarter / 8));
        assert_eq!(first.poll_event(), None);
        first.on_acked(acked(quarter));
        assert_eq!(first.poll_event(), Some(Event::StreamWritable(a)));
        assert_eq!(first.capacity(a), (POOL.get() as usize - less) / 4);

        drop(second);
        assert_eq!(pool.held(), Bytes::ZERO);
    }
}
