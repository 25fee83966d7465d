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
//!
//! Datagrams cannot be passed over: their sender has not made the later ones yet. A flow that fits
//! the fast path stays on it; what would wait there for longer than [`PATIENCE`] goes by the next.

use tabane_base::{Bytes, Duration};

use super::{Backlog, Carries, Grant, PathView};

/// How long datagrams wait for a nearer path. They would arrive no later if they waited for all
/// that it is nearer by, but a queue as long would stand in the way of everything else, and
/// [`SessionConfig::datagram_wait`](crate::SessionConfig::datagram_wait) would cut it.
const PATIENCE: Duration = Duration::from_millis(8);

/// Where the next packets go.
pub(super) fn choose(paths: &[PathView], backlog: Backlog) -> Option<Grant> {
    let nearest = paths
        .iter()
        .filter(|path| path.has_room())
        .min_by_key(|path| path.arrival())?;
    let (ahead, sooner) = delivered_before(paths, nearest);
    let waiting = backlog.streams + backlog.datagrams;
    let for_streams = ahead == Bytes::ZERO || backlog.streams > Bytes::ZERO && ahead < waiting;
    let for_datagrams = sooner == Bytes::ZERO || sooner < backlog.datagrams;
    let grant = nearest.grant();
    let ahead = ahead.max(safely_ahead(paths, nearest, backlog));
    match (for_streams, for_datagrams) {
        (false, false) if ahead < waiting + backlog.beyond && backlog.latter > Bytes::ZERO => {
            Some(at_the_end_of_credit(nearest, backlog))
        }
        (false, false) => None,
        (true, for_datagrams) => Some(Grant {
            ahead,
            carries: if for_datagrams {
                Carries::Both
            } else {
                Carries::Streams
            },
            ..grant
        }),
        (false, true) => Some(Grant {
            packets: 1,
            carries: Carries::Datagrams,
            ..grant
        }),
    }
}

/// What a stream's first credit ends with, though the nearer paths would come to it before `path`
/// delivers it: by then that credit is renewed, and they have other things to do.
fn at_the_end_of_credit(path: &PathView, backlog: Backlog) -> Grant {
    let grant = path.grant_packets(backlog.latter.get().div_ceil(path.packet.get()));
    Grant {
        ahead: backlog.streams - Bytes::new(grant.packets as u64 * path.packet.get()),
        carries: Carries::Streams,
        ..grant
    }
}

/// What the paths nearer than `path` deliver before a packet that leaves by it now arrives; and
/// what they do of that within [`PATIENCE`].
fn delivered_before(paths: &[PathView], path: &PathView) -> (Bytes, Bytes) {
    let limit = path.arrival();
    let others = paths.iter().filter(|other| other.index != path.index);
    others
        .map(|other| {
            let span = limit.saturating_sub(other.arrival());
            let rate = other.allowed();
            (rate.amount_in(span), rate.amount_in(span.min(PATIENCE)))
        })
        .fold((Bytes::ZERO, Bytes::ZERO), |sum, amount| {
            (sum.0 + amount.0, sum.1 + amount.1)
        })
}

