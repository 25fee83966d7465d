//! When each packet of a transfer arrived, and how far from its place.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::arena::Arrival;

/// Arrivals are looked at together in spans of this length.
const SPAN: Duration = Duration::from_millis(20);

/// The arrivals of one transfer, as the receiving application saw them.
#[derive(Clone, Debug)]
pub struct Sequence {
    arrivals: Vec<Arrival>,
    payload: u64,
}

impl Sequence {
    /// Arrivals in order of time, counted from `start`, of packets of `payload` bytes.
    pub(crate) fn new(arrivals: Vec<Arrival>, start: Instant, payload: u64) -> Self {
        let since = |arrival: &Arrival| Arrival {
            at: Instant::EPOCH + arrival.at.since(start),
            number: arrival.number,
        };
        Self {
            arrivals: arrivals.iter().map(since).collect(),
            payload,
        }
    }

    /// Packets that arrived.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether nothing arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// From the first packet's departure to the last one's arrival.
    #[must_use]
    pub fn lasted(&self) -> Duration {
        self.arrivals
            .last()
            .map_or(Duration::ZERO, |last| last.at - Instant::EPOCH)
    }

    /// Payload over the whole transfer.
    #[must_use]
    pub fn goodput(&self) -> Rate {
        Rate::of(Bytes::new(self.len() as u64 * self.payload), self.lasted())
    }

    /// In each span of 20 ms, when it began (in s), and the lowest and the highest number that
    /// arrived in it after the highest before it is taken off, that is: how far apart the paths
    /// are.
    #[must_use]
    pub fn extremes(&self) -> Vec<(f64, u64, u64)> {
        let mut spans: Vec<(f64, u64, u64)> = Vec::new();
        let mut index = None;
        for arrival in &self.arrivals {
            let span = arrival.at.as_nanos() / SPAN.as_nanos() as u64;
            match spans.last_mut().filter(|_| index == Some(span)) {
                Some((_, low, high)) => {
                    *low = (*low).min(arrival.number);
                    *high = (*high).max(arrival.number);
                }
                None => {
                    let at = arrival.at.as_secs_f64();
                    spans.push((at, arrival.number, arrival.number));
                    index = Some(span);
                }
            }
        }
        spans
    }

    /// The gap by time, in packets: in each span of 20 ms, the farthest that an arriving packet
    /// was behind the newest one that had arrived. Zero while everything comes in order.
    #[must_use]
    pub fn gaps(&self) -> Vec<(f64, u64)> {
        let mut gaps: Vec<(f64, u64)> = Vec::new();
        let mut index = None;
        let mut newest = 0;
        for arrival in &self.arrivals {
            newest = newest.max(arrival.number);
            let gap = newest - arrival.number;
            let span = arrival.at.as_nanos() / SPAN.as_nanos() as u64;
            match gaps.last_mut().filter(|_| index == Some(span)) {
                Some((_, widest)) => *widest = (*widest).max(gap),
                None => {
                    gaps.push((arrival.at.as_secs_f64(), gap));
                    index = Some(span);
                }
            }
        }
        gaps
    }

    /// The gap around a moment (in s): the widest within 100 ms before it.
    #[must_use]
    pub fn gap_at(&self, seconds: f64) -> u64 {
        let near = |at: f64| at <= seconds && at > seconds - 0.1;
        let near = self.gaps().into_iter().filter(|(at, _)| near(*at));
        near.map(|(_, gap)| gap).max().unwrap_or(0)
    }

    /// The gap in the steady state: of the spans between a quarter and the end of the transfer,
    /// all but one in ten are within it.
    #[must_use]
    pub fn steady_gap(&self) -> u64 {
        let begin = self.lasted().as_secs_f64() / 4.0;
        let later = self.gaps().into_iter().filter(|(at, _)| *at >= begin);
        let mut gaps: Vec<u64> = later.map(|(_, gap)| gap).collect();
        gaps.sort_unstable();
        gaps.get(gaps.len() * 9 / 10).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_how_far_late_packets_are_behind() {
        let numbers = [0, 1, 12, 2, 13, 3];
        let arrival = |(i, number): (u64, u64)| Arrival {
            at: Instant::from_millis(100 + 10 * i),
            number,
        };
        let arrivals = (0..).zip(numbers).map(arrival).collect();
        let sequence = Sequence::new(arrivals, Instant::from_millis(100), 1_000);
        assert_eq!(sequence.lasted(), Duration::from_millis(50));
        assert_eq!(sequence.goodput(), Rate::from_bps(960_000));
        let gaps: Vec<u64> = sequence.gaps().into_iter().map(|(_, gap)| gap).collect();
        assert_eq!(gaps, [0, 10, 10]);
        assert_eq!(sequence.extremes()[1], (0.02, 2, 12));
        assert_eq!((sequence.gap_at(0.01), sequence.gap_at(0.05)), (0, 10));
        assert_eq!(sequence.steady_gap(), 10);
    }
}
