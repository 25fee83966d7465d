//! The sending half of a stream: what is written, what is on its way, what must go again.

use std::ops::Range;

use tabane_base::{Bytes, Instant};

use super::flights::Flights;
use super::ring::Ring;
use super::standing::Standing;
use super::window::UNPROVED;
use crate::memory_pool::{Holding, SessionPool};
use crate::ranges::RangeSet;

/// Memory that a stream keeps when all of it has arrived: enough for the next answer of a web page.
const KEPT: usize = 64 * 1024;
/// Ranges looked at for how much is to be sent again: whoever asks, for each packet, wants to know
/// whether that is much, and the peer says in how many crumbs.
const LOOKED_AT: usize = 256;

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
    /// It is on its way already, and would come late.
    pub(crate) again: bool,
}

impl Piece {
    /// Bytes sent again before they were late.
    pub(crate) fn rescued(&self) -> u64 {
        if self.again {
            self.range.end - self.range.start
        } else {
            0
        }
    }
}

/// What the next piece is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Bytes the packet holds.
    pub(crate) most: u64,
    pub(crate) session_credit: u64,
    /// Unsent bytes of the stream that others bring sooner.
    pub(crate) ahead: u64,
    /// When it arrives, and how far before what stands in front of it that may be; `None` where
    /// the peer has memory enough.
    pub(crate) arrival: Option<(Instant, u64)>,
}

/// The sending half of one stream.
#[derive(Debug)]
pub(crate) struct SendHalf {
    /// Bytes from `acked_to` on.
    buffer: Ring,
    /// As long as `buffer`.
    holding: Holding,
    acked_to: u64,
    /// Acknowledged beyond `acked_to`.
    acked: RangeSet,
    /// The first offset never given out for sending.
    sent_to: u64,
    /// To be sent (again), all below `sent_to`: what was lost, and what was passed over because
    /// a faster path will bring it in time.
    waiting: RangeSet,
    flights: Flights,
    end: End,
    /// The peer takes offsets below this.
    credit: u64,
    /// The peer had no memory for what was sent: until it has everything below the first number,
    /// nothing is sent that is farther than the second from what it waits for.
    recovery: Option<(u64, u64)>,
    /// The newest that the peer said of its reader: a number, and the offset where that one stands
    /// still. Nothing is sent at or beyond it.
    held: (u64, Option<u64>),
    /// Abandoned with this code; `true` once the peer acknowledged that.
    reset: Option<(u64, bool)>,
    /// To be abandoned with this code once the peer has what is left.
    reset_behind: Option<u64>,
    /// The writer waits for room.
    pub(crate) writer_waits: bool,
}

