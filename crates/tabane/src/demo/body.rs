//! What the demonstration downloads: bytes that say where they belong.
//!
//! Word `n` of the body is a hash of `n`, so a byte that is missing, doubled, moved or changed does
//! not go unnoticed. The body has no end; whoever downloads it stops.

/// Bytes per word.
const WORD: u64 = 8;

/// The body's bytes from `offset` on.
pub(crate) fn fill(offset: u64, bytes: &mut [u8]) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = word(at / WORD).to_le_bytes();
        let skip = (at % WORD) as usize;
        let count = rest.len().min(word.len() - skip);
        let (piece, behind) = rest.split_at_mut(count);
        piece.copy_from_slice(&word[skip..skip + count]);
        at += count as u64;
        rest = behind;
    }
}

/// The finalising steps of splitmix64 (Steele, Lea and Flood 2014): neighbours look unalike.
fn word(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Compares what arrives with what should.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    verified: u64,
    expected: Vec<u8>,
}

/// The first byte that is not the one sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset} of the download is not the one that was sent")]
pub(crate) struct Corrupt {
    offset: u64,
}

impl Verifier {
    /// Takes the next bytes.
    pub(crate) fn check(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        self.expected.resize(bytes.len(), 0);
        fill(self.verified, &mut self.expected);
        if self.expected != bytes {
            let differs = |(seen, expected): (&u8, &u8)| seen != expected;
            let pairs = bytes.iter().zip(&self.expected);
            let first = pairs.map(differs).position(|differs| differs).unwrap_or(0);
            return Err(Corrupt {
                offset: self.verified + first as u64,
            });
        }
        self.verified += bytes.len() as u64;
        Ok(())
    }

    /// How many bytes have arrived, all of them right.
    pub(crate) fn verified(&self) -> u64 {
        self.verified
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fill(offset, &mut bytes);
        bytes
    }

    #[test]
    fn pieces_of_any_size_make_the_same_body() {
        let whole = body(0, 4_000);
        let mut verifier = Verifier::default();
        let mut at = 0;
        for size in (1..).take_while(|size| size * (size + 1) / 2 < 4_000) {
            let piece = body(at as u64, size);
            assert_eq!(piece, whole[at..at + size], "{at}+{size}");
            verifier.check(&piece).unwrap();
            at += size;
        }
        assert_eq!(verifier.verified(), at as u64);
    }

    #[test]
    fn what_is_missing_doubled_moved_or_changed_is_noticed() {
        let whole = body(0, 3_000);
        let missing = [&whole[..1_000], &whole[1_001..]].concat();
        let doubled = [&whole[..1_000], &whole[992..]].concat();
        let moved = [&whole[..1_000], &whole[2_000..], &whole[1_000..2_000]].concat();
        let mut changed = whole.clone();
        changed[1_000] ^= 1;
        for wrong in [missing, doubled, moved, changed] {
            let mut verifier = Verifier::default();
            verifier.check(&wrong[..500]).unwrap();
            let found = verifier.check(&wrong[500..]).unwrap_err();
            assert!((1_000..1_008).contains(&found.offset), "{found}");
            assert_eq!(verifier.verified(), 500);
        }
    }
}
