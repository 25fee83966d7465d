//! `arrival`: the packet distribution of R-M/TCP (Osuga, Rojviboonchai and Aida), §3.2.
//!
//! Data is dealt out before it can leave, each packet to the path by which it is predicted to
//! arrive first, so that packets arrive in order though they leave out of order. A path's
//! *DistList* holds what waits for its next bursts. When a path has changed, all DistLists are
//! merged in sequence order into the *ClearList*, which is topped up with new data and dealt out
//! again. Here the ClearList is the streams' own store of unsent data, which is in sequence order
//! by itself: what a DistList gives back waits there as what was lost does, and goes first.
//!
//! With bursts of two packets, of packets 2·i−1 and 2·i from now on path `id`,
//!
//! ```text
//! inter[id]·i + OWTTf[id]                                                  (8), plain M/TCP
//! now − last_sent[id] + burst_interval[id]·i + OWTTf[id]                   (9), the odd one
//! now − last_sent[id] + burst_interval[id]·i + OWTTf[id] + inter[id]       (10), the even one
//! ```
//!
//! `now − last_sent` is taken with a minus: burst i leaves at last_sent + burst_interval·i, so
//! what is left of it from now on is burst_interval·i − (now − last_sent), and a path that sent
//! lately comes later than one that is due. With a plus the path that has been idle longest would
//! be thought the slowest. A burst that is overdue leaves now: the time left is never negative.
//!
//! `burst_interval` = RTT / (cwnd / 2 packets) (6)(7) is what two packets take at the path's
//! pacing rate, whichever controller sets it; under `rmtcp` that rate is cwnd / RTT, and both are
//! the same. `inter`, the spacing at which a pair arrives, is what one packet takes at that rate.
//!
//! The paper does not say how far ahead to deal. Here: until the farthest path has a burst. Then
//! the nearer ones hold what they deliver while that burst is under way.

use tabane_base::{Bytes, Duration};

use super::{Grant, PathView};
use crate::id::PathId;

/// Packets in a burst: a pair, which measures the bottleneck.
const BURST: u64 = 2;
/// A path that holds so many pieces gets no more, whatever the others lack.
const LIST_MAX: usize = 2_048;
/// Change of window or burst interval that makes everything be dealt out again: an eighth.
const CHANGE_SHIFT: u32 = 3;

/// What the paths were like when data was last dealt out.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    seen: Vec<(PathId, Bytes, Duration)>,
}

impl Arrival {
    /// Whether paths came or went, or a window or burst interval has changed much.
    pub(super) fn must_deal_again(&mut self, paths: &[PathView]) -> bool {
        let is_same = self.seen.len() == paths.len()
            && self
                .seen
                .iter()
                .zip(paths)
                .all(|((id, cwnd, interval), path)| {
                    let (now, before) = (burst_interval(path).as_nanos(), interval.as_nanos());
                    *id == path.id
                        && path.cwnd.get().abs_diff(cwnd.get()) <= cwnd.get() >> CHANGE_SHIFT
                        && now.abs_diff(before) <= before >> CHANGE_SHIFT
                });
        if !is_same {
            self.seen.clear();
            self.seen.extend(
                paths
                    .iter()
                    .map(|path| (path.id, path.cwnd, burst_interval(path))),
            );
        }
        !is_same
    }
}

/// For which path the next piece is set aside; `None` once every path has a burst.
pub(super) fn deal(paths: &[PathView]) -> Option<usize> {
    let is_dealt = paths
        .iter()
        .all(|path| path.listed >= BURST as usize || is_dead(path));
    let open = paths
        .iter()
        .enumerate()
        .filter(|(_, path)| path.listed < LIST_MAX);
    let open = open.filter(|(_, path)| !is_dead(path));
    match is_dealt {
        true => None,
        false => open
            .min_by_key(|(_, path)| predicted(path))
            .map(|(place, _)| place),
    }
}

/// Where the next packets go: what was set aside, a burst at a time. What was not dealt out
/// (datagrams, credit, requests) takes the path by which it arrives first.
pub(super) fn choose(paths: &[PathView]) -> Option<Grant> {
    let with_room = || paths.iter().filter(|path| path.has_room());
    let listed = with_room().find(|path| path.listed > 0);
    let path = listed.or_else(|| with_room().min_by_key(|path| path.arrival()))?;
    Some(path.grant_packets(BURST.min(path.listed.max(1) as u64)))
}

