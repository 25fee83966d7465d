//! `backup`: everything on the most preferred path that works; the others wait in reserve.
//!
//! Preferred is the path with the greatest weight, of equals the one opened first. Paths marked as
//! backups, or with weight 0, are not even seen here while another is active: the session offers
//! them to no scheduler then. A path is left as soon as it is silent (one probe timeout) and taken
//! up again as soon as it answers [P-4.4].

use super::{Grant, PathView};

/// Where the next packets go.
pub(super) fn choose(paths: &[PathView]) -> Option<Grant> {
    // Of equals `min_by` takes the first.
    let preferred = paths.iter().min_by(|a, b| b.weight.total_cmp(&a.weight))?;
    preferred.has_room().then(|| preferred.grant())
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn others_are_used_only_when_the_preferred_is_gone() {
        let mut paths = [
            path(0, 0, 10, 30),
            path(1, 4_000, 10, 10),
            path(2, 4_000, 10, 1),
        ];
        assert_eq!(choose(&paths), None, "full is no reason to leave it");
        assert_eq!(choose(&paths[1..]).map(|grant| grant.index.0), Some(1));
        paths[2].weight = 2.0;
        assert_eq!(choose(&paths[1..]).map(|grant| grant.index.0), Some(2));
    }
}
