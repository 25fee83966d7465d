//! `weighted`: SBAM, the socket-level bandwidth aggregation mechanism (Sakakibara, Moriwake, Saito
//! and Tokuda), §2.4.3.
//!
//! b is a path's rate in bit/s, d its delay in s, m its packet size in bits, α its weight. At the
//! start, so that every pipe but the smallest is filled to the same level,
//!
//! ```text
//! P_n = (α_n·b_n·d_n − min_k(α_k·b_k·d_k)) / m_n                          (1)
//! ```
//!
//! packets go to path n; from then on, in every round,
//!
//! ```text
//! P_n = α_n · (b_n · lcm(m_1 … m_n)) / (m_n · gcd(b_1 … b_n))             (2)
//! ```
//!
//! The paper's example: A has 2 Mbit/s, packets of 500 bytes and 100 ms, B has 1 Mbit/s, packets
//! of 1000 bytes and 50 ms. A gets 37.5, so 38 packets more at the start, then 4 to B's 1.
//!
//! What the paper leaves open: measured rates have no common divisor to speak of, so they are
//! rounded to [`STEPS`] steps first, and a round is at most [`ROUND_MAX`] packets, so that it
//! follows the rates. Within a round packets are spread evenly, not sent path by path. A new path
//! or weight begins anew with (1).
//!
//! The paper sends without congestion control, so no path of its is ever full. Ours are, and then
//! (2) is an order and not a barrier: a path that has room and no turn left begins the next round
//! when all whose turn it would be are full. Had it to wait for them, every path would carry what
//! its share of the slowest window is, and none would ever be measured to be faster than it was
//! first thought to be. While all have room, the ratio is exact.

use tabane_base::Rate;

use super::{Grant, PathView};
use crate::id::PathId;

/// Steps that the greatest rate is divided into: an error of 1.6 % at the most for it.
const STEPS: u64 = 32;
/// Packets in a round: at 10 Mbit/s a round lasts 0.3 s, some round trips.
const ROUND_MAX: u64 = 256;
/// Packets in the initial fill: 10 Gbit/s for 80 ms.
const FILL_MAX: u64 = 1 << 16;

/// One path's part of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share {
    id: PathId,
    weight: f64,
    quota: u64,
    left: u64,
}

/// The round under way.
#[derive(Debug, Default)]
pub(super) struct Weighted {
    shares: Vec<Share>,
}

impl Weighted {
    pub(super) fn choose(&mut self, paths: &[PathView]) -> Option<Grant> {
        let has_changed = self.shares.len() != paths.len()
            || paths
                .iter()
                .zip(&self.shares)
                .any(|(p, s)| p.id != s.id || p.weight != s.weight);
        if has_changed {
            self.begin(paths, &initial_fill(paths));
        }
        let grant = self.next_turn(paths);
        // A path that is full is not waited for: the next round is the others'.
        if grant.is_some() || !paths.iter().any(PathView::has_room) {
            return grant;
        }
        self.begin(paths, &round(paths));
        self.next_turn(paths)
    }

    /// Of the paths with room and turns left, the one farthest behind in its round; of equals the
    /// first.
    fn next_turn(&mut self, paths: &[PathView]) -> Option<Grant> {
        let open = self
            .shares
            .iter_mut()
            .zip(paths)
            .filter(|(s, p)| s.left > 0 && p.has_room());
        let (share, path) = open.min_by(|(a, _), (b, _)| {
            let (a, b) = (b.left * a.quota, a.left * b.quota);
            a.cmp(&b)
        })?;
        share.left -= 1;
        Some(path.grant_packets(1))
    }

    fn begin(&mut self, paths: &[PathView], quotas: &[u64]) {
        self.shares.clear();
        self.shares
            .extend(paths.iter().zip(quotas).map(|(path, quota)| Share {
                id: path.id,
                weight: path.weight,
                quota: *quota,
                left: *quota,
            }));
    }
}

/// Packets for each path at the start, eq. (1), rounded to whole ones.
fn initial_fill(paths: &[PathView]) -> Vec<u64> {
    let level =
        |path: &PathView| path.weight * path.rate.as_bps() as f64 * path.delay.as_secs_f64();
    let least = paths.iter().map(level).fold(f64::MAX, f64::min);
    let packets = |path: &PathView| {
        let packet = path.packet.bits().max(1) as f64;
        (((level(path) - least) / packet).round() as u64).min(FILL_MAX)
    };
    paths.iter().map(packets).collect()
}

