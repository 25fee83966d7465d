//! What went on to the mobile host and has not been acknowledged by it, byte range by byte range.
//!
//! Owns the copies from which the gateway sends again, and so the answer to the question which
//! bytes may be acknowledged early: those before the first hole and before the first range without
//! a copy. Ranges never overlap; a byte that is held stays as it came first.

mod islands;
mod scoreboard;

use std::collections::VecDeque;

use tabane_base::Instant;

use crate::options::{Block, Blocks, MAX_BLOCKS};
use crate::seq::Seq;
use islands::Islands;
use scoreboard::Scoreboard;

/// Ranges without copies are kept apart up to this many, so that each gives a round trip; beyond,
/// neighbours become one. Bounds the memory of flows that are only watched.
pub(crate) const MAX_BARE_RANGES: usize = 8;
/// With holes between them so many ranges are known at most, and what comes beyond is not noted: no
/// flow has as many holes, but of one that is only watched a server may leave out what it likes.
const MAX_BARE_APART: usize = 64;
/// What a copy costs besides its bytes: its places, here and on the scoreboard, and a block of the
/// heap.
pub(crate) const OVERHEAD: usize = 192;
const _: () = assert!(size_of::<Held>() <= 112);

/// A range on its way.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) start: Seq,
    pub(crate) end: Seq,
    /// The bytes; `None` where the server still has to answer for them.
    pub(crate) data: Option<Box<[u8]>>,
    /// The server's timestamp on it.
    pub(crate) stamp: u32,
    pub(crate) sent_at: Instant,
    /// Sent a second time: by whomever. Gives no round trip (Karn's rule).
    pub(crate) resent_at: Option<Instant>,
    pub(crate) sacked: bool,
}

/// A segment as it is put in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) start: Seq,
    pub(crate) payload: &'a [u8],
    /// Whether a copy is to be kept.
    pub(crate) keep: bool,
    /// Largest range to keep in one: what can be sent again in one packet.
    pub(crate) chunk: usize,
    pub(crate) stamp: u32,
}

/// Ranges on their way, in order.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The mobile host has everything below.
    base: Seq,
    /// No hole below.
    contiguous: Seq,
    /// No hole and no range without a copy below.
    safe: Seq,
    held: VecDeque<Held>,
    /// Where `base` is, in positions that do not wrap.
    position: u64,
    scoreboard: Scoreboard,
    islands: Islands,
    /// One past the last byte that the mobile host has said to have, beyond a hole.
    sacked_top: Option<Seq>,
    bytes: usize,
    bare: usize,
}

impl Copies {
    pub(crate) fn new(base: Seq) -> Self {
        Self {
            base,
            contiguous: base,
            safe: base,
            held: VecDeque::new(),
            // Before it there is room for whatever is said of bytes long past.
            position: 1 << 32,
            scoreboard: Scoreboard::default(),
            islands: Islands::default(),
            sacked_top: None,
            bytes: 0,
            bare: 0,
        }
    }

    pub(crate) fn base(&self) -> Seq {
        self.base
    }

    pub(crate) fn contiguous(&self) -> Seq {
        self.contiguous
    }

    /// What may be acknowledged early, at most.
    pub(crate) fn safe(&self) -> Seq {
        self.safe
    }

    /// One past the last byte that went on.
    pub(crate) fn top(&self) -> Seq {
        self.held.back().map_or(self.base, |held| held.end)
    }

    /// Bytes of copies.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many ranges have copies.
    pub(crate) fn count(&self) -> usize {
        self.held.len() - self.bare
    }

    /// Bytes of memory that the copies occupy: those of single bytes are not free.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + self.count() * OVERHEAD
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether a segment is missing that the server has to send again.
    pub(crate) fn has_hole(&self) -> bool {
        self.contiguous != self.top()
    }

    /// Whether what comes first has no copy, so that only the server can repair it.
    pub(crate) fn is_bare(&self) -> bool {
        let first = self.held.front();
        first.is_some_and(|held| held.data.is_none() && held.start == self.base)
    }

    /// Whether any copy is kept.
    pub(crate) fn has_copies(&self) -> bool {
        self.bytes > 0
    }

    /// Length of the last range, the one that is acknowledged last.
    pub(crate) fn last_length(&self) -> u32 {
        let last = self.held.back();
        last.map_or(0, |held| held.end.beyond(held.start))
    }

    fn position(&self, seq: Seq) -> u64 {
        self.position
            .saturating_add_signed(seq.since(self.base).into())
    }

    fn seq(&self, position: u64) -> Seq {
        self.base + position.wrapping_sub(self.position) as u32
    }

    /// The place of the first range that ends after `seq`.
    fn place(&self, seq: Seq) -> usize {
        self.held.partition_point(|held| !held.end.is_after(seq))
    }

    /// Whether copies of all of `start..end` are held.
    pub(crate) fn holds(&self, start: Seq, end: Seq) -> bool {
        let mut at = start.later(self.base);
        for held in self.held.range(self.place(at)..) {
            if !at.is_before(end) {
                break;
            }
            if held.start.is_after(at) || held.data.is_none() {
                return false;
            }
            at = held.end;
        }
        !at.is_before(end)
    }

