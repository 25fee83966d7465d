//! `round-robin`: the paths in turn, a packet each, as windows allow.
//!
//! What the papers compare themselves with: SBAM's figures 7 to 9, R-M/TCP §3.1.

use super::{Grant, PathView};
use crate::id::PathIndex;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// The path after the last one.
    next: PathIndex,
}

impl RoundRobin {
    pub(super) fn choose(&mut self, paths: &[PathView]) -> Option<Grant> {
        let with_room = || paths.iter().filter(|path| path.has_room());
        let path = with_room()
            .find(|path| path.index >= self.next)
            .or_else(|| with_room().next())?;
        self.next = PathIndex(path.index.0 + 1);
        Some(path.grant_packets(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn takes_turns_and_skips_the_full() {
        let mut turns = RoundRobin::default();
        let paths = [
            path(0, 9_000, 10, 1),
            path(1, 0, 10, 1),
            path(2, 9_000, 10, 1),
        ];
        let order: Vec<_> = (0..4)
            .filter_map(|_| turns.choose(&paths))
            .map(|grant| (grant.index.0, grant.packets))
            .collect();
        assert_eq!(order, [(0, 1), (2, 1), (0, 1), (2, 1)]);
    }
}
