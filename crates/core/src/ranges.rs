//! A set of integers as disjoint half-open ranges.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// Disjoint ranges that never touch, by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: BTreeMap<u64, u64>,
    /// Integers in all ranges together.
    total: u64,
}

impl RangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many integers the set has.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn first(&self) -> Option<Range<u64>> {
        self.ranges
            .first_key_value()
            .map(|(start, end)| *start..*end)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    pub(crate) fn contains(&self, value: u64) -> bool {
        self.ranges
            .range(..=value)
            .next_back()
            .is_some_and(|(_, end)| value < *end)
    }

    /// Adds `range`, merging what it touches.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() || self.insert_last(&range) {
            return;
        }
        let Range { mut start, mut end } = range;
        let before = self.ranges.range_mut(..=start).next_back();
        if let Some((before, before_end)) = before.filter(|(_, end)| **end >= start) {
            if *before_end >= end {
                return;
            }
            start = *before;
            self.total -= *before_end - start;
            *before_end = end;
        } else {
            self.ranges.insert(start, end);
        }
        self.total += end - start;
        let behind = (Bound::Excluded(start), Bound::Unbounded);
        while let Some((after, after_end)) = self.ranges.range(behind).next() {
            let (after, after_end) = (*after, *after_end);
            if after > end {
                return;
            }
            self.ranges.remove(&after);
            self.total -= after_end - after;
            if after_end > end {
                self.total += after_end - end;
                end = after_end;
                self.ranges.insert(start, end);
            }
        }
    }

    /// Adds a range that begins within the last one or behind it, as nearly all do that are
    /// numbers of packets: without a search, and without a new entry where the last one grows.
    /// `false` where it begins before that.
    fn insert_last(&mut self, range: &Range<u64>) -> bool {
        let Some(mut last) = self.ranges.last_entry() else {
            self.ranges.insert(range.start, range.end);
            self.total = range.end - range.start;
            return true;
        };
        if range.start < *last.key() {
            return false;
        }
        let last_end = *last.get();
        if range.start > last_end {
            self.ranges.insert(range.start, range.end);
            self.total += range.end - range.start;
        } else if range.end > last_end {
            *last.get_mut() = range.end;
            self.total += range.end - last_end;
        }
        true
    }

    /// Takes `range` out.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() || self.is_empty() {
            return;
        }
        if let Some((start, end)) = self.ranges.range(..range.start).next_back() {
            let (start, end) = (*start, *end);
            if end > range.start {
                self.ranges.insert(start, range.start);
                self.total -= end.min(range.end) - range.start;
                if end > range.end {
                    self.ranges.insert(range.end, end);
                    return;
                }
            }
        }
        while let Some((start, end)) = self.ranges.range(range.start..range.end).next() {
            let (start, end) = (*start, *end);
            self.ranges.remove(&start);
            self.total -= end.min(range.end) - start;
            if end > range.end {
                self.ranges.insert(range.end, end);
            }
        }
    }

    /// How many integers of its first `most` ranges are less than `limit`. Walks these.
    pub(crate) fn total_below(&self, limit: u64, most: usize) -> u64 {
        let before = self.ranges.range(..limit).take(most);
        before.map(|(start, end)| *end.min(&limit) - *start).sum()
    }

    /// Takes up to `most` integers off the front, all of one range.
    pub(crate) fn pop_front(&mut self, most: u64) -> Option<Range<u64>> {
        let (start, end) = self.ranges.pop_first()?;
        let cut = end.min(start + most);
        if cut < end {
            self.ranges.insert(cut, end);
        }
        self.total -= cut - start;
        Some(start..cut)
    }

    /// Takes up to `most` integers, all of one range, from behind the first `depth` of the set, or
    /// up to `grain` before: what is left of the range in front is a multiple of that.
    pub(crate) fn pop_behind(&mut self, depth: u64, most: u64, grain: u64) -> Option<Range<u64>> {
        if depth == 0 {
            return self.pop_front(most);
        }
        let mut before = depth;
        let inside = self.ranges.iter().find(|(start, end)| {
            let len = *end - *start;
            let is_here = before < len;
            before -= before.min(len) * u64::from(!is_here);
            is_here
        });
        let (start, end) = inside.map(|(start, end)| (*start + before - before % grain, *end))?;
        let taken = start..end.min(start + most);
        self.remove(taken.clone());
        Some(taken)
    }

    /// Drops the range with the smallest integers.
    pub(crate) fn forget_first(&mut self) -> Option<Range<u64>> {
        let (start, end) = self.ranges.pop_first()?;
        self.total -= end - start;
        Some(start..end)
    }

    /// The parts of `range` that are not in the set.
    pub(crate) fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = range.start;
        let before = self.ranges.range(..at).next_back().map(|(_, end)| *end);
        if let Some(end) = before {
            at = at.max(end);
        }
        let mut inside = self.ranges.range(range.start..range.end.max(range.start));
        std::iter::from_fn(move || {
            loop {
                if at >= range.end {
                    return None;
                }
                let (start, end) = inside
                    .next()
                    .map_or((range.end, range.end), |(start, end)| (*start, *end));
                let gap = at..start.max(at);
                at = end.max(at);
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use tabane_base::Seed;

    #[test]
    fn behaves_like_a_set_of_integers() {
        for seed in 0..40 {
            let mut rng = Seed(seed).rng("ranges");
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for step in 0..200 {
                let start = rng.below(60);
                let range = start..start + rng.below(9);
                match rng.below(5) {
                    2 => {
                        let (depth, most) = (rng.below(30), 1 + rng.below(9));
                        let popped = set.pop_behind(depth, most, 1);
                        let wanted = model.iter().nth(depth as usize).copied();
                        assert_eq!(popped.as_ref().map(|r| r.start), wanted, "seed {seed}");
                        for i in popped.into_iter().flatten() {
                            assert!(model.remove(&i), "seed {seed} step {step}");
                        }
                    }
                    0 => {
                        set.remove(range.clone());
                        range.for_each(|i| {
                            model.remove(&i);
                        });
                    }
                    1 => {
                        let gaps: Vec<u64> = set.gaps(range.clone()).flatten().collect();
                        let want: Vec<u64> = range.filter(|i| !model.contains(i)).collect();
                        assert_eq!(gaps, want, "seed {seed} step {step}");
                    }
                    _ => {
                        set.insert(range.clone());
                        model.extend(range);
                    }
                }
                let flat: Vec<u64> = set.iter().flatten().collect();
                assert!(flat.iter().eq(model.iter()), "seed {seed} step {step}");
                let touching = set
                    .iter()
                    .zip(set.iter().skip(1))
                    .any(|(a, b)| a.end >= b.start);
                assert!(!touching, "seed {seed} step {step}");
                assert_eq!(set.contains(start), model.contains(&start));
                assert_eq!(set.total(), model.len() as u64, "seed {seed} step {step}");
                let below = model.range(..start).count() as u64;
                let total = set.total_below(start, usize::MAX);
                assert_eq!(total, below, "seed {seed} step {step}");
                let first = set
                    .iter()
                    .next()
                    .map_or(0, |it| it.end.min(start) - it.start.min(start));
                assert_eq!(set.total_below(start, 1), first, "seed {seed} step {step}");
            }
        }
    }
}