impl SendHalf {
    pub(crate) fn new(credit: u64, pool: &SessionPool) -> Self {
        Self {
            buffer: Ring::new(),
            holding: Holding::none_of(pool),
            acked_to: 0,
            acked: RangeSet::default(),
            sent_to: 0,
            waiting: RangeSet::default(),
            flights: Flights::default(),
            end: End::Open,
            credit,
            recovery: None,
            held: (0, None),
            reset: None,
            reset_behind: None,
            writer_waits: false,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.end == End::Open && self.reset.is_none() && self.reset_behind.is_none()
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

    /// What may be held, where the paths could use `wanted` bytes.
    pub(crate) fn limit(&self, wanted: usize) -> usize {
        wanted.min(self.holding.share())
    }

    pub(crate) fn write(&mut self, data: &[u8]) {
        self.buffer.extend(data);
        self.holding.set(self.buffer.len());
    }

    /// Where to put up to `most` bytes, which count as written once they are
    /// [`filled`](Self::filled).
    pub(crate) fn room(&mut self, most: usize) -> &mut [u8] {
        self.buffer.room(most)
    }

    pub(crate) fn filled(&mut self, n: usize) {
        self.buffer.filled(n);
        self.holding.set(self.buffer.len());
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
        self.buffer = Ring::new();
        self.holding.set(0);
        self.waiting = RangeSet::default();
        self.flights = Flights::default();
        Some(())
    }

    /// Abandons the half once the peer has what was written, but for what it has no room for: a
    /// reader that stands still is not waited for.
    pub(crate) fn reset_behind(&mut self, code: u64) {
        if self.is_open() {
            let sendable = self.credit.max(self.sent_to) - self.acked_to;
            self.buffer.truncate(sendable as usize);
            self.holding.set(self.buffer.len());
            self.reset_behind = Some(code);
        }
    }

    /// The code of a reset that nothing stands in front of any more.
    pub(crate) fn due_reset(&self) -> Option<u64> {
        let code = self.reset_behind.filter(|_| self.reset.is_none())?;
        (self.buffer.is_empty() || self.held.1.is_some()).then_some(code)
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
            .min(self.safe_to())
            .saturating_sub(self.sent_to)
    }

    /// Bytes beyond what is granted before anybody is known to read, which is renewed soon; and
    /// those unsent in the latter half of that grant.
    pub(crate) fn beyond(&self) -> (u64, u64) {
        let beyond = self.written_to().saturating_sub(self.credit);
        if self.credit != UNPROVED || beyond == 0 {
            return (0, 0);
        }
        let half = self.credit / 2;
        let waiting = self.waiting.total() - self.waiting.total_below(half, LOOKED_AT);
        let fresh = self.credit.saturating_sub(self.sent_to.max(half));
        (beyond, waiting + fresh)
    }

    /// The peer's reader stands still at an offset, or goes on.
    pub(crate) fn on_hold(&mut self, number: u64, at: Option<u64>) {
        if number > self.held.0 {
            self.held = (number, at);
        }
    }

    /// Nothing at or behind this is sent, because the peer would have no memory for it. What it
    /// waits for is before.
    fn safe_to(&self) -> u64 {
        let recovered = |(_, window): (u64, u64)| self.acked_to + window.max(1);
        let memory = self.recovery.map_or(u64::MAX, recovered);
        memory.min(self.held.1.unwrap_or(u64::MAX))
    }

    /// Bytes to be sent again that the peer has memory for; less where they are in very many
    /// pieces, and the peer keeps some of them back.
    fn waiting(&self) -> u64 {
        match self.safe_to() {
            u64::MAX => self.waiting.total(),
            safe_to => self.waiting.total_below(safe_to, LOOKED_AT),
        }
    }

    /// The peer threw away what was sent, having memory for `window` bytes of the stream.
    pub(crate) fn on_shed(&mut self, up_to: u64, window: u64) {
        let (before, least) = self.recovery.unwrap_or((0, u64::MAX));
        self.recovery = Some((before.max(up_to), window.min(least)));
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Bytes that could go out, given so much session credit.
    pub(crate) fn unsent(&self, session_credit: u64) -> u64 {
        self.waiting() + self.fresh().min(session_credit)
    }

    /// Whether anything was ever given out.
    pub(crate) fn has_begun(&self) -> bool {
        self.sent_to > 0 || matches!(self.end, End::Sent | End::Acked)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        let first = self.waiting.first();
        first.is_some_and(|range| range.start < self.safe_to())
    }

    /// Whether anything could go out, given so much session credit.
    pub(crate) fn has_pending(&self, session_credit: u64) -> bool {
        self.reset.is_none()
            && (self.has_waiting()
                || self.fresh().min(session_credit) > 0
                || self.end == End::Pending && self.sent_to == self.written_to())
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            is_draining: self.is_draining(),
            needs_no_credit: self.has_pending(0),
        }
    }

    /// An offset that no piece given out now begins beyond.
    pub(crate) fn latest_start(&self) -> u64 {
        self.written_to()
    }

    /// The next piece: the first that waits, in the stream's order, or what stands behind `ahead`
    /// unsent bytes, which will be given out in time for it. Or one that is on its way and would
    /// come too late for that.
    pub(crate) fn next_piece(&mut self, terms: Terms) -> Option<Piece> {
        if self.reset.is_some() {
            return None;
        }
        let Terms {
            most,
            session_credit,
            ahead,
            arrival,
        } = terms;
        // The last of them where they are fewer: what is next would be late by all that is between.
        let ahead = match self.unsent(session_credit) {
            unsent if ahead < unsent => ahead,
            unsent => unsent.saturating_sub(most),
        };
        // Little memory is soon full of crumbs: cut by whole packets.
        let grain = arrival.map_or(1, |_| most);
        let has_waiting = self.has_waiting();
        let waiting = has_waiting
            .then(|| self.waiting.pop_behind(ahead, most, grain))
            .flatten();
        let passed = ahead - self.waiting().min(ahead);
        let start = waiting
            .as_ref()
            .map_or(self.sent_to + passed, |range| range.start);
        if let Some((arrives_at, reach)) = arrival
            && let reach = reach.saturating_sub(self.acked.total())
            && let Some(late) = self.flights.late(start.saturating_sub(reach), arrives_at)
        {
            waiting
                .into_iter()
                .for_each(|range| self.waiting.insert(range));
            let range = late.start..late.end.min(late.start + most);
            self.flights.insert(range.clone(), arrives_at);
            return Some(Piece {
                range,
                fin: false,
                fresh: 0,
                again: true,
            });
        }
        let piece = if let Some(range) = waiting {
            Piece {
                range,
                fin: false,
                fresh: 0,
                again: false,
            }
        } else {
            self.fresh_piece(
                passed,
                (self.fresh().min(session_credit) - passed).min(most),
            )
        };
        if let Some((arrives_at, _)) = arrival {
            self.flights.insert(piece.range.clone(), arrives_at);
        }
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

    /// `len` bytes that were never given out, behind `passed` others that wait from now on.
    fn fresh_piece(&mut self, passed: u64, len: u64) -> Piece {
        let start = self.sent_to + passed;
        self.waiting.insert(self.sent_to..start);
        self.sent_to = start + len;
        let granted = self.credit.min(self.written_to());
        assert!(self.sent_to <= granted, "it is written, and granted");
        Piece {
            range: start..start + len,
            fin: false,
            fresh: passed + len,
            again: false,
        }
    }

    /// Appends the bytes of `range`, all of them unacknowledged.
    pub(crate) fn copy(&self, range: Range<u64>, out: &mut Vec<u8>) {
        let from = (range.start - self.acked_to) as usize;
        let to = (range.end - self.acked_to) as usize;
        let (front, back) = self.buffer.slices(from, to);
        out.extend_from_slice(front);
        out.extend_from_slice(back);
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
        self.flights.remove(range.clone());
        if range.start > self.acked_to {
            self.acked.insert(range);
            return;
        }
        let mut to = range.end;
        while let Some(next) = self.acked.first()
            && next.start <= to
        {
            to = to.max(next.end);
            self.acked.forget_first();
        }
        self.buffer.consume((to - self.acked_to) as usize);
        self.holding.set(self.buffer.len());
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
            self.buffer = Ring::new();
        }
        self.acked_to = to;
        self.recovery = self.recovery.filter(|(recovered, _)| to < *recovered);
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
            self.flights.remove(range.clone());
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

    /// Whether the peer has `much` out of order.
    pub(crate) fn is_held_up(&self, much: Bytes) -> bool {
        self.reset.is_none() && self.acked.total() >= much.get()
    }

    /// What the peer has ends here.
    pub(crate) fn acked_end(&self) -> u64 {
        let last = self.acked.iter().next_back();
        last.map_or(self.acked_to, |range| range.end)
    }

    /// Sent, not acknowledged, and nothing left to send: the tail of what was written.
    fn is_draining(&self) -> bool {
        self.reset.is_none()
            && self.waiting.is_empty()
            && !self.buffer.is_empty()
            && (self.sent_to == self.written_to() || self.sent_to >= self.credit)
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Bytes;

    use super::*;
    use crate::memory_pool::MemoryPool;

    /// With every other piece of so many lost, and the peer's reader standing still in the middle,
    /// how long a thousand looks take how much there is to send.
    #[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
    fn asked(pieces: u64) -> std::time::Duration {
        let pool = SessionPool::new(MemoryPool::new(Bytes::mega(64)));
        let mut half = SendHalf::new(u64::MAX, &pool);
        half.write(&vec![0; 2_000 * pieces as usize]);
        half.fresh_piece(0, 2_000 * pieces);
        for piece in 0..pieces {
            half.on_lost(2_000 * piece..2_000 * piece + 1_000, false);
        }
        half.on_hold(1, Some(1_000 * pieces));
        let since = std::time::Instant::now();
        for _ in 0..1_000 {
            assert!(std::hint::black_box(&half).unsent(0) > 0);
        }
        since.elapsed()
    }

    #[test]
    fn what_was_lost_in_crumbs_is_not_counted_for_each_packet() {
        let rounds = (0..20).map(|_| (asked(400), asked(10_000)));
        let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
        let (few, all) = least.expect("twenty");
        println!("1,000 looks: {few:?} with 400 pieces, {all:?} with 10,000");
        assert!(
            all < 4 * few,
            "{few:?} with 400 pieces, {all:?} with 10,000"
        );
    }

    fn pieces(send: &mut SendHalf) -> Vec<Range<u64>> {
        let terms = Terms {
            most: 10,
            session_credit: 1_000,
            ahead: 0,
            arrival: None,
        };
        std::iter::from_fn(|| send.next_piece(terms).map(|piece| piece.range)).collect()
    }

    /// It was what is next, and all that is behind it waited for as long as the far path takes.
    #[test]
    fn where_less_waits_than_others_bring_sooner_a_far_path_gets_the_last_of_it() {
        let mut send = SendHalf::new(1_000, &SessionPool::new(MemoryPool::new(Bytes::mega(1))));
        send.write(&[7; 60]);
        let mut piece_behind = |ahead| {
            let terms = Terms {
                most: 10,
                session_credit: 1_000,
                ahead,
                arrival: None,
            };
            send.next_piece(terms).map(|piece| piece.range)
        };
        assert_eq!(piece_behind(70), Some(50..60));
        assert_eq!(piece_behind(20), Some(20..30));
        assert_eq!(piece_behind(40), Some(40..50));
        assert_eq!(piece_behind(0), Some(0..10));
    }

    #[test]
    fn a_held_stream_goes_on_by_the_newest_word_alone() {
        let mut send = SendHalf::new(1_000, &SessionPool::new(MemoryPool::new(Bytes::mega(1))));
        send.write(&[7; 60]);
        assert_eq!(pieces(&mut send).len(), 6);
        // The reader stands still at 20, and what was on its way beyond that was shed.
        send.on_hold(1, Some(20));
        send.on_lost(0..60, false);
        assert_eq!(pieces(&mut send), [0..10, 10..20]);
        send.write(&[8; 10]);
        assert!(!send.has_pending(1_000));
        send.on_hold(2, None);
        send.on_hold(1, Some(20));
        assert_eq!(pieces(&mut send).len(), 5, "20 to 70");
    }

    #[test]
    fn a_reset_behind_data_waits_for_it_and_for_no_reader_that_stands_still() {
        let new = || {
            let mut send = SendHalf::new(50, &SessionPool::new(MemoryPool::new(Bytes::mega(1))));
            send.write(&[7; 60]);
            pieces(&mut send);
            send.reset_behind(3);
            assert!(!send.is_open() && send.due_reset().is_none());
            send
        };
        let mut send = new();
        send.on_acked(0..50, false);
        assert_eq!(send.due_reset(), Some(3), "there was no credit for more");
        let mut send = new();
        send.on_hold(1, Some(20));
        assert_eq!(send.due_reset(), Some(3));
    }

    #[test]
    fn what_was_shed_goes_again_no_faster_than_the_peer_has_memory_for_it() {
        let mut send = SendHalf::new(1_000, &SessionPool::new(MemoryPool::new(Bytes::mega(1))));
        send.write(&[7; 60]);
        assert_eq!(pieces(&mut send).len(), 6);
        send.on_shed(60, 20);
        send.on_lost(0..60, false);
        assert_eq!(pieces(&mut send), [0..10, 10..20]);
        assert!(!send.has_pending(1_000));
        // What comes behind the first number that is awaited may arrive first: nothing opens.
        send.on_acked(10..20, false);
        assert!(!send.has_pending(1_000));
        send.on_acked(0..10, false);
        assert_eq!(pieces(&mut send), [20..30, 30..40]);
        // Whatever the memory, what is awaited goes again.
        send.on_shed(60, 0);
        send.on_lost(20..30, false);
        let awaited = 20..30;
        assert_eq!(pieces(&mut send), [awaited]);
        send.on_acked(20..60, false);
        assert!(!send.is_recovering());
    }
}
