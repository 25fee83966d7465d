//! What the network brings for streams: data, frames of the peer, fates of packets.

use tabane_base::Instant;

use super::receive::{Inserted, ReceiveHalf};
use super::{Due, Refused, Stream, Streams, WRITABLE_STEP};
use crate::class::ClassId;
use crate::close::Violation;
use crate::config::MAX_STREAMS;
use crate::event::Event;
use crate::id::StreamId;
use crate::recovery::SentFrame;
use crate::wire::StreamHeader;

/// A reader keeps pace who leaves no more than this part of a stream's share unread.
const KEEPS_PACE: usize = 8;
/// How much of the receive memory a stream may hold, per byte that is free.
const SHARE: usize = 4;
/// What a reader who stands still may have waiting in any case: enough to go on with until its
/// sender has heard that it reads again, at some 25 Mbit/s over 20 ms.
const ENOUGH: usize = 64 * 1024;
/// Of a stream's window, what a reader who stands still may have waiting.
const WINDOWS_PART: usize = 16;

impl Streams {
    /// Whether [`refuses`](Self::refuses) might refuse anything: readers stand still, or memory is
    /// short enough.
    pub(crate) fn may_refuse(&self) -> bool {
        // With so much of it free no stream can hold more than half of SHARE times what is free.
        self.held > 0 || 2 * self.memory() / SHARE >= self.memory_max() / (SHARE + 1)
    }

    /// Whether there is no memory for this data. A stream may hold [`SHARE`] times what is free:
    /// one alone most of the memory, and however many are stuck, something is left for the next.
    /// A quarter of that is kept for what is soon in order: else scattered data from far ahead
    /// would fill it, and nothing but the very next packet would find room. What its reader waits
    /// for is taken in any case, because it makes the rest readable: beyond the limit a stream
    /// holds at most one packet.
    pub(crate) fn refuses(&self, header: StreamHeader, len: usize) -> Option<Refused> {
        let stream = self.streams.get(&header.id)?;
        let unread_here = Refused::Unread(header.id);
        if let (_, Some(at)) = stream.receive.hold.state()
            && header.offset + len as u64 > at
        {
            return Some(unread_here);
        }
        let (held, unread) = (stream.receive.memory(), stream.receive.unread());
        let others = self.memory() - held;
        let most = self.memory_max().saturating_sub(others) / (SHARE + 1) * SHARE;
        let next = stream.receive.ready_to();
        if header.offset <= next {
            let free = self.memory_max().saturating_sub(self.memory());
            let has_room = unread == 0 || free > 0 && unread <= self.unread_share(free);
            return (!has_room).then_some(unread_here);
        }
        let is_soon = header.offset + len as u64 <= next + most as u64 / 2;
        if held <= most / 4 * 3 || is_soon && held <= most {
            return None;
        }
        Some(if unread <= most / KEEPS_PACE {
            Refused::Early
        } else {
            unread_here
        })
    }

    /// What may wait in order for one reader, while so much memory is free. Of little memory one
    /// stream may have most; of much, a third, because readers who stand still take it from others,
    /// and nearly nothing of the second half: it is for those who read.
    fn unread_share(&self, free: usize) -> usize {
        if !self.tells_holds {
            SHARE * free
        } else if free < self.memory_max() / 2 {
            ENOUGH
        } else {
            free / 2
        }
    }

    /// Has the sender keep the rest of a stream until its reader goes on. `false` when the sender
    /// does not understand that.
    pub(crate) fn hold(&mut self, id: StreamId) -> bool {
        if let Some(stream) = self.streams.get_mut(&id)
            && self.tells_holds
            && !stream.receive.hold.is_on()
        {
            let (at, unread) = (stream.receive.ready_to(), stream.receive.unread());
            stream.receive.hold.begin(at, unread);
            self.held += 1;
            stream.due.hold = true;
            self.control.push_back(id);
        }
        self.tells_holds
    }

