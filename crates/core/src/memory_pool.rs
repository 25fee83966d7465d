//! Memory for data, written or received, that sessions share.
//!
//! One stream alone may need megabytes to keep a fast, long link busy; a thousand at once must not
//! have as much each. Nothing is set aside for anybody: a session may hold as much as nobody holds,
//! and a stream as much of that as its session does not, so that one has what it needs, many have
//! equal parts, a session gains little by many streams, and some is left for who comes next (the
//! dynamic thresholds of Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998, with α = 1). Owns the sums;
//! what one stream needs for its paths is the session's to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tabane_base::Bytes;

/// What a session, and each of its streams, may hold however little is left: with nothing it would
/// never be told of room.
pub(crate) const FLOOR: usize = 32 * 1024;

/// Memory for data of one kind: written and not yet acknowledged, or received and not yet read.
/// Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryPool {
    size: usize,
    held: Arc<AtomicUsize>,
}

impl MemoryPool {
    /// A pool of `size` that nobody holds anything of.
    #[must_use]
    pub fn new(size: Bytes) -> Self {
        Self {
            size: usize::try_from(size.get()).unwrap_or(usize::MAX),
            held: Arc::default(),
        }
    }

    /// What it has for all.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        Bytes::new(self.size as u64)
    }

    /// Held by all together. More than the pool's size only by what each session and stream has in
    /// any case, 32 KiB.
    #[cfg(test)]
    pub(crate) fn held(&self) -> Bytes {
        Bytes::new(self.held.load(Ordering::Relaxed) as u64)
    }

    fn free(&self) -> usize {
        self.size.saturating_sub(self.held.load(Ordering::Relaxed))
    }

    /// Somebody who held `before` holds `after` now.
    fn change(&self, before: usize, after: usize) {
        add(&self.held, before, after);
    }
}

impl Default for MemoryPool {
    /// As much as an endpoint has for either direction.
    fn default() -> Self {
        Self::new(Bytes::mega(256))
    }
}

/// # Panics
/// Where more is returned than is held: from then on nobody would ever have any.
fn add(sum: &AtomicUsize, before: usize, after: usize) {
    if after >= before {
        sum.fetch_add(after - before, Ordering::Relaxed);
    } else {
        let held = sum.fetch_sub(before - after, Ordering::Relaxed);
        assert!(held >= before - after, "memory is returned once");
    }
}

/// Takes `bytes` off what is held: a count that went round would bound nothing any more.
///
/// # Panics
/// Where fewer are.
pub(crate) const fn take_off(held: &mut usize, bytes: usize) {
    assert!(*held >= bytes, "what is taken off was counted");
    *held -= bytes;
}

/// What one session holds of a pool for one purpose, all streams together; returned when it goes.
#[derive(Debug, Default)]
pub struct Part {
    pool: MemoryPool,
    bytes: usize,
}

impl Part {
    /// Nothing yet.
    #[must_use]
    pub fn none_of(pool: &MemoryPool) -> Self {
        Self {
            pool: pool.clone(),
            bytes: 0,
        }
    }

    /// Bytes held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most that it may hold now, in bytes: no more than then is left to others.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.bytes.midpoint(self.pool.free()).max(FLOOR)
    }

    /// It holds so many bytes from now on.
    pub fn set(&mut self, bytes: usize) {
        self.pool.change(self.bytes, bytes);
        self.bytes = bytes;
    }

    /// It holds so many bytes less.
    ///
    /// # Panics
    /// Where fewer are held.
    pub fn take_off(&mut self, bytes: usize) {
        let mut left = self.bytes;
        take_off(&mut left, bytes);
        self.set(left);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What one session has of a pool. Clones, one for each stream, share it.
#[derive(Clone, Debug)]
pub(crate) struct SessionPool {
    all: MemoryPool,
    held: Arc<AtomicUsize>,
}

impl SessionPool {
    pub(crate) fn new(all: MemoryPool) -> Self {
        Self {
            all,
            held: Arc::default(),
        }
    }

    /// What its streams may hold beyond what they hold now: no more than then is left to others.
    fn free(&self) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        held.midpoint(self.all.free()).saturating_sub(held)
    }
}

/// What one stream holds of its session's part; returned when it goes.
#[derive(Debug)]
pub(crate) struct Holding {
    pool: SessionPool,
    bytes: usize,
}

impl Holding {
    pub(crate) fn none_of(pool: &SessionPool) -> Self {
        Self {
            pool: pool.clone(),
            bytes: 0,
        }
    }

    /// What its stream may hold now.
    pub(crate) fn share(&self) -> usize {
        self.bytes.midpoint(self.pool.free()).max(FLOOR)
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        add(&self.pool.held, self.bytes, bytes);
        self.pool.all.change(self.bytes, bytes);
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

    const SIZE: Bytes = Bytes::mega(16);

    /// All take what they may, in small steps, until nobody may take more; what each has then.
    fn fill(holdings: &mut [Holding]) -> Vec<usize> {
        let more = |holding: &mut Holding| {
            let more = holding.share().saturating_sub(holding.bytes).min(1_000);
            holding.set(holding.bytes + more);
            more
        };
        while holdings.iter_mut().map(more).sum::<usize>() > 0 {}
        holdings.iter().map(|holding| holding.bytes).collect()
    }

    #[test]
    fn one_has_much_and_many_have_equal_parts() {
        let pool = MemoryPool::new(SIZE);
        for sessions in [1, 7, 100] {
            let mut holdings: Vec<_> = (0..sessions)
                .map(|_| Holding::none_of(&SessionPool::new(pool.clone())))
                .collect();
            let fair = SIZE.get() as usize / (sessions + 3);
            for bytes in fill(&mut holdings) {
                let text = format!("{bytes} of {fair}, {sessions} sessions");
                assert!(bytes.abs_diff(fair) <= 2_000, "{text}");
            }
        }
        assert_eq!(pool.held(), Bytes::ZERO, "all was returned");
    }

    #[test]
    fn a_session_gains_little_by_many_streams() {
        let pool = MemoryPool::new(SIZE);
        let many = SessionPool::new(pool.clone());
        let mut holdings: Vec<_> = (0..100).map(|_| Holding::none_of(&many)).collect();
        holdings.push(Holding::none_of(&SessionPool::new(pool)));
        let one = fill(&mut holdings).pop().expect("pushed");
        assert!(one >= SIZE.get() as usize / 8, "{one}");
    }

    #[test]
    fn a_full_pool_leaves_everybody_a_little() {
        let pool = MemoryPool::new(Bytes::kilo(200));
        let session = || SessionPool::new(pool.clone());
        let mut hog = Holding::none_of(&session());
        hog.set(1_000_000);
        assert_eq!(Holding::none_of(&session()).share(), FLOOR);
        drop(hog);
        assert_eq!(Holding::none_of(&session()).share(), 50_000);
    }
}
