//! The receiving half of a stream: the resequencer and its bounded buffer.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::{Duration, Instant};

use super::hold::Hold;
use super::window::Window;
use crate::close::Violation;
use crate::memory_pool::take_off;

/// What a piece of early data costs besides its bytes: the map's entry and the allocation.
const EARLY_OVERHEAD: usize = 64;
/// Early pieces that stand together are kept together up to so many bytes: what one path brings
/// while another is behind is a run of packets, and each by itself would cost an allocation.
const EARLY_RUN: usize = 16 * 1024;

/// Data that came before what stands in front of it.
#[derive(Debug)]
struct Early {
    bytes: Vec<u8>,
    /// How many pieces it came in, each of which counts with its overhead.
    pieces: usize,
}

impl Early {
    fn memory(&self) -> usize {
        self.bytes.len() + self.pieces * EARLY_OVERHEAD
    }
}

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadState<'a> {
    /// The next bytes, at least one; there may be more behind them.
    Data(&'a [u8]),
    /// Nothing yet.
    Empty,
    /// Everything was read.
    Finished,
    /// The sender abandoned the stream, for this reason of its application.
    Reset(u64),
}

/// The receiving half of one stream.
#[derive(Debug)]
pub(crate) struct ReceiveHalf {
    /// In order, from `read_to` on.
    ready: VecDeque<u8>,
    read_to: u64,
    /// Ahead of order, disjoint, by offset.
    early: BTreeMap<u64, Early>,
    early_memory: usize,
    /// One beyond the highest byte seen.
    highest: u64,
    final_size: Option<u64>,
    reset: Option<u64>,
    window: Window,
    pub(crate) hold: Hold,
    /// The reader asked the sender to stop; data is counted and thrown away.
    stopped: bool,
    /// The reader knows that there is something to read.
    pub(crate) notified: bool,
    /// The reader has seen the end or the reset.
    ended: bool,
}

/// What came of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// How far the highest offset moved: what it uses of the session's credit.
    pub(crate) advanced: u64,
    /// Bytes of session credit that nobody will read and that may be granted again.
    pub(crate) discarded: u64,
    /// There is something to read that was not there before.
    pub(crate) readable: bool,
}

