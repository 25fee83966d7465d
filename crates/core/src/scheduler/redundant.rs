//! `redundant`: every packet on every path.
//!
//! Each piece of data is set aside for all paths at once; a path leaves out what has arrived by
//! another before its turn came. So a slow path keeps close to the fast ones, and what is lost on
//! one needs no repetition. Costs every link's volume for one link's rate (engarde, and the
//! `redundant` scheduler of MPTCP, do the same).

use super::{Grant, PathView};

/// Where the next packets go: what was set aside, wherever there is room for it. What can only
/// leave once (credit, requests) takes the nearest path.
pub(super) fn choose(paths: &[PathView]) -> Option<Grant> {
    match paths.iter().find(|path| path.has_room() && path.listed > 0) {
        Some(path) => Some(path.grant_packets(path.listed as u64)),
        None => super::min_rtt::choose(paths),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn every_path_sends_what_it_was_given() {
        let mut paths = [path(0, 9_000, 10, 30), path(1, 9_000, 10, 10)];
        paths[0].listed = 2;
        let grant = choose(&paths).map(|grant| (grant.index.0, grant.packets));
        assert_eq!(grant, Some((0, 2)));
        paths[0].listed = 0;
        assert_eq!(
            choose(&paths).map(|grant| grant.index.0),
            Some(1),
            "once, by the nearest"
        );
    }
}
