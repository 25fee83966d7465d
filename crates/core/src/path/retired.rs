//! Which ids of paths are used up: they never come back, because a nonce is made of them [P-4.1].
//!
//! A client counts its paths up from 0, so that nearly all ids below the newest are used up, and
//! ranges of them take little memory however long a session lasts. Owns that a peer cannot make
//! them take more.

use crate::close::Violation;
use crate::id::PathId;
use crate::ranges::RangeSet;

/// Ranges remembered: news of closed paths comes out of order, but not with more gaps than this.
/// A peer that makes another ends the session.
const MAX_RANGES: usize = 256;
/// Ids may be so far ahead of the paths we know: while nothing carries, a client tries some per
/// second and cannot tell that they were closed. What gaps cost is bounded by [`MAX_RANGES`].
const AHEAD: u64 = 1 << 16;

/// Ids of paths that were closed.
#[derive(Debug, Default)]
pub(super) struct Retired {
    ids: RangeSet,
}

impl Retired {
    /// A path was closed, or will not be opened.
    ///
    /// # Errors
    /// When there are more gaps than any order of news explains: to forget an id would be to use
    /// its nonces again.
    pub(super) fn insert(&mut self, id: PathId) -> Result<(), Violation> {
        let id = u64::from(id.get());
        self.ids.insert(id..id + 1);
        match self.ids.len() > MAX_RANGES {
            true => Err(Violation::TooManyGaps),
            false => Ok(()),
        }
    }

    /// Whether a path of this id may begin.
    pub(super) fn may_begin(&self, id: PathId) -> bool {
        !self.knows(id) && u64::from(id.get()) < self.ids.total() + AHEAD
    }

    /// Whether this end may close one by itself: half of all gaps are left to the other end's news.
    pub(super) fn has_room(&self) -> bool {
        self.ids.len() < MAX_RANGES / 2
    }

    /// Whether this id is used up.
    pub(super) fn knows(&self, id: PathId) -> bool {
        self.ids.contains(id.get().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_never_come_back_in_whatever_order_paths_are_closed() {
        let mut retired = Retired::default();
        let order = (0..100_000).map(|n| PathId(n ^ 7));
        order.for_each(|id| retired.insert(id).expect("in order"));
        assert!((0..100_000).all(|id| !retired.may_begin(PathId(id))));
        let next = 100_000 + AHEAD as u32;
        assert!(retired.may_begin(PathId(next - 1)) && !retired.may_begin(PathId(next)));
        assert_eq!(retired.ids.len(), 1);
    }

    #[test]
    fn a_peer_that_closes_what_it_never_opened_takes_no_memory() {
        let mut retired = Retired::default();
        let mut ids = (0..100_000).map(|n| PathId(2 * n));
        let refused = ids.position(|id| retired.insert(id) == Err(Violation::TooManyGaps));
        assert_eq!(refused, Some(MAX_RANGES));
        // No id that was used comes back, even so.
        assert!((0..=MAX_RANGES as u32).all(|n| !retired.may_begin(PathId(2 * n))));
    }
}
