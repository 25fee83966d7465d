//! Whose turn it is to send, and filling packets with it.
//!
//! Owns the choice among the streams of a session. Credit and the streams themselves are
//! [`Streams`]'; which path a packet takes is not known here.

use super::*;

/// Where a packet's stream data stands among what waits, by when it arrives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Others bring so many unsent bytes sooner.
    pub(crate) ahead: Bytes,
    pub(crate) arrives_at: Option<Instant>,
}

/// Of a control frame. Four are more than all frames of one stream: ids have at most 4 bytes.
const LONGEST: usize = 25;

impl Streams {
    pub(super) fn session_room(&self) -> u64 {
        self.send_credit - self.sent.min(self.send_credit)
    }

    pub(super) fn enqueue(&mut self, id: StreamId) {
        let room = self.session_room();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.recount(&mut self.counts);
        match stream.turn {
            // A stream without session credit waits in the queue as well: credit frees all at once.
            None if stream.send.has_pending(room.max(1)) => {
                stream.line_up(id, room > 0, &mut self.pending);
            }
            Some(turn) if stream.standing.needs_no_credit => {
                self.pending.get_mut(stream.class).take_up(turn);
            }
            None | Some(_) => {}
        }
    }

    pub(super) fn pending(&self, class: ClassId) -> &Turns<StreamId> {
        const NONE: &Turns<StreamId> = &Turns::new();
        self.pending.get(class).unwrap_or(NONE)
    }

    /// Whether data of a class could go out now.
    pub(crate) fn has_data(&self, class: ClassId) -> bool {
        let counts = self.counts.get(class);
        !self.pending(class).is_empty()
            && (self.session_room() > 0 || counts.is_some_and(|counts| counts.need_no_credit > 0))
    }

    /// Bytes of a class waiting to be sent for the first time or again, as far as credit allows.
    /// Then what else the streams will have to send once their first credit is renewed, and how
    /// much of the first number stands near the end of that credit. Looks at the first few streams
    /// only: the scheduler asks whether the backlog is large, not how large.
    pub(crate) fn backlog(&self, class: ClassId) -> [Bytes; 3] {
        let room = self.session_room();
        let sum = self.first_streams(class).fold([0; 3], |sum, (_, stream)| {
            let (beyond, latter) = stream.send.beyond();
            let of_stream = [stream.send.unsent(room), beyond, latter];
            std::array::from_fn(|i| sum[i] + of_stream[i])
        });
        sum.map(Bytes::new)
    }

    /// The streams whose turn comes first, with their place in the queue.
    fn first_streams(&self, class: ClassId) -> impl Iterator<Item = (usize, &Stream)> {
        let first = self.pending(class).iter().take(FIRST_STREAMS).enumerate();
        first.filter_map(|(place, id)| Some((place, self.streams.get(id)?)))
    }

    /// Whether anything waits that was given out before: lost, or passed over.
    pub(crate) fn has_waiting(&self, class: ClassId) -> bool {
        self.first_streams(class)
            .any(|(_, stream)| stream.send.has_waiting())
    }

    /// Whether everything of some stream that may be sent has been, and waits for acknowledgement
    /// or credit.
    pub(crate) fn is_draining(&self, class: ClassId) -> bool {
        let counts = self.counts.get(class);
        counts.is_some_and(|counts| counts.draining > 0)
    }

    /// Whether the peer's reader of a stream waits, with much that came later.
    pub(crate) fn is_held_up(&self, class: ClassId, much: Bytes) -> bool {
        self.first_streams(class)
            .any(|(_, stream)| stream.send.is_held_up(much))
    }

    /// Whether the peer has something of what stands behind a packet's data.
    pub(crate) fn is_awaited_by_peer(&self, frames: &SentFrames) -> bool {
        frames.iter().any(|frame| match frame {
            SentFrame::Stream { id, offset, .. } => {
                let stream = self.streams.get(&id);
                stream.is_some_and(|stream| offset < stream.send.acked_end())
            }
            _ => false,
        })
    }

