//! `tabane`: earliest arrival, or wait.
//!
//! A path with room gets the next packets unless the faster paths, busy now, would have delivered
//! everything that waits before this path delivers its first byte (the rule of ECF, Lim et al.,
//! CoNEXT 2017, and of BLEST, with one-way delays in place of halved round trips). So a bulk
//! transfer uses every path, and a short one leaves slow paths alone.

use tabane_base::{Bytes, Duration, Rate};

use super::{Grant, PathView, arrival};

/// Where the next packets go.
pub(super) fn choose(paths: &[PathView], backlog: Bytes) -> Option<Grant> {
    let nearest = paths
        .iter()
        .filter(|path| path.has_room())
        .min_by_key(|path| arrival(path))?;
    if arrival(nearest) > rest_arrives(paths, nearest, backlog) {
        return None;
    }
    Some(Grant {
        index: nearest.index,
        packets: nearest.packets(),
    })
}

/// When the last byte of `backlog` would arrive if only paths nearer than `path` carried it.
fn rest_arrives(paths: &[PathView], path: &PathView, backlog: Bytes) -> Duration {
    let limit = arrival(path);
    let nearer = || {
        paths
            .iter()
            .filter(|other| other.index != path.index && arrival(other) < limit)
    };
    let Some(delay) = nearer().map(arrival).max() else {
        return Duration::MAX;
    };
    let together: u64 = nearer()
        .map(|other| other.rate.as_bps())
        .fold(0, u64::saturating_add);
    delay.saturating_add(Rate::from_bps(together).time_for(backlog))
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
        let bulk = choose(&paths, Bytes::new(2_000_000));
        assert_eq!(
            bulk,
            Some(Grant {
                index: 1,
                packets: 9
            })
        );
    }

    #[test]
    fn the_only_path_is_used_however_slow() {
        let paths = [path(0, 1_000, 1, 2_000)];
        assert_eq!(
            choose(&paths, Bytes::new(1)),
            Some(Grant {
                index: 0,
                packets: 1
            })
        );
        assert_eq!(choose(&[], Bytes::new(1)), None);
    }

    #[test]
    fn a_path_at_rate_zero_neither_divides_by_zero_nor_holds_the_others_back() {
        let paths = [path(0, 0, 0, 5), path(1, 1_000, 10, 50)];
        assert_eq!(
            choose(&paths, Bytes::new(1_000)),
            Some(Grant {
                index: 1,
                packets: 1
            })
        );
    }
}