    /// Whether any of `start..end` is on its way.
    pub(crate) fn touches(&self, start: Seq, end: Seq) -> bool {
        let found = self.held.get(self.place(start));
        found.is_some_and(|held| held.start.is_before(end))
    }

    /// Notes what goes on to the mobile host; returns how many bytes of it are new.
    pub(crate) fn insert(&mut self, now: Instant, piece: Piece<'_>) -> usize {
        let skipped = self.base.beyond(piece.start) as usize;
        let Some(mut payload) = piece.payload.get(skipped..) else {
            return 0;
        };
        let mut start = piece.start + skipped as u32;
        let mut fresh = 0;
        let mut place = self.place(start);
        while !payload.is_empty() {
            let position = self.position(start);
            let free = match self.held.get_mut(place) {
                Some(held) if !held.start.is_after(start) => {
                    let covered = (held.end.beyond(start) as usize).min(payload.len());
                    held.resent_at = Some(now);
                    let within = u64::from(start.beyond(held.start));
                    self.scoreboard.resend(now, position - within);
                    let whole = held.start == start && held.end.beyond(start) as usize == covered;
                    if whole && held.data.is_none() && piece.keep {
                        held.data = Some(payload[..covered].into());
                        held.stamp = piece.stamp;
                        self.bytes += covered;
                        self.bare -= 1;
                        self.islands.add(position, position + covered as u64);
                    }
                    start = start + covered as u32;
                    payload = &payload[covered..];
                    place += 1;
                    continue;
                }
                Some(held) => held.start.beyond(start) as usize,
                None => usize::MAX,
            };
            let length = payload.len().min(free).min(piece.chunk.max(1));
            let (now_in, rest) = payload.split_at(length);
            self.put(now, place, start, now_in, piece);
            place = self.place(start + length as u32);
            fresh += length;
            start = start + length as u32;
            payload = rest;
        }
        self.advance();
        fresh
    }

    fn put(&mut self, now: Instant, place: usize, start: Seq, data: &[u8], piece: Piece<'_>) {
        let length = data.len() as u32;
        let (end, position) = (start + length, self.position(start));
        if piece.keep {
            self.bytes += data.len();
            if start.is_after(self.contiguous) {
                let end = position + u64::from(length);
                self.islands.add(position, end);
            }
        } else {
            let before = place.checked_sub(1).and_then(|i| self.held.get_mut(i));
            if let Some(held) = before
                && self.bare >= MAX_BARE_RANGES
                && held.data.is_none()
                && !held.sacked
                && held.end == start
            {
                held.end = end;
                held.resent_at = Some(now);
                let whole = end.beyond(held.start);
                let first = position - u64::from(whole - length);
                self.scoreboard.remove(first);
                self.scoreboard.insert(first, whole, Some(now));
                return;
            }
            if self.bare >= MAX_BARE_APART {
                return;
            }
            self.bare += 1;
        }
        let held = Held {
            start,
            end,
            data: piece.keep.then(|| data.into()),
            stamp: piece.stamp,
            sent_at: now,
            resent_at: None,
            sacked: false,
        };
        self.held.insert(place, held);
        self.scoreboard.insert(position, length, None);
    }

    /// Notes the number a FIN takes. It has no copy: it is the server's to repeat.
    pub(crate) fn insert_fin(&mut self, now: Instant, seq: Seq, stamp: u32) {
        self.insert(
            now,
            Piece {
                start: seq,
                payload: &[0],
                keep: false,
                chunk: 1,
                stamp,
            },
        );
    }

    /// Moves both marks over what is there without a hole.
    fn advance(&mut self) {
        let mut place = self.place(self.contiguous);
        while let Some(held) = self.held.get(place)
            && !held.start.is_after(self.contiguous)
        {
            self.contiguous = held.end;
            place += 1;
        }
        self.islands.join_below(self.position(self.contiguous));
        let mut place = self.place(self.safe);
        while let Some(held) = self.held.get(place)
            && !held.start.is_after(self.safe)
            && held.data.is_some()
        {
            self.safe = held.end;
            place += 1;
        }
    }

    /// The server's timestamp on the segment with the byte `seq`.
    pub(crate) fn stamp_at(&self, seq: Seq) -> Option<u32> {
        let held = self.held.get(self.place(seq))?;
        (!held.start.is_after(seq)).then_some(held.stamp)
    }