    /// Whether what a packet carried is of streams of another class.
    pub(crate) fn has_other_class(&self, class: ClassId, frames: &SentFrames) -> bool {
        // Without classes there is nothing to look up.
        self.pending.has_several()
            && frames.iter().any(|frame| match frame {
                SentFrame::Stream { id, .. } => self.class(id) != class,
                _ => false,
            })
    }

    pub(crate) fn has_control(&self) -> bool {
        self.receive_credit_due || self.remote_limit_due || !self.control.is_empty()
    }

    /// Appends control frames while `space` lasts.
    pub(crate) fn fill_control(&mut self, out: &mut Vec<u8>, space: usize, sent: &mut SentFrames) {
        let end = out.len() + space;
        if self.receive_credit_due && out.len() + LONGEST <= end {
            self.receive_credit_due = false;
            Frame::MaxData(self.receive_credit).emit(out);
            sent.push(SentFrame::MaxData);
        }
        if self.remote_limit_due && out.len() + LONGEST <= end {
            self.remote_limit_due = false;
            Frame::MaxStreams(self.remote_limit).emit(out);
            sent.push(SentFrame::MaxStreams);
        }
        while out.len() + 4 * LONGEST <= end {
            let Some(id) = self.control.pop_front() else {
                return;
            };
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            let due = std::mem::take(&mut stream.due);
            if due.reset
                && let Some((code, final_size)) = stream.send.reset_frame()
            {
                Frame::ResetStream {
                    id,
                    code,
                    final_size,
                }
                .emit(out);
                sent.push(SentFrame::ResetStream(id));
            }
            if due.class {
                Self::emit_class(id, stream, out, sent);
            }
            if let Some(code) = due.stop {
                Frame::StopSending { id, code }.emit(out);
                sent.push(SentFrame::StopSending(id));
            }
            if due.credit {
                Self::emit_credit(id, stream, out);
                sent.push(SentFrame::MaxStreamData(id));
                self.renewed.push(id);
            }
            if due.hold {
                let (number, at) = stream.receive.hold.state();
                Frame::StreamHold { id, number, at }.emit(out);
                sent.push(SentFrame::StreamHold(id));
            }
        }
    }

    /// Whether credit has just left.
    pub(crate) fn has_renewed(&self) -> bool {
        !self.renewed.is_empty()
    }

    /// There is no other path for it.
    pub(crate) fn forget_renewed(&mut self) {
        self.renewed.clear();
    }

    /// Appends that credit once more while `space` lasts.
    pub(crate) fn fill_renewed(&mut self, out: &mut Vec<u8>, space: usize) {
        let end = out.len() + space;
        for id in self.renewed.drain(..) {
            if out.len() + LONGEST <= end
                && let Some(stream) = self.streams.get(&id)
            {
                Self::emit_credit(id, stream, out);
            }
        }
    }

    fn emit_credit(id: StreamId, stream: &Stream, out: &mut Vec<u8>) {
        let max = stream.receive.credit();
        Frame::MaxStreamData { id, max }.emit(out);
    }

    fn emit_class(id: StreamId, stream: &Stream, out: &mut Vec<u8>, sent: &mut SentFrames) {
        Frame::StreamClass {
            id,
            number: stream.class_number,
            class: stream.class,
        }
        .emit(out);
        sent.push(SentFrame::StreamClass(id));
    }

    /// Appends a class's stream data while `space` lasts, one piece of each stream in turn. Not
    /// what is next, but what stands behind `ahead` unsent bytes, because others bring those
    /// sooner.
    pub(crate) fn fill_data(
        &mut self,
        class: ClassId,
        out: &mut Vec<u8>,
        space: usize,
        place: Place,
        sent: &mut SentFrames,
    ) {
        let end = out.len() + space;
        // Streams that are held meanwhile come around in vain; those for which the session has no
        // credit are passed over.
        let mut vain = 0;
        while vain < self.pending(class).len() {
            let room = end - out.len();
            let Some((id, piece)) = self.take_piece(class, room, place) else {
                return;
            };
            match piece {
                Some(piece) => {
                    self.emit_piece(id, &piece, out, room, sent);
                    if self.is_awaited(id, &piece) {
                        return;
                    }
                }
                None => vain += 1,
            }
        }
    }