/// When the next packet dealt to the path arrives, from now: eq. (9) and (10).
fn predicted(path: &PathView) -> Duration {
    let n = path.listed as u64 + 1;
    let burst = u32::try_from(n.div_ceil(BURST)).unwrap_or(u32::MAX);
    let leaves = burst_interval(path)
        .saturating_mul(burst)
        .saturating_sub(path.sent_ago);
    let inter = path.allowed().time_for(path.packet);
    let behind = if n.is_multiple_of(BURST) {
        inter
    } else {
        Duration::ZERO
    };
    leaves.saturating_add(path.delay).saturating_add(behind)
}

fn burst_interval(path: &PathView) -> Duration {
    path.allowed()
        .time_for(Bytes::new(path.packet.get() * BURST))
}

/// Nothing leaves by it in any time worth waiting for.
fn is_dead(path: &PathView) -> bool {
    burst_interval(path) > super::STUCK_AFTER * 10
}

#[cfg(test)]
mod tests {
    use super::super::tests::path;
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// 8 Mbit/s: a packet of 1,000 bytes lasts 1 ms, a burst 2 ms.
    fn paths(delays: [u64; 2]) -> [PathView; 2] {
        [path(0, 0, 8, delays[0]), path(1, 0, 8, delays[1])]
    }

    fn dealt(paths: &mut [PathView], most: usize) -> Vec<usize> {
        let deal = |_| {
            let place = deal(paths)?;
            paths[place].listed += 1;
            Some(place)
        };
        (0..most).map_while(deal).collect()
    }

    #[test]
    fn equations_9_and_10() {
        let mut path = paths([10, 30])[0];
        path.sent_ago = ms(1);
        let arrivals: Vec<_> = (0..4)
            .map(|listed| predicted(&PathView { listed, ..path }))
            .collect();
        // −1 ms since the last packet, 2 ms per burst, 10 ms under way, 1 ms within the pair.
        assert_eq!(arrivals, [ms(11), ms(12), ms(13), ms(14)]);
    }

    #[test]
    fn a_path_that_has_been_idle_is_due_and_not_late() {
        let mut both = paths([10, 10]);
        both[1].sent_ago = ms(60_000);
        assert_eq!(predicted(&both[1]), ms(10));
        assert_eq!(deal(&both), Some(1));
    }

    #[test]
    fn packets_arrive_in_the_order_in_which_they_are_dealt() {
        let mut both = paths([10, 31]);
        let order = dealt(&mut both, 100);
        // 21 ms apart: the near path delivers 22 packets until the far one's first.
        assert_eq!(
            order.iter().position(|place| *place == 1),
            Some(22),
            "{order:?}"
        );
        let at = |delay| (1_u64..).map(move |k| k.div_ceil(2) * 2 + delay + (k + 1) % 2);
        let mut at = [10, 31].map(at);
        let arrivals: Vec<u64> = order.iter().filter_map(|place| at[*place].next()).collect();
        assert!(arrivals.is_sorted(), "{arrivals:?}");
    }

    #[test]
    fn a_change_of_window_or_rate_deals_again_and_a_small_one_does_not() {
        let mut arrival = Arrival::default();
        let mut both = paths([10, 30]);
        assert!(arrival.must_deal_again(&both), "paths came");
        assert!(!arrival.must_deal_again(&both));
        both[0].cwnd = Bytes::new(both[0].cwnd.get() * 21 / 20);
        assert!(!arrival.must_deal_again(&both));
        both[0].cwnd = Bytes::new(both[0].cwnd.get() * 6 / 5);
        assert!(arrival.must_deal_again(&both));
        both[1].rate = both[1].rate.scaled(0.5);
        assert!(arrival.must_deal_again(&both));
        assert!(arrival.must_deal_again(&both[..1]), "a path went");
    }

    #[test]
    fn bursts_are_pairs() {
        let mut both = paths([10, 30]);
        both[1] = PathView {
            listed: 7,
            ..path(1, 9_000, 8, 30)
        };
        assert_eq!(
            choose(&both).map(|grant| (grant.index.0, grant.packets)),
            Some((1, 2))
        );
    }
}
