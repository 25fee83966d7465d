//! What went on to the mobile host and has not been acknowledged by it, byte range by byte range.
//!
//! Owns the copies from which the gateway sends again, and so the answer to the question which
//! bytes may be acknowledged early: those before the first hole and before the first range without
//! a copy. Ranges never overlap; a byte that is held stays as it came first.

use std::collections::VecDeque;

use tabane_base::Instant;

use crate::options::{Block, Blocks};
use crate::seq::Seq;

/// Ranges without copies are kept apart up to this many, so that each gives a round trip; beyond,
/// neighbours become one. Bounds the memory of flows that are only watched.
pub(crate) const MAX_BARE_RANGES: usize = 8;
/// With holes between them so many ranges are known at most, and what comes beyond is not noted: no
/// flow has as many holes, but of one that is only watched a server may leave out what it likes.
const MAX_BARE_APART: usize = 64;
/// What a copy costs besides its bytes: its place, and a block of the heap.
pub(crate) const OVERHEAD: usize = 128;
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

impl Held {
    /// The mobile host has not said to have it, and it was not sent again at `resent_before` or
    /// later.
    fn is_missing(&self, resent_before: Instant) -> bool {
        !self.sacked && self.resent_at.is_none_or(|at| at < resent_before)
    }
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
            let free = match self.held.get_mut(place) {
                Some(held) if !held.start.is_after(start) => {
                    let covered = (held.end.beyond(start) as usize).min(payload.len());
                    held.resent_at = Some(now);
                    let whole = held.start == start && held.end.beyond(start) as usize == covered;
                    if whole && held.data.is_none() && piece.keep {
                        held.data = Some(payload[..covered].into());
                        held.stamp = piece.stamp;
                        self.bytes += covered;
                        self.bare -= 1;
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
        let end = start + data.len() as u32;
        if piece.keep {
            self.bytes += data.len();
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
            if held.end.is_after(ack) {
                let taken = ack.beyond(held.start) as usize;
                if let Some(data) = &mut held.data {
                    self.bytes -= taken;
                    *data = data[taken..].into();
                }
                held.start = ack;
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
        self.base = ack;
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
            let place = self.place(*start);
            for held in self.held.range_mut(place..) {
                if held.end.is_after(*end) {
                    break;
                }
                if !held.start.is_before(*start) && !held.sacked {
                    held.sacked = true;
                    news = true;
                    let top = self.sacked_top.map_or(held.end, |top| top.later(held.end));
                    self.sacked_top = Some(top);
                }
            }
        }
        news
    }

    /// Where the first `most` copies begin that the mobile host has not said to have, without those
    /// sent again at `resent_before` or later.
    pub(crate) fn missing(&self, resent_before: Instant, most: usize) -> Vec<Seq> {
        self.held
            .iter()
            .filter(|held| held.data.is_some() && held.is_missing(resent_before))
            .take(most)
            .map(|held| held.start)
            .collect()
    }

    /// The copy that begins at `start` is sent again.
    pub(crate) fn note_resent(&mut self, now: Instant, start: Seq) {
        let place = self.place(start);
        if let Some(held) = self.held.get_mut(place) {
            held.resent_at = Some(now);
        }
    }

    /// The range that begins at `start`.
    pub(crate) fn at(&self, start: Seq) -> Option<&Held> {
        let held = self.held.get(self.place(start))?;
        (held.start == start).then_some(held)
    }

    /// A receiver may throw away what it has reported (RFC 2018 §8).
    pub(crate) fn forget_sacks(&mut self) {
        for held in &mut self.held {
            held.sacked = false;
        }
        self.sacked_top = None;
    }

    /// Where the first `most` copies begin that are missing although `span` bytes behind them have
    /// arrived, and that were not sent again at `resent_before` or later.
    pub(crate) fn missing_below_sacks(
        &self,
        span: u32,
        resent_before: Instant,
        most: usize,
    ) -> Vec<Seq> {
        let Some(top) = self.sacked_top else {
            return Vec::new();
        };
        self.held
            .iter()
            .take_while(|held| top.beyond(held.end) >= span)
            .filter(|held| held.data.is_some() && held.is_missing(resent_before))
            .take(most)
            .map(|held| held.start)
            .collect()
    }

    /// Bytes that may be on their way still: all but those the mobile host has said to have, and
    /// those missing although `span` bytes behind them have arrived.
    pub(crate) fn on_the_way(&self, span: u32, resent_before: Instant) -> u32 {
        let top = self.sacked_top.unwrap_or(self.base);
        let is_lost = |held: &Held| top.beyond(held.end) >= span && held.is_missing(resent_before);
        let there = self
            .held
            .iter()
            .filter(|held| !held.sacked && !is_lost(held));
        there.map(|held| held.end.beyond(held.start)).sum()
    }

    /// Ranges with copies beyond the first hole: what may be reported to the server as received.
    pub(crate) fn beyond_hole(&self) -> Blocks {
        let mut blocks = Blocks::default();
        let mut run: Option<Block> = None;
        for held in self.held.range(self.place(self.contiguous)..) {
            if held.data.is_none() {
                continue;
            }
            run = match run {
                Some((start, end)) if end == held.start => Some((start, held.end)),
                Some(done) => {
                    blocks.push(done);
                    Some((held.start, held.end))
                }
                None => Some((held.start, held.end)),
            };
        }
        if let Some(done) = run {
            blocks.push(done);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1);

    fn piece(start: u32, payload: &[u8]) -> Piece<'_> {
        Piece {
            start: Seq(start),
            payload,
            keep: true,
            chunk: 4,
            stamp: start,
        }
    }

    #[test]
    fn what_may_be_acknowledged_ends_at_the_first_hole() {
        let mut copies = Copies::new(Seq(10));
        assert_eq!(copies.insert(NOW, piece(10, b"abcdef")), 6);
        assert_eq!(copies.insert(NOW, piece(20, b"uvw")), 3);
        assert_eq!((copies.safe(), copies.top()), (Seq(16), Seq(23)));
        assert!(copies.has_hole());
        assert_eq!(copies.beyond_hole().as_slice(), [(Seq(20), Seq(23))]);
        assert_eq!(copies.insert(NOW, piece(14, b"efghijuv")), 4);
        assert_eq!((copies.safe(), copies.bytes()), (Seq(23), 13));
        assert!(copies.holds(Seq(10), Seq(23)));
    }

    #[test]
    fn a_range_without_a_copy_ends_it_until_the_copy_is_there() {
        let mut copies = Copies::new(Seq(0));
        let bare = Piece {
            keep: false,
            ..piece(0, b"abcd")
        };
        copies.insert(NOW, bare);
        copies.insert(NOW, piece(4, b"efgh"));
        assert_eq!((copies.safe(), copies.contiguous()), (Seq(0), Seq(8)));
        assert!(copies.is_bare() && !copies.has_hole());
        copies.insert(NOW, piece(0, b"abcd"));
        assert_eq!(copies.safe(), Seq(8));
    }

    #[test]
    fn acknowledged_bytes_go_and_the_rest_stays_as_it_came_first() {
        let mut copies = Copies::new(Seq(u32::MAX - 3));
        copies.insert(NOW, piece(u32::MAX - 3, b"abcdefgh"));
        copies.insert(NOW, piece(u32::MAX - 3, b"XXXXXXXX"));
        assert_eq!(copies.acknowledge(Seq(1)), None, "sent twice: no sample");
        let left = copies.missing(Instant::NEVER, 1);
        let left = copies.at(left[0]).and_then(|held| held.data.as_deref());
        assert_eq!(left, Some(&b"fgh"[..]));
        assert_eq!(copies.bytes(), 3);
        copies.acknowledge(Seq(4));
        assert!(copies.is_empty());
        assert_eq!(copies.bytes(), 0);
    }

    #[test]
    fn watched_flows_take_few_ranges_however_much_is_in_flight() {
        let mut copies = Copies::new(Seq(0));
        for i in 0..1_000 {
            let bare = Piece {
                keep: false,
                ..piece(4 * i, b"abcd")
            };
            copies.insert(NOW, bare);
        }
        assert_eq!(copies.held.len(), MAX_BARE_RANGES);
        assert_eq!(copies.contiguous(), Seq(4_000));
        copies.acknowledge(Seq(4_000));
        assert!(copies.is_empty() && copies.bare == 0);
    }

    /// Of a flow that is only watched, a server that leaves every second byte out.
    #[test]
    fn ranges_apart_from_each_other_take_no_memory_without_end() {
        for step in [2, -2_i32 as u32] {
            let mut copies = Copies::new(Seq(0x8000_0000));
            for n in 0..10_000 {
                let piece = Piece {
                    keep: false,
                    ..piece(0x8010_0000_u32.wrapping_add(step.wrapping_mul(n)), b"x")
                };
                copies.insert(NOW, piece);
            }
            assert!(copies.held.len() <= 64, "{}", copies.held.len());
            copies.acknowledge(Seq(0x8020_0000));
            assert!(copies.is_empty() && copies.bare == 0);
        }
    }

    /// What a thousand acknowledgements take of a host that misses nothing, with so many copies.
    #[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
    fn asked(ranges: u32) -> std::time::Duration {
        let mut copies = Copies::new(Seq(0));
        for n in 0..ranges {
            copies.insert(NOW, piece(4 * n, b"abcd"));
        }
        let since = std::time::Instant::now();
        for _ in 0..1_000 {
            let missing = copies.missing_below_sacks(9, Instant::NEVER, 2);
            assert!(std::hint::black_box(missing).is_empty());
        }
        since.elapsed()
    }

    #[test]
    fn where_nothing_is_missing_no_acknowledgement_looks_at_all_copies() {
        let rounds = (0..20).map(|_| (asked(1), asked(4_000)));
        let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
        let (one, all) = least.expect("twenty");
        println!("1,000 acknowledgements: {one:?} with one copy, {all:?} with 4,000");
        assert!(all < 10 * one.max(std::time::Duration::from_micros(1)));
    }

    /// The last range that the mobile host has said to have is the one that a walk finds.
    #[test]
    fn the_last_range_that_is_there_is_known_without_a_walk() {
        for seed in 0..100 {
            let mut rng = tabane_base::Seed(seed).rng("copies");
            let base = Seq(u32::MAX - 100);
            let mut copies = Copies::new(base);
            for step in 0..200 {
                let at = copies.base() + rng.below(80) as u32;
                let end = at + rng.below(30) as u32;
                match rng.below(8) {
                    0 => copies.forget_sacks(),
                    1 => drop(copies.acknowledge(copies.base() + rng.below(12) as u32)),
                    2 | 3 => drop(copies.sack(&[(at, end)])),
                    _ => {
                        let piece = Piece {
                            start: at,
                            ..piece(0, &b"abcdefghijklmnopqrst"[..rng.below(20) as usize])
                        };
                        copies.insert(NOW, piece);
                    }
                }
                let walk = copies.held.iter().rev().find(|held| held.sacked);
                let walk = walk.map(|held| held.end);
                assert_eq!(copies.sacked_top, walk, "seed {seed} step {step}");
            }
        }
    }
}
