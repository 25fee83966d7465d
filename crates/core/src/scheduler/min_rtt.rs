//! `min-rtt`: the path with the least round-trip time that has room.
//!
//! The default of kernel MPTCP up to 5.x and of most of the field (Paasch et al., CSWS 2014).

use super::{Grant, PathView};

/// Where the next packets go.
pub(super) fn choose(paths: &[PathView]) -> Option<Grant> {
    let path = paths
        .iter()
        .filter(|path| path.has_room())
        .min_by_key(|path| path.rtt)?;
    Some(path.grant())
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn fills_the_nearest_path_with_room() {
        let paths = [
            path(0, 9_000, 10, 30),
            path(1, 4_500, 10, 10),
            path(2, 0, 10, 1),
        ];
        let grant = choose(&paths).map(|grant| (grant.index.0, grant.packets));
        assert_eq!(grant, Some((1, 4)));
    }
}
