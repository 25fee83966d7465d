//! The bandwidth of a path's bottleneck, by packets sent back to back (SBAM §2.4, eq. 4).
//!
//! ```text
//! bandwidth = packet size / spacing            (4), for a train: bytes after the first / spacing
//! ```
//!
//! The spacing is that of the packets' arrivals by the receiver's own clock, not that of the
//! acknowledgements, so what squeezes acknowledgements together on their way back is no matter.
//! What is left to filter, and how:
//!
//! * *Receivers take several packets at once* (GRO, interrupt moderation, a busy machine): the
//!   spacing is zero, or next to it. Such a sample has no rate; it counts as "faster than any".
//! * *Cross traffic* gets between the packets (too slow) or holds up the first one behind the
//!   bottleneck (too fast). Both scatter, while the bottleneck's own spacing repeats: the estimate
//!   is the median of the densest cluster of samples, the mode of Dovrolis et al. (INFOCOM 2001).
//! * *Jitter* larger than the spacing leaves no cluster. It lengthens as often as it shortens, so
//!   the median of all samples, those without a rate among them, stands in.
//!
//! Sizes count IP packets whole, as links' rates do.

use std::collections::VecDeque;

use tabane_base::{Bytes, Duration, Instant, Rate};

/// Samples kept: enough for a cluster among strays, few enough that half of them, and with them the
/// estimate, follow a link that changes within eight.
const SAMPLES: usize = 16;
/// Samples older than this are dropped, but for the newest [`KEPT`].
const MAX_AGE: Duration = Duration::from_secs(180);
/// Samples that are believed at any age: an idle link is seldom measured.
const KEPT: usize = 4;
/// From its slowest to its fastest sample a cluster spans at most this factor.
const CLUSTER_SPAN: f64 = 1.15;
/// One sample in so many at least, and two, make a cluster.
const CLUSTER_SHARE: usize = 3;
/// Faster than any link that is measured this way: the receiver took the packets together.
const TOO_FAST: Rate = Rate::from_mbps(100_000);

/// A pair of packets, or a short train of them, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// Of all packets but the first, counted at IP level.
    pub bytes: Bytes,
    /// From the first packet's arrival to the last one's, by the receiver's clock.
    pub spacing: Duration,
}

impl Train {
    /// Eq. 4; `None` where the receiver took the packets together.
    fn rate(&self) -> Option<Rate> {
        let rate = Rate::of(self.bytes, self.spacing);
        (rate < TOO_FAST).then_some(rate)
    }
}

/// Makes one bandwidth of many samples.
#[derive(Clone, Debug, Default)]
pub struct PairFilter {
    /// Oldest first; [`Rate::MAX`] for "faster than any".
    samples: VecDeque<(Instant, Rate)>,
    /// Follows from them; kept because it is asked for far more often than they change.
    bandwidth: Option<Rate>,
}

impl PairFilter {
    /// A train arrived, or is reported to have arrived.
    pub fn on_train(&mut self, now: Instant, train: Train) {
        if train.bytes == Bytes::ZERO {
            return;
        }
        let rate = train.rate().unwrap_or(Rate::MAX);
        self.samples.push_back((now, rate));
        while self.samples.len() > SAMPLES || self.has_stale(now) {
            self.samples.pop_front();
        }
        self.bandwidth = self.estimate();
    }

    /// The bottleneck's bandwidth; `None` while there is nothing to tell it from.
    #[must_use]
    pub const fn bandwidth(&self) -> Option<Rate> {
        self.bandwidth
    }

    fn estimate(&self) -> Option<Rate> {
        let mut rates = [Rate::MAX; SAMPLES];
        let count = self.samples.len();
        let rates = rates.get_mut(..count)?;
        for (slot, (_, rate)) in rates.iter_mut().zip(&self.samples) {
            *slot = *rate;
        }
        rates.sort_unstable();
        let with_rate = rates.partition_point(|rate| *rate < Rate::MAX);
        let cluster = densest(&rates[..with_rate]);
        let is_cluster = cluster.len() >= (count / CLUSTER_SHARE).max(2);
        let chosen = if is_cluster { cluster } else { rates };
        // Of two in the middle the slower one: the less is promised.
        let median = chosen.get(chosen.len().checked_sub(1)? / 2)?;
        (*median < Rate::MAX).then_some(*median)
    }

