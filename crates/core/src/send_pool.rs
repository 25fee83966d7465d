//! Memory for written data that sessions share.
//!
//! One stream alone may need megabytes to keep a fast, long link busy; a thousand at once must not
//! have as much each. Nothing is set aside for anybody: each may hold as much as nobody holds, so
//! that one has what it needs, many have equal parts, and some is left for who comes next (the
//! dynamic thresholds of Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998, with α = 1). Owns the sum;
//! what one stream needs for its paths is the session's to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tabane_base::Bytes;

/// What a stream may hold however little is left: with nothing it would never be told of room.
const FLOOR: usize = 32 * 1024;

/// Memory for written data not yet acknowledged. Clones share it.
#[derive(Clone, Debug)]
pub struct SendPool {
    size: usize,
    held: Arc<AtomicUsize>,
}

impl SendPool {
    /// A pool of `size` that nobody holds anything of.
    #[must_use]
    pub fn new(size: Bytes) -> Self {
        Self {
            size: usize::try_from(size.get()).unwrap_or(usize::MAX),
            held: Arc::default(),
        }
    }

    /// Held by all together. More than the pool's size only by what each has in any case, 32 KiB.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes::new(self.held.load(Ordering::Relaxed) as u64)
    }

    fn free(&self) -> usize {
        self.size.saturating_sub(self.held.load(Ordering::Relaxed))
    }
}

/// What one stream holds of a pool; returned when it goes.
#[derive(Debug)]
pub(crate) struct Holding {
    pool: SendPool,
    bytes: usize,
}

impl Holding {
    pub(crate) fn none_of(pool: &SendPool) -> Self {
        Self {
            pool: pool.clone(),
            bytes: 0,
        }
    }

    /// What its stream may hold now: no more than then is left.
    pub(crate) fn share(&self) -> usize {
        self.bytes.midpoint(self.pool.free()).max(FLOOR)
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        let sum = &self.pool.held;
        if bytes >= self.bytes {
            sum.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            sum.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_half_and_many_have_equal_parts() {
        let pool = SendPool::new(Bytes::mega(16));
        let size = Bytes::mega(16).get() as usize;
        for streams in [1, 7, 100] {
            let mut holdings: Vec<_> = (0..streams).map(|_| Holding::none_of(&pool)).collect();
            // All take what they may, in small steps, until nobody may take more.
            while holdings
                .iter_mut()
                .map(|holding| {
                    let more = holding.share().saturating_sub(holding.bytes).min(1_000);
                    holding.set(holding.bytes + more);
                    more
                })
                .sum::<usize>()
                > 0
            {}
            let fair = size / (streams + 1);
            for holding in &holdings {
                assert!(
                    holding.bytes.abs_diff(fair) <= 2_000,
                    "{streams}: {} of {fair}",
                    holding.bytes
                );
            }
        }
        assert_eq!(pool.held(), Bytes::ZERO, "all was returned");
    }

    #[test]
    fn a_full_pool_leaves_everybody_a_little() {
        let pool = SendPool::new(Bytes::kilo(100));
        let mut hog = Holding::none_of(&pool);
        hog.set(1_000_000);
        assert_eq!(Holding::none_of(&pool).share(), FLOOR);
        drop(hog);
        assert_eq!(Holding::none_of(&pool).share(), 50_000);
    }
}