/// Packets for each path in a round, eq. (2).
fn round(paths: &[PathView]) -> Vec<u64> {
    let greatest = paths
        .iter()
        .map(|path| path.rate)
        .max()
        .unwrap_or(Rate::ZERO)
        .as_bps();
    let step = (greatest / STEPS).max(1);
    // Nobody's rate is rounded to nothing: what never sends is never measured.
    let steps = |path: &PathView| (path.rate.as_bps().saturating_add(step / 2) / step).max(1);
    let divisor = paths.iter().map(steps).fold(0, gcd).max(1);
    let size = |path: &PathView| path.packet.get().max(1);
    let multiple = paths.iter().map(size).fold(1, lcm);
    let ideal = |path: &PathView| {
        path.weight * (steps(path) / divisor) as f64 * (multiple / size(path)) as f64
    };
    let total: f64 = paths.iter().map(ideal).sum();
    let shorten = (ROUND_MAX as f64 / total).min(1.0);
    let packets = |path: &PathView| match ideal(path) * shorten {
        0.0 => 0,
        packets => (packets.round() as u64).max(1),
    };
    paths.iter().map(packets).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    (a / gcd(a, b).max(1)).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use tabane_base::Bytes;

    use super::super::tests::path;
    use super::*;

    /// The paper's links A and B.
    fn paper() -> [PathView; 2] {
        let (mut a, mut b) = (path(0, 1_000_000, 2, 100), path(1, 1_000_000, 1, 50));
        a.packet = Bytes::new(500);
        b.packet = Bytes::new(1_000);
        [a, b]
    }

    #[test]
    fn the_papers_example_is_38_packets_and_then_4_to_1() {
        assert_eq!(initial_fill(&paper()), [38, 0]);
        assert_eq!(round(&paper()), [4, 1]);
    }

    #[test]
    fn packets_go_out_in_that_order() {
        let mut weighted = Weighted::default();
        let order: Vec<usize> = (0..48)
            .filter_map(|_| weighted.choose(&paper()))
            .map(|grant| grant.index.0)
            .collect();
        assert_eq!(order[..38], [0; 38]);
        for round in order[38..].chunks(5) {
            assert_eq!(
                round.iter().filter(|index| **index == 0).count(),
                4,
                "{order:?}"
            );
        }
    }

    #[test]
    fn a_weight_takes_its_part_off_and_zero_takes_all() {
        let mut paths = paper();
        paths[0].weight = 0.5;
        assert_eq!(round(&paths), [2, 1]);
        paths[0].weight = 0.0;
        assert_eq!(round(&paths), [0, 1]);
        let mut weighted = Weighted::default();
        assert!((0..9).all(|_| {
            weighted
                .choose(&paths)
                .is_some_and(|grant| grant.index.0 == 1)
        }));
    }

    #[test]
    fn a_full_path_misses_its_turns_and_is_next_when_it_has_room() {
        let mut weighted = Weighted::default();
        let mut paths = [path(0, 9_000, 10, 10), path(1, 0, 10, 10)];
        let mut next = |paths: &[PathView]| weighted.choose(paths).map(|grant| grant.index.0);
        assert!((0..5).all(|_| next(&paths) == Some(0)));
        paths[1] = path(1, 9_000, 10, 10);
        let order: Vec<_> = (0..6).map(|_| next(&paths)).collect();
        assert_eq!(order, [1, 0, 1, 0, 1, 0].map(Some));
        paths.iter_mut().for_each(|path| path.room = Bytes::ZERO);
        assert_eq!(next(&paths), None);
    }

    #[test]
    fn after_a_path_was_full_rounds_are_whole_again() {
        let mut weighted = Weighted::default();
        let mut paths = [path(0, 9_000, 30, 10), path(1, 0, 10, 10)];
        assert_eq!(
            (initial_fill(&paths), round(&paths)),
            (vec![25, 0], vec![32, 11])
        );
        assert!((0..25 + 15).all(|_| weighted.choose(&paths).is_some()));
        paths[1] = path(1, 9_000, 10, 10);
        let order: Vec<_> = (0..17 + 11 + 43)
            .filter_map(|_| weighted.choose(&paths))
            .collect();
        let second = order.iter().filter(|grant| grant.index.0 == 1).count();
        assert_eq!((order.len(), second), (71, 22));
    }

    #[test]
    fn odd_rates_and_packet_sizes_make_no_endless_rounds() {
        let mut paths = [path(0, 0, 49, 10), path(1, 0, 7, 10), path(2, 0, 0, 10)];
        paths[0].packet = Bytes::new(1_472);
        paths[1].packet = Bytes::new(1_451);
        let packets = round(&paths);
        assert!(packets.iter().sum::<u64>() <= ROUND_MAX + 3, "{packets:?}");
        assert!(packets[0] > 6 * packets[1] && packets[1] > packets[2] && packets[2] > 0);
    }
}
