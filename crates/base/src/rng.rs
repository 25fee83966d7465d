//! Chance from one seed, split by label, so that adding a consumer does not shift the others.
//!
//! For simulation, jitter and probing; never for keys or tokens. The generator is xoshiro256++
//! (Blackman and Vigna 2019) seeded through splitmix64.

use std::fmt;
use std::str::FromStr;

/// Where all of a run's randomness comes from. Printed by every randomised test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// A generator for the consumer called `label`.
    #[must_use]
    pub fn rng(self, label: &str) -> Rng {
        // FNV-1a: labels only need to differ.
        let hash = label.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Rng::new(self.0 ^ hash)
    }

    /// A seed for the sub-system called `label`, itself to be split further.
    #[must_use]
    pub fn split(self, label: &str) -> Self {
        Self(self.rng(label).next_u64())
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Seed {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A deterministic stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    fn new(mut seed: u64) -> Self {
        let mut next = || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self {
            state: [next(), next(), next(), next()],
        }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in 0..`bound`; 0 for an empty range.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in 0.0..1.0.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_split_the_seed_and_repeat() {
        let seed = Seed(7);
        assert_eq!(seed.rng("a").next_u64(), seed.rng("a").next_u64());
        assert_ne!(seed.rng("a").next_u64(), seed.rng("b").next_u64());
    }

    #[test]
    fn chance_is_about_its_probability() {
        let mut rng = Seed(1).rng("chance");
        let hits = (0..100_000).filter(|_| rng.chance(0.02)).count();
        assert!((1_800..2_200).contains(&hits), "{hits}");
    }
}