    /// The mobile host has everything below `ack`. Returns when the last of it went on, where that
    /// gives a round trip.
    pub(crate) fn acknowledge(&mut self, ack: Seq) -> Option<Instant> {
        if !ack.is_after(self.base) {
            return None;
        }
        let mut sample = None;
        // What waited at the mobile host for a copy sent again was acknowledged late.
        let mut waited = false;
        while let Some(held) = self.held.front_mut()
            && held.start.is_before(ack)
        {
            let position = self.position + u64::from(held.start.beyond(self.base));
            self.scoreboard.remove(position);
            if held.end.is_after(ack) {
                let taken = ack.beyond(held.start) as usize;
                if let Some(data) = &mut held.data {
                    self.bytes -= taken;
                    *data = data[taken..].into();
                }
                held.start = ack;
                if !held.sacked {
                    let position = self.position + u64::from(ack.beyond(self.base));
                    let rest = held.end.beyond(ack);
                    self.scoreboard.insert(position, rest, held.resent_at);
                }
                break;
            }
            let held = self.held.pop_front().expect("it is the front");
            match held.data {
                Some(data) => self.bytes -= data.len(),
                None => self.bare -= 1,
            }
            waited |= held.resent_at.is_some() || held.sacked;
            sample = Some(held.sent_at);
        }
        (self.position, self.base) = (self.position(ack), ack);
        self.sacked_top = self.sacked_top.filter(|top| top.is_after(ack));
        self.contiguous = self.contiguous.later(ack);
        self.safe = self.safe.later(ack);
        self.advance();
        sample.filter(|_| !waited)
    }

    /// The mobile host says that it has these, beyond a hole. Returns whether it has any other
    /// than before.
    pub(crate) fn sack(&mut self, blocks: &[Block]) -> bool {
        let mut news = false;
        for (start, end) in blocks {
            let (from, to) = (self.position(*start), self.position(*end));
            for (position, length) in self.scoreboard.open_within(from, to) {
                if position + u64::from(length) > to {
                    break;
                }
                let place = self.place(self.seq(position));
                let Some(held) = self.held.get_mut(place) else {
                    break;
                };
                self.scoreboard.remove(position);
                held.sacked = true;
                news = true;
                let top = self.sacked_top.map_or(held.end, |top| top.later(held.end));
                self.sacked_top = Some(top);
            }
        }
        news
    }

    /// Where the first `most` copies begin that the mobile host has not said to have, without those
    /// sent again at `resent_before` or later.
    pub(crate) fn missing(&mut self, resent_before: Instant, most: usize) -> Vec<Seq> {
        if resent_before == Instant::NEVER {
            return self.copied(self.scoreboard.open(), most);
        }
        self.scoreboard.give_up_waiting(resent_before);
        self.copied(self.scoreboard.due(), most)
    }

    /// The first of these of which there are copies. At most [`MAX_BARE_APART`] have none.
    fn copied(&self, positions: impl Iterator<Item = u64>, most: usize) -> Vec<Seq> {
        let starts = positions.map(|position| self.seq(position));
        let copied = |start: &Seq| self.at(*start).is_some_and(|held| held.data.is_some());
        starts.filter(copied).take(most).collect()
    }

    /// The copy that begins at `start` is sent again.
    pub(crate) fn note_resent(&mut self, now: Instant, start: Seq) {
        let place = self.place(start);
        if let Some(held) = self.held.get_mut(place) {
            held.resent_at = Some(now);
            let position = self.position + u64::from(held.start.beyond(self.base));
            self.scoreboard.resend(now, position);
        }
    }

    /// The range that begins at `start`.
    pub(crate) fn at(&self, start: Seq) -> Option<&Held> {
        let held = self.held.get(self.place(start))?;
        (held.start == start).then_some(held)
    }

    /// A receiver may throw away what it has reported (RFC 2018 §8).
    pub(crate) fn forget_sacks(&mut self) {
        self.scoreboard.give_nothing_up();
        if self.sacked_top.take().is_none() {
            return;
        }
        for held in self.held.iter_mut().filter(|held| held.sacked) {
            held.sacked = false;
            let position = self.position + u64::from(held.start.beyond(self.base));
            let length = held.end.beyond(held.start);
            self.scoreboard.insert(position, length, held.resent_at);
        }
    }

    /// Where the first `most` copies begin that are missing although `span` bytes behind them have
    /// arrived, and that were not sent again at `resent_before` or later.
    pub(crate) fn missing_below_sacks(
        &mut self,
        span: u32,
        resent_before: Instant,
        most: usize,
    ) -> Vec<Seq> {
        let Some(top) = self.sacked_top else {
            return Vec::new();
        };
        self.scoreboard.give_up_waiting(resent_before);
        let limit = self.position(top).saturating_sub(span.into());
        self.scoreboard.give_up_below(limit);
        self.copied(self.scoreboard.lost(), most)
    }

    /// Bytes that may be on their way still: all but those the mobile host has said to have, and
    /// those that were [missing](Self::missing_below_sacks) when that was asked last.
    pub(crate) const fn on_the_way(&self) -> u32 {
        self.scoreboard.on_the_way()
    }

    /// Ranges with copies beyond the first hole: what may be reported to the server as received.
    pub(crate) fn beyond_hole(&self) -> Blocks {
        let mut blocks = Blocks::default();
        for (start, end) in self.islands.iter().take(MAX_BLOCKS) {
            blocks.push((self.seq(start), self.seq(end)));
        }
        blocks
    }
}

#[cfg(test)]
mod tests;
