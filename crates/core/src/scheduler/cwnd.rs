//! `cwnd`: ARMS, concurrent multipath at the application level over SCTP, §3.
//!
//! Each path is given as many bytes as its congestion window has, in the order of the paths; when
//! all have had theirs, the windows are read anew. Windows stand as delay × bandwidth, which is
//! what paths hold, and not as bandwidth: the paper's 2 and 8 Mbit/s with different delays stand
//! 1:4 in bandwidth, 3:8 in what is on its way. Its example: windows of 20000 and 80000 bytes make
//! shares of 1:4.
//!
//! A path that is full is passed by for the time being, but its share stays its own, as data
//! handed to SCTP for one address stays there.

use tabane_base::Bytes;

use super::{Grant, PathView, STUCK_AFTER};
use crate::id::PathId;

/// What each path may still have before the windows are read anew.
#[derive(Debug, Default)]
pub(super) struct Cwnd {
    left: Vec<(PathId, Bytes)>,
}

impl Cwnd {
    pub(super) fn choose(&mut self, paths: &[PathView]) -> Option<Grant> {
        let is_known = self
            .left
            .iter()
            .map(|(id, _)| *id)
            .eq(paths.iter().map(|path| path.id));
        let is_spent =
            |left: Bytes, path: &PathView| left == Bytes::ZERO || path.wait > STUCK_AFTER;
        if !is_known
            || self
                .left
                .iter()
                .zip(paths)
                .all(|((_, left), path)| is_spent(*left, path))
        {
            self.left.clear();
            let window = |path: &PathView| (path.id, Bytes::new(share(path).max(1)));
            self.left.extend(paths.iter().map(window));
        }
        let mut open = self.left.iter_mut().zip(paths);
        let ((_, left), path) =
            open.find(|((_, left), path)| path.has_room() && *left > Bytes::ZERO)?;
        let grant = path.grant_packets(left.get().div_ceil(path.packet.get().max(1)));
        *left -= Bytes::new(grant.packets as u64 * path.packet.get());
        Some(grant)
    }
}

fn share(path: &PathView) -> u64 {
    if path.weight < 1.0 {
        (path.cwnd.get() as f64 * path.weight) as u64
    } else {
        path.cwnd.get()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn windows_of_20000_and_80000_bytes_are_filled_one_after_the_other() {
        let mut cwnd = Cwnd::default();
        let mut paths = [path(0, 5_000, 2, 15), path(1, 16_000, 8, 15)];
        (paths[0].cwnd, paths[1].cwnd) = (Bytes::new(20_000), Bytes::new(80_000));
        let grants: Vec<_> = (0..10)
            .filter_map(|_| cwnd.choose(&paths))
            .map(|grant| (grant.index.0, grant.packets))
            .collect();
        let first = [
            (0, 5),
            (0, 5),
            (0, 5),
            (0, 5),
            (1, 16),
            (1, 16),
            (1, 16),
            (1, 16),
            (1, 16),
        ];
        assert_eq!(grants[..9], first);
        assert_eq!(grants[9], (0, 5), "read anew");
    }

    #[test]
    fn a_full_path_keeps_its_share() {
        let mut cwnd = Cwnd::default();
        let mut paths = [path(0, 0, 8, 15), path(1, 2_000, 8, 15)];
        (paths[0].cwnd, paths[1].cwnd) = (Bytes::new(2_000), Bytes::new(2_000));
        assert_eq!(cwnd.choose(&paths).map(|grant| grant.index.0), Some(1));
        assert_eq!(cwnd.choose(&paths), None);
        paths[0] = PathView {
            cwnd: Bytes::new(2_000),
            ..path(0, 2_000, 8, 15)
        };
        assert_eq!(cwnd.choose(&paths).map(|grant| grant.index.0), Some(0));
        assert_eq!(
            cwnd.choose(&paths).map(|grant| grant.index.0),
            Some(0),
            "the next round's"
        );
    }
}