    /// Gives the next piece of a class out, to be sent later by [`fill_piece`](Self::fill_piece).
    /// At most what a packet with `space` for frames carries.
    pub(crate) fn set_aside(&mut self, class: ClassId, space: usize) -> Option<Reserved> {
        for _ in 0..self.pending(class).len() {
            let (id, piece) = self.take_piece(class, space, Place::default())?;
            if let Some(Piece { range, fin, .. }) = piece {
                return Some(Reserved { id, range, fin });
            }
        }
        None
    }

    /// Takes back what was set aside and not sent. It waits in its stream's order again.
    pub(crate) fn take_back(&mut self, piece: Reserved) {
        let Reserved {
            id,
            range: Range { start, end },
            fin,
        } = piece;
        self.on_lost(SentFrame::Stream {
            id,
            offset: start,
            len: (end - start) as u32,
            fin,
        });
    }

    /// Whether any of what was set aside is still to be sent.
    pub(crate) fn wants(&self, piece: &Reserved) -> bool {
        let stream = self.streams.get(&piece.id);
        stream.is_some_and(|stream| piece.fin || stream.send.misses(piece.range.clone()))
    }

    /// Appends what was set aside, if it fits and has not arrived meanwhile; gives back the rest.
    /// `None` also when nothing is left of it to send. What the peer's reader waits for fills the
    /// packet, however short it is.
    pub(crate) fn fill_piece(
        &mut self,
        mut piece: Reserved,
        out: &mut Vec<u8>,
        space: &mut usize,
        sent: &mut SentFrames,
    ) -> Option<Reserved> {
        let stream = self.streams.get_mut(&piece.id)?;
        if stream.send.reset_frame().is_some() {
            return None;
        }
        let wanted = stream.send.still_wanted(piece.range.clone());
        let has_end = wanted
            .as_ref()
            .is_none_or(|range| range.end == piece.range.end);
        piece.fin &= has_end;
        self.enqueue(piece.id);
        piece.range = match wanted {
            Some(range) => range,
            None if piece.fin => piece.range.end..piece.range.end,
            None => return None,
        };
        let at = StreamHeader {
            id: piece.id,
            offset: piece.range.start,
            fin: false,
        };
        let announcement = self.announcement(piece.id);
        if *space < announcement + at.size(true) + MIN_PIECE {
            return Some(piece);
        }
        let most = (*space - announcement - at.size(false)) as u64;
        let cut = piece.range.end.min(piece.range.start + most);
        let rest = (cut < piece.range.end).then(|| Reserved {
            range: cut..piece.range.end,
            ..piece.clone()
        });
        let fin = piece.fin && rest.is_none();
        let piece_now = Piece {
            range: piece.range.start..cut,
            fin,
            fresh: 0,
            again: false,
        };
        let before = out.len();
        self.emit_piece(piece.id, &piece_now, out, *space, sent);
        *space -= out.len() - before;
        if self.is_awaited(piece.id, &piece_now) {
            *space = 0;
        }
        rest
    }

    /// The next piece of the stream whose turn it is, and gives the turn to the next. `None` when
    /// `room` is too small for any, or none is left; no piece when that stream has none.
    fn take_piece(
        &mut self,
        class: ClassId,
        room: usize,
        place: Place,
    ) -> Option<(StreamId, Option<Piece>)> {
        let ahead = self.choose_depth(class, place.ahead);
        let reach = self.reach();
        let credit = self.session_room();
        let id = self.pending.get_mut(class).pop_front(credit > 0)?;
        let announcement = self.announcement(id);
        #[cfg(test)]
        {
            self.looked_at += 1;
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Some((id, None));
        };
        let at = StreamHeader {
            id,
            offset: stream.send.latest_start(),
            fin: false,
        };
        if room < announcement + at.size(true) + MIN_PIECE {
            stream.turn = Some(self.pending.get_mut(class).push_front(id));
            return None;
        }
        stream.turn = None;
        let most = (room - announcement - at.size(false)) as u64;
        let terms = Terms {
            most,
            session_credit: credit,
            ahead,
            arrival: place.arrives_at.zip(reach),
        };
        let piece = stream.send.next_piece(terms);
        self.rescued += piece.as_ref().map_or(0, |piece| piece.rescued());
        self.sent += piece.as_ref().map_or(0, |piece| piece.fresh);
        assert!(self.sent <= self.send_credit, "the peer granted it");
        self.enqueue(id);
        Some((id, piece))
    }

