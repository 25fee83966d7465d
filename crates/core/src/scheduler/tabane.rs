//! `tabane`: earliest arrival in order, or wait.
//!
//! A path with room gets the next packets unless the faster paths, busy now, would have delivered
//! everything that waits before this path delivers its first byte (the rule of ECF, Lim et al.,
//! CoNEXT 2017, and of BLEST, with one-way delays in place of halved round trips). So a bulk
//! transfer uses every path, and a short one leaves slow paths alone.
//!
//! What a slow path gets is not what is next, but what will be next when it arrives there: it
//! passes over as much as the faster paths deliver until then. That is R-M/TCP's aim (see
//! `arrival`) without its lists: nothing is dealt out in advance, so nothing has to be dealt out
//! again when a path changes.

use tabane_base::Bytes;

use super::{Grant, PathView};

/// Where the next packets go.
pub(super) fn choose(paths: &[PathView], backlog: Bytes) -> Option<Grant> {
    let nearest = paths
        .iter()
        .filter(|path| path.has_room())
        .min_by_key(|path| path.arrival())?;
    let ahead = delivered_before(paths, nearest);
    if ahead > Bytes::ZERO && ahead >= backlog {
        return None;
    }
    Some(Grant {
        ahead,
        ..nearest.grant()
    })
}

/// What the paths nearer than `path` deliver before a packet that leaves by it now arrives.
fn delivered_before(paths: &[PathView], path: &PathView) -> Bytes {
    let limit = path.arrival();
    let others = paths.iter().filter(|other| other.index != path.index);
    others
        .map(|other| {
            other
                .allowed()
                .amount_in(limit.saturating_sub(other.arrival()))
        })
        .fold(Bytes::ZERO, |sum, amount| sum + amount)
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    #[test]
    fn a_bulk_uses_the_slow_path_and_a_short_transfer_does_not() {
        // The fast path is busy. It delivers 100 kB in 16 ms, long before the slow path's 150 ms.
        let paths = [path(0, 0, 50, 5), path(1, 9_000, 50, 150)];
        assert_eq!(choose(&paths, Bytes::new(100_000)), None);
        let bulk = choose(&paths, Bytes::new(2_000_000)).expect("worth it");
        assert_eq!((bulk.index, bulk.packets), (1, 9));
        // What the fast path delivers in the 145 ms by which the slow path is farther.
        assert!(
            bulk.ahead.get().abs_diff(50_000_000 / 8 * 145 / 1_000) < 3_000,
            "{bulk:?}"
        );
    }

    #[test]
    fn the_only_path_is_used_however_slow() {
        let paths = [path(0, 1_000, 1, 2_000)];
        let grant = Grant {
            index: 0,
            packets: 1,
            ahead: Bytes::ZERO,
        };
        assert_eq!(choose(&paths, Bytes::new(1)), Some(grant));
        assert_eq!(choose(&[], Bytes::new(1)), None);
    }

    #[test]
    fn a_path_at_rate_zero_neither_divides_by_zero_nor_holds_the_others_back() {
        let paths = [path(0, 0, 0, 5), path(1, 1_000, 10, 50)];
        let grant = Grant {
            index: 1,
            packets: 1,
            ahead: Bytes::ZERO,
        };
        assert_eq!(choose(&paths, Bytes::new(1_000)), Some(grant));
    }

    #[test]
    fn what_a_weight_withholds_is_not_counted_upon() {
        let mut paths = [path(0, 0, 50, 5), path(1, 1_000, 50, 150)];
        paths[0].weight = 0.1;
        let bulk = choose(&paths, Bytes::new(100_000)).expect("worth it");
        assert!(bulk.ahead < Bytes::new(100_000), "{bulk:?}");
    }
}
