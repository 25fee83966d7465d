//! The sending half of a stream: what is written, what is on its way, what must go again.

use std::collections::VecDeque;
use std::ops::Range;

use crate::ranges::RangeSet;

/// What became of the end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// More may be written.
    Open,
    /// To be told.
    Pending,
    Sent,
    Acked,
}

/// The next piece of a stream to put into a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range<u64>,
    pub(crate) fin: bool,
    /// Bytes given out for the first time, passed over ones included: they use up session credit.
    pub(crate) fresh: u64,
}

/// The sending half of one stream.
#[derive(Debug)]
pub(crate) struct SendHalf {
    /// Bytes from `acked_to` on.
    buffer: VecDeque<u8>,
    acked_to: u64,
    /// Acknowledged beyond `acked_to`.
    acked: RangeSet,
    /// The first offset never given out for sending.
    sent_to: u64,
    /// To be sent (again), all below `sent_to`: what was lost, and what was passed over because
    /// a faster path will bring it in time.
    waiting: RangeSet,
    end: End,
    /// The peer takes offsets below this.
    credit: u64,
    /// Abandoned with this code; `true` once the peer acknowledged that.
    reset: Option<(u64, bool)>,
    /// The writer waits for room.
    pub(crate) writer_waits: bool,
}

impl SendHalf {
    pub(crate) fn new(credit: u64) -> Self {
        Self {
            buffer: VecDeque::new(),
            acked_to: 0,
            acked: RangeSet::default(),
            sent_to: 0,
            waiting: RangeSet::default(),
            end: End::Open,
            credit,
            reset: None,
            writer_waits: false,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.end == End::Open && self.reset.is_none()
    }

    /// Nothing is left to do for this half.
    pub(crate) fn is_done(&self) -> bool {
        match self.reset {
            Some((_, acked)) => acked,
            None => self.end == End::Acked && self.buffer.is_empty(),
        }
    }

    /// Bytes held for sending or repeating.
    pub(crate) fn held(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn write(&mut self, data: &[u8]) {
        self.buffer.extend(data);
    }

    pub(crate) fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Pending;
        }
    }

    /// Abandons the half. `None` when there is nothing to abandon any more.
    pub(crate) fn reset(&mut self, code: u64) -> Option<()> {
        if self.reset.is_some() || self.is_done() {
            return None;
        }
        self.reset = Some((code, false));
        self.buffer = VecDeque::new();
        self.waiting = RangeSet::default();
        Some(())
    }

    /// Code and final size for a RESET_STREAM frame.
    pub(crate) fn reset_frame(&self) -> Option<(u64, u64)> {
        self.reset.map(|(code, _)| (code, self.sent_to))
    }

    pub(crate) fn on_reset_acked(&mut self) {
        if let Some((_, acked)) = &mut self.reset {
            *acked = true;
        }
    }

    pub(crate) fn on_credit(&mut self, credit: u64) {
        self.credit = self.credit.max(credit);
    }

    fn written_to(&self) -> u64 {
        self.acked_to + self.buffer.len() as u64
    }

    /// Bytes never given out that the stream's own credit lets through.
    pub(crate) fn fresh(&self) -> u64 {
        self.written_to()
            .min(self.credit)
            .saturating_sub(self.sent_to)
    }

    /// Bytes that could go out, given so much session credit.
    pub(crate) fn unsent(&self, session_credit: u64) -> u64 {
        self.waiting.total() + self.fresh().min(session_credit)
    }

