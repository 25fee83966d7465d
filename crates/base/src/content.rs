//! Bytes that verify themselves: what stands at an offset follows from a seed.
//!
//! Any span can be made or checked without what comes before it, so neither end of a transfer keeps
//! a copy. A byte that is missing, doubled, moved or changed does not go unnoticed.

use crate::rng::Seed;

const WORD: u64 = 8;

/// The contents of one direction of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content(u64);

impl Content {
    /// The content that belongs to `seed`.
    #[must_use]
    pub const fn new(seed: Seed) -> Self {
        Self(seed.0)
    }

    fn word(self, index: u64) -> [u8; 8] {
        // splitmix64 (Steele, Lea, Flood 2014): each word depends on its index alone.
        let mut z = self
            .0
            .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }

    /// Fills `out` with what stands from `offset` on.
    pub fn fill(self, offset: u64, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let skip = (at % WORD) as usize;
            let word = self.word(at / WORD);
            let n = (word.len() - skip).min(rest.len());
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(&word[skip..skip + n]);
            rest = tail;
            at += n as u64;
        }
    }

    /// Where `data`, said to stand at `offset`, first differs; `None` when it is right.
    #[must_use]
    pub fn first_difference(self, offset: u64, data: &[u8]) -> Option<u64> {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let skip = (at % WORD) as usize;
            let word = self.word(at / WORD);
            let n = (word.len() - skip).min(rest.len());
            if rest[..n] != word[skip..skip + n] {
                let same = rest
                    .iter()
                    .zip(&word[skip..])
                    .take_while(|(a, b)| a == b)
                    .count();
                return Some(at + same as u64);
            }
            rest = &rest[n..];
            at += n as u64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_agree_wherever_they_begin_and_one_wrong_byte_is_found() {
        let content = Content::new(Seed(3));
        let mut whole = [0; 200];
        content.fill(0, &mut whole);
        for start in 0..40 {
            let mut part = vec![0; 100];
            content.fill(start, &mut part);
            assert_eq!(part, whole[start as usize..][..100]);
            assert_eq!(content.first_difference(start, &part), None);
            part[57] ^= 1;
            assert_eq!(content.first_difference(start, &part), Some(start + 57));
        }
        assert!(Content::new(Seed(4)).first_difference(0, &whole).is_some());
    }

    #[test]
    fn what_is_missing_doubled_or_moved_is_noticed_where_it_begins() {
        let content = Content::new(Seed(0));
        let mut whole = [0; 3_000];
        content.fill(0, &mut whole);
        let missing = [&whole[..1_000], &whole[1_001..]].concat();
        let doubled = [&whole[..1_000], &whole[992..]].concat();
        let moved = [&whole[..1_000], &whole[2_000..], &whole[1_000..2_000]].concat();
        for wrong in [missing, doubled, moved] {
            let at = content.first_difference(500, &wrong[500..]);
            // By chance, a byte beside a gap may be the one expected.
            assert!((1_000..1_008).contains(&at.unwrap()), "{at:?}");
        }
    }
}