    /// How far data of one stream may arrive before what stands in front of it: streams that send
    /// share the peer's memory.
    pub(super) fn reach(&self) -> Option<u64> {
        let senders: usize = self.pending.iter().map(Turns::len).sum();
        let senders = senders.clamp(1, FIRST_STREAMS) as u64;
        self.peer_reach.map(|reach| reach / senders)
    }

    /// How many bytes were sent again before they were late, since it was asked last.
    pub(crate) fn take_rescued(&mut self) -> Bytes {
        Bytes::new(std::mem::take(&mut self.rescued))
    }

    /// How deep into a stream `ahead` bytes of all streams reach, which send in turn. Gives the
    /// turn to a stream that has so much, if any has.
    fn choose_depth(&mut self, class: ClassId, ahead: Bytes) -> u64 {
        if ahead == Bytes::ZERO {
            return 0;
        }
        let room = self.session_room();
        let depth = ahead.get() / self.pending(class).len().clamp(1, FIRST_STREAMS) as u64;
        let deep = self
            .first_streams(class)
            .find(|(_, stream)| stream.send.unsent(room) > depth);
        let place = deep.map_or(0, |(place, _)| place);
        for _ in 0..place {
            self.pass_on(class);
        }
        depth
    }

    /// The stream whose turn it is lets all others go first.
    fn pass_on(&mut self, class: ClassId) {
        let has_credit = self.session_room() > 0;
        let first = self.pending.get_mut(class).pop_front(true);
        if let Some(id) = first
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.line_up(id, has_credit, &mut self.pending);
        }
    }

    /// Whether the peer's reader waits for this piece, which was given out before. It travels
    /// alone: a receiver short of memory takes it, but not what is behind it [P-6.6], and it can
    /// only take or leave a packet as a whole.
    fn is_awaited(&self, id: StreamId, piece: &Piece) -> bool {
        let stream = self.streams.get(&id);
        piece.fresh == 0 && stream.is_some_and(|stream| stream.send.awaits(piece.range.start))
    }

    /// What a stream's first piece may have in front: its class.
    fn announcement(&self, id: StreamId) -> usize {
        let is_classed = |id| {
            let stream = self.streams.get(&id);
            stream.is_some_and(|stream: &Stream| stream.class_number > 0)
        };
        // Without classes there is nothing to look up.
        match self.pending.has_several() && self.tells_classes && is_classed(id) {
            true => STREAM_CLASS_MAX,
            false => 0,
        }
    }

    fn emit_piece(
        &mut self,
        id: StreamId,
        piece: &Piece,
        out: &mut Vec<u8>,
        room: usize,
        sent: &mut SentFrames,
    ) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let header = StreamHeader {
            id,
            offset: piece.range.start,
            fin: piece.fin,
        };
        let before = out.len();
        if piece.range.start == 0 && self.announcement(id) > 0 {
            // Whoever reads the stream's first byte knows its class [P-11.3].
            Self::emit_class(id, stream, out, sent);
        }
        let room = room - (out.len() - before);
        let len = (piece.range.end - piece.range.start) as usize;
        // The packet's last frame needs no length; what the length would take is padding.
        let left = room - header.size(false) - len;
        let with_len = left >= LENGTH_FIELD;
        if !with_len {
            (0..left).for_each(|_| Frame::Padding.emit(out));
        }
        header.emit(with_len.then_some(len), out);
        stream.send.copy(piece.range.clone(), out);
        let (offset, len, fin) = (piece.range.start, len as u32, piece.fin);
        sent.push(SentFrame::Stream {
            id,
            offset,
            len,
            fin,
        });
    }
}

impl Stream {
    /// Gets a turn after all others, to be passed over while it could do nothing with it.
    fn line_up(&mut self, id: StreamId, has_credit: bool, pending: &mut ByClass<Turns<StreamId>>) {
        let turns = pending.get_mut(self.class);
        self.turn = Some(match has_credit || self.standing.needs_no_credit {
            true => turns.push_back(id),
            false => turns.pass_over(id),
        });
    }
}
