//! A set of integers as disjoint half-open ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges that never touch, by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn first(&self) -> Option<Range<u64>> {
        self.0.first_key_value().map(|(start, end)| *start..*end)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    pub(crate) fn contains(&self, value: u64) -> bool {
        self.0
            .range(..=value)
            .next_back()
            .is_some_and(|(_, end)| value < *end)
    }

    /// Adds `range`, merging what it touches.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((before, before_end)) = self.0.range_mut(..=start).next_back()
            && *before_end >= start
        {
            if *before_end >= end {
                return;
            }
            start = *before;
        }
        while let Some((after, after_end)) = self.0.range(start..).next() {
            let (after, after_end) = (*after, *after_end);
            if after > end {
                break;
            }
            end = end.max(after_end);
            self.0.remove(&after);
        }
        self.0.insert(start, end);
    }

    /// Takes `range` out.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((start, end)) = self.0.range(..range.start).next_back() {
            let (start, end) = (*start, *end);
            if end > range.start {
                self.0.insert(start, range.start);
                if end > range.end {
                    self.0.insert(range.end, end);
                    return;
                }
            }
        }
        while let Some((start, end)) = self.0.range(range.start..range.end).next() {
            let (start, end) = (*start, *end);
            self.0.remove(&start);
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
    }

    /// Takes up to `most` integers off the front, all of one range.
    pub(crate) fn pop_front(&mut self, most: u64) -> Option<Range<u64>> {
        let (start, end) = self.0.pop_first()?;
        let cut = end.min(start + most);
        if cut < end {
            self.0.insert(cut, end);
        }
        Some(start..cut)
    }

    /// Drops the range with the smallest integers.
    pub(crate) fn forget_first(&mut self) -> Option<Range<u64>> {
        self.0.pop_first().map(|(start, end)| start..end)
    }

    /// The parts of `range` that are not in the set.
    pub(crate) fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = range.start;
        let before = self.0.range(..at).next_back().map(|(_, end)| *end);
        if let Some(end) = before {
            at = at.max(end);
        }
        let mut inside = self.0.range(range.start..range.end.max(range.start));
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
                match rng.below(4) {
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
            }
        }
    }
}
