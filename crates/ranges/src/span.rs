//! Ranges of a file's bytes, and sets of them.
//!
//! Positions count bytes from the file's beginning.

use tabane_base::Bytes;

/// The bytes from `start` up to, but without, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    /// Position of the first byte.
    pub start: u64,
    /// Position after the last byte; `u64::MAX`: as far as the file goes.
    pub end: u64,
}

impl ByteRange {
    /// From `start` to the end of the file, wherever that is.
    #[must_use]
    pub const fn from(start: u64) -> Self {
        Self {
            start,
            end: u64::MAX,
        }
    }

    /// How many bytes it holds.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// It holds none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// What it has in common with another; maybe nothing.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }
}

/// A set of bytes, kept as the fewest ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// In order; none empty, none touching its neighbour.
    spans: Vec<ByteRange>,
}

impl Spans {
    /// Adds a range; bytes that are in already stay in once.
    pub fn insert(&mut self, span: ByteRange) {
        if span.is_empty() {
            return;
        }
        let first = self.spans.partition_point(|held| held.end < span.start);
        let after = self.spans.partition_point(|held| held.start <= span.end);
        let merged = self.spans[first..after]
            .iter()
            .fold(span, |sum, held| ByteRange {
                start: sum.start.min(held.start),
                end: sum.end.max(held.end),
            });
        self.spans.splice(first..after, [merged]);
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = ByteRange> + '_ {
        self.spans.iter().copied()
    }

    /// What of `span` is not in the set, in order.
    #[must_use]
    pub fn missing(&self, span: ByteRange) -> Vec<ByteRange> {
        let mut missing = Vec::new();
        let mut start = span.start;
        let first = self.spans.partition_point(|held| held.end <= span.start);
        for held in &self.spans[first..] {
            if held.start >= span.end {
                break;
            }
            if held.start > start {
                missing.push(ByteRange {
                    start,
                    end: held.start,
                });
            }
            start = held.end;
        }
        if start < span.end {
            missing.push(ByteRange {
                start,
                end: span.end,
            });
        }
        missing
    }

    /// The first byte at or after `start` that is not in the set.
    #[must_use]
    pub fn first_missing(&self, start: u64) -> u64 {
        let at = self.spans.partition_point(|held| held.end <= start);
        match self.spans.get(at) {
            Some(held) if held.start <= start => held.end,
            _ => start,
        }
    }

    /// How many bytes are in.
    #[must_use]
    pub fn total(&self) -> Bytes {
        Bytes::new(self.spans.iter().map(|span| span.len()).sum())
    }
}

impl FromIterator<ByteRange> for Spans {
    fn from_iter<I: IntoIterator<Item = ByteRange>>(spans: I) -> Self {
        let mut set = Self::default();
        for span in spans {
            set.insert(span);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn span(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn neighbours_become_one() {
        let set: Spans = [span(0, 2), span(4, 6), span(2, 4), span(9, 10)]
            .into_iter()
            .collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [span(0, 6), span(9, 10)]);
        assert_eq!(set.missing(span(0, 12)), [span(6, 9), span(10, 12)]);
        assert_eq!(set.first_missing(1), 6);
        assert_eq!(set.first_missing(7), 7);
    }

    /// Against a plain array of flags.
    #[test]
    fn holds_what_was_put_in() {
        let seed = Seed(5);
        let mut rng = seed.rng("spans");
        for round in 0..500 {
            let mut set = Spans::default();
            let mut flags = [false; 64];
            for _ in 0..rng.below(12) {
                let start = rng.below(64);
                let end = start + rng.below(64 - start + 1);
                set.insert(span(start, end));
                flags[start as usize..end as usize].fill(true);
            }
            let count = flags.iter().filter(|flag| **flag).count();
            assert_eq!(set.total(), Bytes::from(count), "{seed}, round {round}");
            let whole = span(rng.below(32), 32 + rng.below(32));
            let mut missing = [false; 64];
            for gap in set.missing(whole) {
                assert!(!gap.is_empty(), "{seed}, round {round}");
                missing[gap.start as usize..gap.end as usize].fill(true);
            }
            for at in 0..64_u64 {
                let expected = at >= whole.start && at < whole.end && !flags[at as usize];
                assert_eq!(
                    missing[at as usize], expected,
                    "{seed}, round {round}, {at}"
                );
            }
        }
    }
}