    /// How many samples the estimate rests on.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    fn has_stale(&self, now: Instant) -> bool {
        let oldest = self.samples.front();
        self.samples.len() > KEPT && oldest.is_some_and(|(at, _)| now.since(*at) > MAX_AGE)
    }
}

/// The longest run of sorted `rates` within [`CLUSTER_SPAN`]; of equal ones the fastest, because
/// cross traffic slows more samples than it quickens.
fn densest(rates: &[Rate]) -> &[Rate] {
    let mut best: &[Rate] = &[];
    for (first, slowest) in rates.iter().enumerate() {
        let fastest = slowest.scaled(CLUSTER_SPAN);
        let run = &rates[first..];
        let run = &run[..run.partition_point(|rate| *rate <= fastest)];
        if run.len() >= best.len() {
            best = run;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    const PACKET: Bytes = Bytes::new(1_500);

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    fn filter(spacings_us: &[u64]) -> PairFilter {
        let mut filter = PairFilter::default();
        for (i, us) in spacings_us.iter().enumerate() {
            let train = Train {
                bytes: PACKET,
                spacing: Duration::from_micros(*us),
            };
            filter.on_train(at(i as u64), train);
        }
        filter
    }

    #[test]
    fn one_pair_measures_as_the_paper_says() {
        // Eq. 4: 12,000 bits, a millisecond apart.
        assert_eq!(
            filter(&[1_000]).bandwidth(),
            Some(Rate::from_mbps(12)),
            "1,500 bytes in 1 ms"
        );
    }

    #[test]
    fn strays_on_either_side_do_not_move_it() {
        // Batched, squeezed behind the bottleneck, and stretched by cross traffic, among 240 us.
        let filter = filter(&[0, 240, 60, 240, 700, 240, 120, 0, 480, 240, 390, 241]);
        let rate = filter.bandwidth().unwrap().as_mbps_f64();
        assert!((49.0..51.0).contains(&rate), "{rate}");
    }

    #[test]
    fn batching_that_hides_every_spacing_leaves_no_estimate() {
        assert_eq!(filter(&[0, 0, 0, 0, 0]).bandwidth(), None);
        assert_eq!(PairFilter::default().bandwidth(), None);
        // One real sample among batched ones is not enough to know.
        assert_eq!(filter(&[0, 0, 240, 0, 0]).bandwidth(), None);
    }

    #[test]
    fn jitter_above_the_spacing_leaves_the_median() {
        for seed in 0..20 {
            let mut rng = Seed(seed).rng("jitter");
            let spacings: Vec<u64> = (0..16)
                .map(|_| (240 + rng.below(400)).saturating_sub(rng.below(400)))
                .collect();
            let rate = filter(&spacings).bandwidth();
            let rate = rate.map_or(0.0, Rate::as_mbps_f64);
            assert!((20.0..125.0).contains(&rate), "seed {seed}: {rate}");
        }
    }

    #[test]
    fn a_link_that_changes_is_followed_within_nine_samples() {
        let mut spacings = vec![240; 16];
        spacings.extend([1_200; 9]);
        let rate = filter(&spacings).bandwidth().unwrap().as_mbps_f64();
        assert!((9.5..10.5).contains(&rate), "{rate}");
    }

    #[test]
    fn old_samples_go_and_the_newest_stay() {
        let mut filter = filter(&[240; 16]);
        let slow = Train {
            bytes: PACKET,
            spacing: Duration::from_micros(1_200),
        };
        filter.on_train(at(10_000), slow);
        assert_eq!(filter.samples(), KEPT);
    }
}
