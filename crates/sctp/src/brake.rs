//! Ends a path's slow start before its queue is full.
//!
//! The stack doubles a window every round trip until packets are lost. By then a whole queue of
//! them is, on every path at once, and the repair takes a second or more, in which the receiver
//! hands over nothing. So round trips are watched, as HyStart does (RFC 9406 §4.2): when many in a
//! row are longer than the shortest, the queue has begun to grow, and the stack is told that the
//! network is congested there, in the words it has for that (ECN Echo, RFC 9260 appendix A). It
//! halves the window and goes on by a packet a round trip. HyStart takes the shortest of a round; a
//! queue of two round trips is full by the end of the first round that it begins to grow in.
//!
//! Once per path: what comes after is the stack's own congestion control.
//!
//! Pure: time is what the stack was told of.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::Duration;

use crate::path::PathId;

/// Round trips in a row that must be longer (RFC 9406 `N_RTT_SAMPLE`).
const SAMPLES: usize = 8;
/// By how much they must be: a share of the shortest, within bounds.
const GROWTH_SHARE: u32 = 4;
const GROWTH_MIN: Duration = Duration::from_millis(16);
const GROWTH_MAX: Duration = Duration::from_millis(60);
/// And by so many times what one usually differs from the next.
const GROWTH_JITTERS: u32 = 4;
/// The weight of one difference in that.
const JITTER_SHARE: u32 = 8;

/// The paths of one association.
#[derive(Debug, Default)]
pub(crate) struct Brakes(BTreeMap<PathId, Brake>);

#[derive(Debug, Default)]
struct Brake {
    shortest: Option<Duration>,
    /// The last [`SAMPLES`].
    recent: VecDeque<Duration>,
    /// Smoothed difference of one from the next.
    jitter: Duration,
    has_braked: bool,
}

impl Brakes {
    /// A packet has arrived by a path after a round trip. Whether the path must slow down now.
    pub(crate) fn on_sample(&mut self, path: PathId, rtt: Duration) -> bool {
        let brake = self.0.entry(path).or_default();
        if !brake.has_braked {
            brake.take(rtt);
            brake.has_braked = brake.is_longer();
            return brake.has_braked;
        }
        false
    }

    /// A path leads another way, of which nothing is known.
    pub(crate) fn forget(&mut self, path: PathId) {
        self.0.remove(&path);
    }
}

impl Brake {
    fn take(&mut self, rtt: Duration) {
        self.shortest = Some(self.shortest.map_or(rtt, |shortest| shortest.min(rtt)));
        if let Some(last) = self.recent.back() {
            let kept = self.jitter * (JITTER_SHARE - 1) / JITTER_SHARE;
            self.jitter = kept + rtt.abs_diff(*last) / JITTER_SHARE;
        }
        self.recent.push_back(rtt);
        if self.recent.len() > SAMPLES {
            self.recent.pop_front();
        }
    }

    fn is_longer(&self) -> bool {
        let Some(shortest) = self.shortest.filter(|_| self.recent.len() == SAMPLES) else {
            return false;
        };
        let growth = (shortest / GROWTH_SHARE).clamp(GROWTH_MIN, GROWTH_MAX);
        let growth = growth.max(self.jitter * GROWTH_JITTERS);
        self.recent.iter().all(|rtt| *rtt > shortest + growth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    use tabane_base::Seed;

    const PATH: PathId = PathId(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    const OTHER: PathId = PathId(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// At which of these round trips it brakes.
    fn brakes_at(rtts: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut brakes = Brakes::default();
        let mut rtts = rtts.into_iter();
        rtts.position(|rtt| brakes.on_sample(PATH, ms(rtt)))
    }

    #[test]
    fn a_queue_that_grows_is_noticed_once() {
        // 8 Mbit/s, 30 ms: a packet more waits 1.4 ms longer.
        let growing = |n: u64| 30 + n * 14 / 10;
        let at = brakes_at((0..100).map(growing)).unwrap();
        assert!((16..28).contains(&at), "{at}");
        let mut brakes = Brakes::default();
        let braked = (0..100).filter(|n| brakes.on_sample(PATH, ms(growing(*n))));
        assert_eq!(braked.count(), 1);
        assert!(
            !brakes.on_sample(OTHER, ms(500)),
            "of that path nothing is known"
        );
        brakes.forget(PATH);
        let again = (0..100).filter(|n| brakes.on_sample(PATH, ms(growing(*n))));
        assert_eq!(again.count(), 1);
    }

    #[test]
    fn bursts_and_jitter_are_no_queue() {
        assert_eq!(brakes_at((0..1_000).map(|n| 30 + n % 8 * 5)), None);
        assert_eq!(brakes_at((0..1_000).map(|_| 600)), None);
        for seed in 0..20 {
            let mut random = Seed(seed).rng("jitter");
            let jitter = (0..400).map(|_| 60 + random.next_u64() % 40);
            assert_eq!(brakes_at(jitter), None, "seed {seed}");
        }
    }
}