/// What the other paths deliver before what leaves by `path` now arrives, if all are as late as
/// they may be: of what waits, as far back as leaves enough for this path. What comes too early
/// waits for a while; for what comes late everything waits.
fn safely_ahead(paths: &[PathView], path: &PathView, backlog: Backlog) -> Bytes {
    if path.late.is_zero() {
        // As nearly always: it is no later than it seems.
        return Bytes::ZERO;
    }
    let limit = path.arrival().saturating_add(path.late);
    let others = paths.iter().filter(|other| other.index != path.index);
    let ahead = others.map(|other| {
        let span = limit.saturating_sub(other.arrival().saturating_add(other.late));
        other.allowed().amount_in(span)
    });
    let ahead: Bytes = ahead.sum();
    ahead.min(backlog.streams - path.room)
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;
    use crate::id::PathIndex;

    fn streams(bytes: u64) -> Backlog {
        Backlog {
            streams: Bytes::new(bytes),
            ..Backlog::default()
        }
    }

    fn datagrams(bytes: u64) -> Backlog {
        Backlog {
            datagrams: Bytes::new(bytes),
            ..Backlog::default()
        }
    }

    #[test]
    fn datagrams_stay_on_the_fast_path_until_they_would_wait_long() {
        let paths = [path(0, 0, 40, 10), path(1, 9_000, 4, 60)];
        let patience = 40_000_000 / 8 * PATIENCE.as_millis() as u64 / 1_000;
        assert_eq!(choose(&paths, datagrams(patience - 1_000)), None);
        let grant = choose(&paths, datagrams(patience + 1_000)).expect("too many");
        assert_eq!(
            (grant.index.0, grant.packets, grant.carries),
            (1, 1, Carries::Datagrams)
        );
        // With a bulk beside them they wait for the fast path all the same.
        let both = Backlog {
            streams: Bytes::mega(2),
            datagrams: Bytes::new(100),
            ..Backlog::default()
        };
        let grant = choose(&paths, both).expect("the bulk is worth it");
        assert_eq!((grant.index.0, grant.carries), (1, Carries::Streams));
    }

    #[test]
    fn a_bulk_uses_the_slow_path_and_a_short_transfer_does_not() {
        // The fast path is busy. It delivers 100 kB in 16 ms, long before the slow path's 150 ms.
        let paths = [path(0, 0, 50, 5), path(1, 9_000, 50, 150)];
        assert_eq!(choose(&paths, streams(100_000)), None);
        let bulk = choose(&paths, streams(2_000_000)).expect("worth it");
        assert_eq!((bulk.index.0, bulk.packets), (1, 9));
        // What the fast path delivers in the 145 ms by which the slow path is farther.
        assert!(
            bulk.ahead.get().abs_diff(50_000_000 / 8 * 145 / 1_000) < 3_000,
            "{bulk:?}"
        );
    }

    #[test]
    fn the_end_of_a_first_credit_goes_by_the_slow_path_where_more_is_to_come() {
        // In 145 ms the fast path delivers 906 kB.
        let paths = [path(0, 0, 50, 5), path(1, 9_000, 50, 150)];
        let more = |beyond| Backlog {
            beyond: Bytes::new(beyond),
            latter: Bytes::new(4_000),
            ..streams(200_000)
        };
        assert_eq!(choose(&paths, more(600_000)), None);
        let grant = choose(&paths, more(800_000)).expect("worth it");
        assert_eq!((grant.index.0, grant.packets), (1, 4));
        assert_eq!(grant.ahead, Bytes::new(196_000));
    }

    #[test]
    fn a_path_that_nobody_has_measured_gets_what_is_needed_last() {
        let mut paths = [path(0, 0, 10, 20), path(1, 10_000, 10, 20)];
        paths[1].late = Duration::from_millis(240);
        let grant = choose(&paths, streams(100_000)).expect("it is idle");
        assert_eq!((grant.index.0, grant.ahead), (1, Bytes::new(90_000)));
        // What the other delivers in 240 ms and in the moment in which it is busy.
        let grant = choose(&paths, streams(1_000_000)).expect("it is idle");
        assert!(grant.ahead.get().abs_diff(300_000) < 2_000, "{grant:?}");
        // When no path is known, all begin at the front.
        paths[0].late = paths[1].late;
        let grant = choose(&paths, streams(1_000_000)).expect("it is idle");
        assert!(grant.ahead < Bytes::new(2_000), "{grant:?}");
    }

    #[test]
    fn the_only_path_is_used_however_slow() {
        let paths = [path(0, 1_000, 1, 2_000)];
        let grant = Grant {
            index: PathIndex(0),
            packets: 1,
            ahead: Bytes::ZERO,
            arrival: Some(paths[0].arrival()),
            carries: Carries::Both,
        };
        assert_eq!(choose(&paths, streams(1)), Some(grant));
        assert_eq!(choose(&[], streams(1)), None);
    }

    #[test]
    fn a_path_at_rate_zero_neither_divides_by_zero_nor_holds_the_others_back() {
        let paths = [path(0, 0, 0, 5), path(1, 1_000, 10, 50)];
        let grant = Grant {
            index: PathIndex(1),
            packets: 1,
            ahead: Bytes::ZERO,
            arrival: Some(paths[1].arrival()),
            carries: Carries::Both,
        };
        assert_eq!(choose(&paths, streams(1_000)), Some(grant));
    }

    #[test]
    fn what_a_weight_withholds_is_not_counted_upon() {
        let mut paths = [path(0, 0, 50, 5), path(1, 1_000, 50, 150)];
        paths[0].weight = 0.1;
        let bulk = choose(&paths, streams(100_000)).expect("worth it");
        assert!(bulk.ahead < Bytes::new(100_000), "{bulk:?}");
    }
}