    /// Holds a stream whose reader stands still and has enough to go on with.
    fn review_reader(&mut self, now: Instant, id: StreamId) {
        // Half of the memory is for those who stand still, in falling parts, and the more for who
        // has read much.
        let left = (self.memory_max() / 2).saturating_sub(self.memory());
        // Of a first grant all is on its way by then: what was not taken would come twice.
        let window = |stream: &Stream| match stream.receive.is_unproved() {
            true => stream.receive.window(),
            false => stream.receive.window() / WINDOWS_PART,
        };
        let has_read = self.streams.get(&id).map_or(0, window);
        let enough = (left / 8).min(has_read).max(ENOUGH);
        if self.memory() <= enough {
            // As with nearly every packet: nobody has so much unread.
            return;
        }
        let stands_still = |stream: &Stream| {
            stream.receive.unread() > enough && stream.receive.hold.reader_stands_still(now)
        };
        if self.streams.get(&id).is_some_and(stands_still) {
            self.hold(id);
        }
    }

    /// The peer's reader of a stream stands still at an offset, or goes on.
    pub(crate) fn on_hold(
        &mut self,
        id: StreamId,
        number: u64,
        at: Option<u64>,
    ) -> Result<(), Violation> {
        self.ensure(id)?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.send.on_hold(number, at);
            self.enqueue(id);
            self.reset_if_due(id);
        }
        Ok(())
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
        self.memory() >= self.memory_max() / 8 * 7
    }

    pub(crate) fn on_data(
        &mut self,
        now: Instant,
        header: StreamHeader,
        data: &[u8],
    ) -> Result<(), Violation> {
        let StreamHeader { id, offset, fin } = header;
        self.with_receiver(id, |receive| {
            let inserted = receive.insert(offset, data, fin)?;
            if inserted.readable {
                receive.hold.on_readable(now);
            }
            Ok(inserted)
        })?;
        self.review_reader(now, id);
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
        // It is held from here on, whatever becomes of the session.
        let memory = self.memory.bytes() + stream.receive.memory() - before;
        self.memory.set(memory);
        if inserted.advanced > session_room {
            return Err(Violation::SessionCreditExceeded);
        }
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
    pub(super) fn ensure(&mut self, id: StreamId) -> Result<(), Violation> {
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
                self.acked += u64::from(len);
                let Some(stream) = self.streams.get_mut(&id) else {
                    return;
                };
                let was_recovering = stream.send.is_recovering();
                stream.send.on_acked(offset..offset + u64::from(len), fin);
                stream.recount(&mut self.counts);
                let limit = stream.send.limit(self.send_limit);
                let room = limit.saturating_sub(stream.send.held());
                if stream.send.writer_waits && room >= WRITABLE_STEP.min(limit / 4) {
                    stream.send.writer_waits = false;
                    self.events.push_back(Event::StreamWritable(id));
                }
                if was_recovering {
                    self.enqueue(id);
                }
                self.reset_if_due(id);
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
                stream.recount(&mut self.counts);
                if stream.send.has_waiting() && stream.turn.is_none() {
                    stream.turn = Some(self.pending.get_mut(stream.class).push_front(id));
                } else {
                    self.enqueue(id);
                }
            }
            SentFrame::ResetStream(id) => self.due_again(id, |due| due.reset = true),
            SentFrame::StopSending(id) => self.due_again(id, |due| due.stop = Some(0)),
            SentFrame::MaxStreamData(id) => self.due_again(id, |due| due.credit = true),
            SentFrame::StreamClass(id) => self.due_again(id, |due| due.class = true),
            SentFrame::StreamHold(id) => self.due_again(id, |due| due.hold = true),
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
            stream.send.on_shed(offset + u64::from(len), 2 * reach);
            stream.recount(&mut self.counts);
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
    pub(super) fn reap(&mut self, id: StreamId) {
        let is_over = |stream: &Stream| stream.send.is_done() && stream.receive.is_done();
        if !self.streams.get(&id).is_some_and(is_over) {
            return;
        }
        if let Some(mut stream) = self.streams.remove(&id) {
            stream.uncount(&mut self.counts);
            if let Some(turn) = stream.turn {
                self.pending.get_mut(stream.class).remove(turn);
            }
            self.memory.take_off(stream.receive.memory());
            self.held -= usize::from(stream.receive.hold.is_on());
        }
        if !self.is_local(id) {
            self.remote_limit += 1;
            // Granting in steps saves frames.
            self.remote_limit_due |= self.remote_limit.is_multiple_of(MAX_STREAMS / 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Bytes;

    use super::*;
    use crate::memory_pool::{FLOOR, MemoryPool, Part, SessionPool};
    use crate::parameters::Parameters;

    const MEMORY: Bytes = Bytes::mega(16);
    const LEN: usize = 1_400;

    fn streams() -> Streams {
        streams_of(&MemoryPool::default())
    }

    fn streams_of(receive: &MemoryPool) -> Streams {
        let own = Parameters {
            session_credit: Bytes::mega(64),
            stream_credit: Bytes::mega(1),
            streams: 100,
            ..Parameters::default()
        };
        let peer = Parameters {
            holds: true,
            ..own.clone()
        };
        let pool = SessionPool::new(MemoryPool::new(MEMORY));
        let mut streams = Streams::new(true, &own, (MEMORY, Part::none_of(receive)), MEMORY, pool);
        streams.on_parameters(&peer);
        streams
    }

    fn piece(index: u64, offset: usize) -> StreamHeader {
        StreamHeader {
            id: StreamId(2 * index + 1),
            offset: offset as u64,
            fin: false,
        }
    }

    #[test]
    fn readers_who_stand_still_leave_half_of_the_memory_to_others() {
        const READERS: u64 = 50;
        let mut streams = streams();
        // All of it at once: nobody has stood still for long enough to be held.
        let now = Instant::from_millis(1);
        let mut offset = 0;
        let mut is_taken = true;
        while is_taken && offset + LEN < 1_000_000 {
            is_taken = false;
            for header in (0..READERS).map(|index| piece(index, offset)) {
                if streams.refuses(header, LEN).is_some() {
                    streams.hold(header.id);
                } else {
                    streams.on_data(now, header, &[0; LEN]).unwrap();
                    is_taken = true;
                }
            }
            offset += LEN;
        }
        let most = MEMORY.get() as usize / 2 + READERS as usize * (ENOUGH + LEN);
        assert!(streams.memory() <= most, "{} of {most}", streams.memory());
        let of_another = piece(READERS, 200_000);
        assert_eq!(streams.refuses(of_another, LEN), None);
    }

    /// A hostile client, again: what it brought in vain is held until the session is over.
    #[test]
    fn what_came_beyond_the_session_s_credit_is_returned_once() {
        let pool = MemoryPool::default();
        let mut streams = streams_of(&pool);
        streams.receive_credit = 1_000;
        let taken = streams.on_data(Instant::EPOCH, piece(0, 0), &[0; LEN]);
        assert_eq!(taken, Err(Violation::SessionCreditExceeded));
        assert_eq!(pool.held(), Bytes::from(LEN));
        streams.stop(piece(0, 0).id, 0);
        assert_eq!(pool.held(), Bytes::ZERO);
    }

    /// A hostile client opens sessions and has everything unread (docs/security.md, M4).
    #[test]
    fn however_many_sessions_are_left_unread_the_next_one_has_as_much() {
        const SESSIONS: usize = 20;
        let pool = MemoryPool::new(MEMORY);
        // As much as it takes in of ten streams that nobody reads.
        let fill = |streams: &mut Streams| {
            let mut offset = 0;
            let mut is_taken = true;
            while is_taken && offset + LEN < 1_000_000 {
                is_taken = false;
                for header in (0..10).map(|index| piece(index, offset)) {
                    if streams.refuses(header, LEN).is_none() {
                        let now = Instant::from_millis(1);
                        streams.on_data(now, header, &[0; LEN]).unwrap();
                        is_taken = true;
                    }
                }
                offset += LEN;
            }
            streams.memory()
        };
        let mut sessions: Vec<_> = (0..SESSIONS).map(|_| streams_of(&pool)).collect();
        let held: Vec<usize> = sessions.iter_mut().map(fill).collect();
        let sum: usize = held.iter().sum();
        assert_eq!(pool.held().get() as usize, sum);
        // Beyond the pool only what each session has in any case, and a packet of each stream.
        let most = MEMORY.get() as usize + SESSIONS * (FLOOR + 10 * LEN);
        assert!(sum <= most, "{sum} of {most}");
        let next = fill(&mut streams_of(&pool));
        let least = held.iter().min().copied().unwrap_or(0);
        assert!(
            next > 0 && next >= least.min(10 * LEN),
            "{next} of {held:?}"
        );
        drop(sessions);
        assert_eq!(pool.held(), Bytes::ZERO);
    }
}