impl ReceiveHalf {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            ready: VecDeque::new(),
            read_to: 0,
            early: BTreeMap::new(),
            early_memory: 0,
            highest: 0,
            final_size: None,
            reset: None,
            window,
            hold: Hold::default(),
            stopped: false,
            notified: false,
            ended: false,
        }
    }

    /// The first offset that is missing.
    pub(crate) fn ready_to(&self) -> u64 {
        self.read_to + self.ready.len() as u64
    }

    /// Bytes of memory held, in and out of order.
    pub(crate) fn memory(&self) -> usize {
        self.ready.len() + self.early_memory
    }

    /// How far its sender may go beyond the reader.
    pub(crate) const fn window(&self) -> usize {
        self.window.size() as usize
    }

    /// Whether nobody is known to read yet.
    pub(crate) const fn is_unproved(&self) -> bool {
        self.window.is_unproved()
    }

    /// Somebody is known to read.
    pub(crate) fn prove_reader(&mut self) {
        self.window.prove();
    }

    /// Bytes in order that wait for their reader.
    pub(crate) fn unread(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ended
    }

    /// Takes in the data of a STREAM frame.
    pub(crate) fn insert(
        &mut self,
        offset: u64,
        data: &[u8],
        fin: bool,
    ) -> Result<Inserted, Violation> {
        let end = offset + data.len() as u64;
        if end > self.window.credit() {
            return Err(Violation::StreamCreditExceeded);
        }
        let overshoots = self
            .final_size
            .is_some_and(|size| end > size || fin && end != size);
        if overshoots || fin && end < self.highest {
            return Err(Violation::FinalSizeChanged);
        }
        let advanced = end.saturating_sub(self.highest);
        self.highest = self.highest.max(end);
        let learnt_end = fin && self.final_size.is_none();
        if fin {
            self.final_size = Some(end);
        }
        if self.reset.is_some() || self.stopped {
            self.ended |= self.stopped && self.needs_no_reset();
            return Ok(Inserted {
                advanced,
                discarded: advanced,
                readable: false,
            });
        }
        let before = self.ready.len();
        self.place(offset, data);
        let readable = self.ready.len() > before || learnt_end && self.is_at_end();
        Ok(Inserted {
            advanced,
            discarded: 0,
            readable,
        })
    }

    fn place(&mut self, offset: u64, data: &[u8]) {
        let expected = self.ready_to();
        let end = offset + data.len() as u64;
        if end <= expected {
            return;
        }
        if offset <= expected {
            self.ready.extend(&data[(expected - offset) as usize..]);
            self.promote();
        } else {
            self.hold(offset, data);
        }
    }

    /// Keeps the parts of early data that are not held yet.
    fn hold(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let mut at = offset;
        if let Some((start, held)) = self.early.range(..=offset).next_back() {
            at = at.max(start + held.bytes.len() as u64);
        }
        while at < end {
            let next = self.early.range(at..end).next();
            let (stop, resume) = next.map_or((end, end), |(start, held)| {
                (*start, start + held.bytes.len() as u64)
            });
            if stop > at {
                let piece = &data[(at - offset) as usize..(stop - offset) as usize];
                self.early_memory += piece.len() + EARLY_OVERHEAD;
                self.keep(at, piece);
            }
            at = resume.max(stop);
        }
    }

    /// Keeps what is not held yet, with what stands directly in front of it where that is short.
    fn keep(&mut self, at: u64, piece: &[u8]) {
        if let Some((start, before)) = self.early.range_mut(..at).next_back()
            && start + before.bytes.len() as u64 == at
            && before.bytes.len() + piece.len() <= EARLY_RUN
        {
            let held = before.bytes.len();
            if before.bytes.capacity() < held + piece.len() {
                // Pieces like those before are mostly a run, not to be copied at each turn.
                let more = 3 * held.min(before.pieces * piece.len());
                let more = more.min(EARLY_RUN - held).max(piece.len());
                before.bytes.reserve_exact(more);
            }
            before.bytes.extend_from_slice(piece);
            before.pieces += 1;
            return;
        }
        let early = Early {
            bytes: piece.to_vec(),
            pieces: 1,
        };
        self.early.insert(at, early);
    }

    /// Moves what has come into order.
    fn promote(&mut self) {
        while let Some(entry) = self.early.first_entry() {
            let expected = self.read_to + self.ready.len() as u64;
            let start = *entry.key();
            if start > expected {
                return;
            }
            let early = entry.remove();
            take_off(&mut self.early_memory, early.memory());
            let skip = ((expected - start) as usize).min(early.bytes.len());
            self.ready.extend(&early.bytes[skip..]);
        }
    }

    /// The sender can be done with a stopped stream by itself: it was not told to keep the rest.
    fn needs_no_reset(&self) -> bool {
        let (_, held_at) = self.hold.state();
        let is_sent = |size| held_at.is_none_or(|at| size <= at);
        self.reset.is_some() || self.final_size.is_some_and(is_sent)
    }

    fn is_at_end(&self) -> bool {
        self.final_size == Some(self.ready_to())
    }

    pub(crate) const fn is_reset(&self) -> bool {
        self.reset.is_some()
    }

    /// The sender abandons the stream at `final_size`. What is here in order can be read first, as
    /// from a kernel's socket.
    pub(crate) fn on_reset(&mut self, code: u64, final_size: u64) -> Result<Inserted, Violation> {
        if final_size > self.window.credit() {
            return Err(Violation::StreamCreditExceeded);
        }
        if final_size < self.highest || self.final_size.is_some_and(|size| size != final_size) {
            return Err(Violation::FinalSizeChanged);
        }
        if self.reset.is_some() {
            return Ok(Inserted {
                advanced: 0,
                discarded: 0,
                readable: false,
            });
        }
        let advanced = final_size - self.highest;
        let discarded = if self.stopped {
            advanced
        } else {
            final_size - self.ready_to()
        };
        self.highest = final_size;
        self.final_size = Some(final_size);
        self.reset = Some(code);
        self.ended |= self.stopped;
        self.early = BTreeMap::new();
        self.early_memory = 0;
        Ok(Inserted {
            advanced,
            discarded,
            readable: !self.stopped,
        })
    }

    /// The reader wants no more; gives the bytes whose credit comes free.
    pub(crate) fn stop(&mut self) -> u64 {
        if self.stopped || self.ended {
            return 0;
        }
        self.stopped = true;
        self.ended = self.needs_no_reset();
        // The credit of what a reset left out is free already.
        let freed = match self.reset {
            Some(_) => self.ready.len() as u64,
            None => self.highest - self.read_to,
        };
        self.clear();
        freed
    }

    fn clear(&mut self) {
        self.ready = VecDeque::new();
        self.early = BTreeMap::new();
        self.early_memory = 0;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(crate) fn peek(&mut self) -> ReadState<'_> {
        if let Some(code) = self.reset.filter(|_| self.ready.is_empty()) {
            self.ended = true;
            return ReadState::Reset(code);
        }
        if self.ready.is_empty() {
            if self.is_at_end() {
                self.ended = true;
                return ReadState::Finished;
            }
            self.notified = false;
            return ReadState::Empty;
        }
        ReadState::Data(self.ready.as_slices().0)
    }

    /// The reader used `n` bytes; gives how many that really were.
    pub(crate) fn consume(&mut self, n: usize) -> usize {
        let n = n.min(self.ready.len());
        self.ready.drain(..n);
        self.read_to += n as u64;
        n
    }

    /// Whether the sender should be told of more credit, now that so much was read.
    pub(crate) fn renews_credit(&mut self, now: Instant, rtt: Duration) -> bool {
        let ended = self.final_size.is_some() || self.stopped;
        !ended && self.window.on_read(now, rtt, self.read_to)
    }

    pub(crate) const fn credit(&self) -> u64 {
        self.window.credit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    #[test]
    fn overlapping_pieces_in_any_order_come_out_once_and_in_order() {
        for seed in 0..50 {
            let mut rng = Seed(seed).rng("resequencer");
            let whole: Vec<u8> = (0..4_000).map(|_| rng.below(256) as u8).collect();
            let mut half = ReceiveHalf::new(Window::new(1 << 20, 1 << 20));
            let mut read = Vec::new();
            while read.len() < whole.len() {
                let start = rng.below(whole.len() as u64) as usize;
                let end = (start + 1 + rng.below(300) as usize).min(whole.len());
                let fin = end == whole.len();
                let inserted = half.insert(start as u64, &whole[start..end], fin);
                assert!(inserted.is_ok(), "seed {seed}");
                let held: usize = half.early.values().map(Early::memory).sum();
                assert_eq!(half.early_memory, held, "seed {seed}");
                while let ReadState::Data(data) = half.peek() {
                    let n = data.len();
                    read.extend_from_slice(data);
                    half.consume(n);
                }
            }
            assert_eq!(read, whole, "seed {seed}");
            assert_eq!(half.peek(), ReadState::Finished);
            assert_eq!(half.memory(), 0);
        }
    }

    #[test]
    fn a_run_of_early_packets_is_kept_as_few_and_counted_as_all() {
        let mut half = ReceiveHalf::new(Window::new(1 << 20, 1 << 20));
        for packet in 1..=40_u64 {
            let data = [packet as u8; 1_000];
            assert!(half.insert(packet * 1_000, &data, false).is_ok());
        }
        assert_eq!(half.early.len(), 40_000_usize.div_ceil(EARLY_RUN));
        assert_eq!(half.memory(), 40 * (1_000 + EARLY_OVERHEAD));
        assert!(half.insert(0, &[0; 1_000], false).is_ok());
        assert_eq!((half.unread(), half.memory()), (41_000, 41_000));
    }

    #[test]
    fn data_beyond_credit_or_end_is_a_violation() {
        let mut half = ReceiveHalf::new(Window::new(100, 100));
        assert_eq!(
            half.insert(90, &[0; 11], false),
            Err(Violation::StreamCreditExceeded)
        );
        assert!(half.insert(0, &[0; 10], true).is_ok());
        assert_eq!(
            half.insert(5, &[0; 10], false),
            Err(Violation::FinalSizeChanged)
        );
        assert_eq!(
            half.insert(0, &[0; 5], true),
            Err(Violation::FinalSizeChanged)
        );
        assert_eq!(half.on_reset(0, 9), Err(Violation::FinalSizeChanged));
    }

    #[test]
    fn what_came_in_order_before_a_reset_is_read_first() {
        let mut half = ReceiveHalf::new(Window::new(100, 100));
        assert!(half.insert(0, b"data", false).is_ok());
        assert!(half.insert(10, b"early", false).is_ok());
        let seen = half.on_reset(7, 20);
        assert_eq!(seen.map(|it| (it.advanced, it.discarded)), Ok((5, 16)));
        assert_eq!(half.peek(), ReadState::Data(b"data"));
        half.consume(4);
        assert_eq!(half.peek(), ReadState::Reset(7));
        assert!(half.is_done());
    }

    #[test]
    fn a_stop_is_over_when_nothing_is_kept_back_or_the_sender_gave_up() {
        let stopped = |held_at: Option<u64>, size: u64| {
            let mut half = ReceiveHalf::new(Window::new(100, 100));
            assert!(half.insert(0, b"data", false).is_ok());
            held_at.into_iter().for_each(|at| half.hold.begin(at, 4));
            assert!(half.insert(size - 1, b"!", true).is_ok());
            half.stop();
            half
        };
        assert!(stopped(None, 8).is_done());
        assert!(stopped(Some(8), 8).is_done());
        let mut half = stopped(Some(4), 8);
        assert!(!half.is_done());
        assert!(half.on_reset(0, 8).is_ok());
        assert!(half.is_done());
    }

    #[test]
    fn credit_is_renewed_by_reading_only() {
        let mut half = ReceiveHalf::new(Window::new(100, 100));
        assert!(half.insert(0, &[0; 60], false).is_ok());
        let at = (Instant::EPOCH, Duration::ZERO);
        assert!(!half.renews_credit(at.0, at.1));
        half.consume(60);
        assert!(half.renews_credit(at.0, at.1));
        assert_eq!(half.credit(), 160);
        assert!(!half.renews_credit(at.0, at.1));
    }
}