    /// Whether anything was ever given out.
    pub(crate) fn has_begun(&self) -> bool {
        self.sent_to > 0 || matches!(self.end, End::Sent | End::Acked)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether anything could go out, given so much session credit.
    pub(crate) fn has_pending(&self, session_credit: u64) -> bool {
        self.reset.is_none()
            && (self.has_waiting()
                || self.fresh().min(session_credit) > 0
                || self.end == End::Pending && self.sent_to == self.written_to())
    }

    /// An offset that no piece given out now begins beyond.
    pub(crate) fn latest_start(&self) -> u64 {
        self.written_to()
    }

    /// The next piece of at most `most` bytes: the first that waits, in the stream's order, or
    /// what stands behind `ahead` unsent bytes, which will be given out in time for it.
    pub(crate) fn next_piece(
        &mut self,
        most: u64,
        session_credit: u64,
        ahead: u64,
    ) -> Option<Piece> {
        if self.reset.is_some() {
            return None;
        }
        let ahead = if ahead < self.unsent(session_credit) {
            ahead
        } else {
            0
        };
        let piece = if let Some(range) = self.waiting.pop_behind(ahead, most) {
            Piece {
                range,
                fin: false,
                fresh: 0,
            }
        } else {
            let passed = ahead - self.waiting.total().min(ahead);
            let start = self.sent_to + passed;
            let len = (self.fresh().min(session_credit) - passed).min(most);
            self.waiting.insert(self.sent_to..start);
            self.sent_to = start + len;
            Piece {
                range: start..start + len,
                fin: false,
                fresh: passed + len,
            }
        };
        let reaches_end = piece.range.end == self.written_to();
        let fin = reaches_end && matches!(self.end, End::Pending | End::Sent);
        if piece.range.is_empty() && !(fin && self.end == End::Pending) {
            return None;
        }
        if fin {
            self.end = End::Sent;
        }
        Some(Piece { fin, ..piece })
    }

    /// Appends the bytes of `range`, all of them unacknowledged.
    pub(crate) fn copy(&self, range: Range<u64>, out: &mut Vec<u8>) {
        let from = (range.start - self.acked_to) as usize;
        let to = (range.end - self.acked_to) as usize;
        let (front, back) = self.buffer.as_slices();
        if from < front.len() {
            out.extend_from_slice(&front[from..to.min(front.len())]);
        }
        if to > front.len() {
            out.extend_from_slice(&back[from.saturating_sub(front.len())..to - front.len()]);
        }
    }

    /// The peer has `range`.
    pub(crate) fn on_acked(&mut self, range: Range<u64>, fin: bool) {
        if fin && self.end == End::Sent {
            self.end = End::Acked;
        }
        if self.reset.is_some() || range.end <= self.acked_to {
            return;
        }
        self.waiting.remove(range.clone());
        self.acked.insert(range.start.max(self.acked_to)..range.end);
        if let Some(first) = self.acked.first()
            && first.start <= self.acked_to
        {
            self.buffer.drain(..(first.end - self.acked_to) as usize);
            self.acked_to = first.end;
            self.acked.forget_first();
        }
    }

    /// `range` must go again, unless it arrived by another way.
    pub(crate) fn on_lost(&mut self, range: Range<u64>, fin: bool) {
        if self.reset.is_some() {
            return;
        }
        if fin && self.end == End::Sent {
            self.end = End::Pending;
        }
        let range = range.start.max(self.acked_to)..range.end;
        if range.start < range.end {
            let Self { acked, waiting, .. } = self;
            acked.gaps(range).for_each(|gap| waiting.insert(gap));
        }
    }

    /// The first part of a piece given out earlier that nobody has acknowledged since; further
    /// parts wait for another turn.
    pub(crate) fn still_wanted(&mut self, range: Range<u64>) -> Option<Range<u64>> {
        if self.reset.is_some() {
            return None;
        }
        let Self { acked, waiting, .. } = self;
        let mut gaps = acked.gaps(range.start.max(self.acked_to)..range.end);
        let first = gaps.next()?;
        gaps.for_each(|gap| waiting.insert(gap));
        Some(first)
    }

    /// Whether the peer has everything before `offset`, and it not.
    pub(crate) fn awaits(&self, offset: u64) -> bool {
        offset == self.acked_to
    }

    /// Whether nobody has acknowledged all of `range`.
    pub(crate) fn misses(&self, range: Range<u64>) -> bool {
        let range = range.start.max(self.acked_to)..range.end;
        self.reset.is_none() && self.acked.gaps(range).next().is_some()
    }

    /// The first part of `range` that nobody has acknowledged and that does not wait for sending.
    pub(crate) fn outstanding(&self, range: Range<u64>) -> Option<Range<u64>> {
        let range = range.start.max(self.acked_to)..range.end;
        if self.reset.is_some() || range.is_empty() {
            return None;
        }
        self.acked
            .gaps(range)
            .next()
            .filter(|gap| !self.waiting.contains(gap.start))
    }

    /// Sent, not acknowledged, and nothing left to send: the tail of what was written.
    pub(crate) fn is_draining(&self) -> bool {
        self.reset.is_none()
            && self.waiting.is_empty()
            && !self.buffer.is_empty()
            && (self.sent_to == self.written_to() || self.sent_to >= self.credit)
    }
}
