//! Numbers that nobody else may guess: challenges, names of sessions and handshakes, seeds.
//!
//! One secret of 256 bits decides them all, so that a simulation repeats; whoever has seen any
//! number of them knows nothing of the others (HMAC-SHA256 as a pseudorandom function of a counter,
//! RFC 2104).

use aws_lc_rs::hmac;

/// A stream of such numbers.
#[derive(Debug)]
pub(crate) struct SecretRng {
    key: hmac::Key,
    counter: u64,
}

impl SecretRng {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &seed),
            counter: 0,
        }
    }

    fn block(&mut self) -> [u8; 32] {
        let tag = hmac::sign(&self.key, &self.counter.to_be_bytes());
        self.counter += 1;
        let mut block = [0; 32];
        block.copy_from_slice(tag.as_ref());
        block
    }

    /// A secret for somebody else's stream.
    pub(crate) fn seed(&mut self) -> [u8; 32] {
        self.block()
    }

    /// As many bytes as `N`, at most 32.
    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.block()[..N]);
        bytes
    }

    /// The next 64 bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_its_streams_differ() {
        let mut a = SecretRng::new([1; 32]);
        let mut b = SecretRng::new([1; 32]);
        let first = a.next_u64();
        assert_eq!(first, b.next_u64());
        assert_ne!(first, a.next_u64());
        assert_ne!(SecretRng::new(a.seed()).next_u64(), b.next_u64());
    }
}
