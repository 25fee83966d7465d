//! A plain UDP sender that gives its packets to interfaces by a fixed rule: in turn, as SBAM's
//! prototype and the application beside it (APP1) did, or by weight, as APP3.
//!
//! No congestion control and no feedback. Each interface has a queue in front of its radio, of as
//! many packets as the system of the time allowed; who writes to a full one waits, so a packet for
//! the slower queue holds back everything behind it.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_netem::{Link, LinkConfig, RateModel};

use super::arena::Arrival;

/// FreeBSD's `IFQ_MAXLEN`: packets an interface queues.
pub(crate) const INTERFACE_QUEUE: u64 = 50;
/// IPv4 and UDP headers.
const HEADERS: u64 = 28;

/// An interface and the network behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interface {
    /// What it delivers of UDP payload when packets are full.
    pub(crate) goodput: Rate,
    /// One-way delay behind it.
    pub(crate) delay: Duration,
}

impl Interface {
    /// The rate at IP level that delivers the goodput in packets of `payload` bytes.
    pub(crate) fn link_rate(&self, payload: u64) -> Rate {
        let bps = self.goodput.as_bps() * (payload + HEADERS) / payload;
        Rate::from_bps(bps)
    }
}

/// Sends `count` packets of `payload` bytes, of which each interface gets its weight's share; gives
/// when each arrives, in the order in which they do.
pub(crate) fn send(
    interfaces: &[Interface],
    weights: &[u64],
    count: u64,
    payload: u64,
) -> Vec<Arrival> {
    let size = Bytes::new(payload + HEADERS);
    let mut turns = Turns::new(weights);
    let mut turn = turns.next();
    let mut links: Vec<Link<u64>> = interfaces
        .iter()
        .map(|interface| {
            let config = LinkConfig {
                rate: RateModel::Constant(interface.link_rate(payload)),
                queue: Bytes::new(INTERFACE_QUEUE * size.get()),
                ..LinkConfig::wire()
            };
            Link::new(config, Seed(0), Instant::EPOCH)
        })
        .collect();
    let mut arrivals = Vec::new();
    let mut now = Instant::EPOCH;
    let mut next = 0;
    loop {
        for (link, interface) in links.iter_mut().zip(interfaces) {
            while let Some(number) = link.poll_output(now) {
                arrivals.push(Arrival {
                    at: now + interface.delay,
                    number,
                });
            }
        }
        while next < count && links[turn].handle_packet(now, next, size).is_ok() {
            next += 1;
            turn = turns.next();
        }
        match links.iter().filter_map(Link::poll_timeout).min() {
            Some(at) => now = at,
            None => break,
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.at, arrival.number));
    arrivals
}

/// Whose turn it is, so that after any number of packets each interface has had its share to
/// within a packet.
struct Turns<'a> {
    weights: &'a [u64],
    given: Vec<u64>,
}

impl<'a> Turns<'a> {
    fn new(weights: &'a [u64]) -> Self {
        Self {
            weights,
            given: vec![0; weights.len()],
        }
    }

    fn next(&mut self) -> usize {
        // The least (given + 1) / weight; the first of equals.
        let rank = |&i: &usize| (self.given[i] + 1) * 1_000_000 / self.weights[i].max(1);
        let index = (0..self.weights.len()).min_by_key(rank).unwrap_or(0);
        self.given[index] += 1;
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(mbps: u64, delay_ms: u64) -> Interface {
        Interface {
            goodput: Rate::from_mbps(mbps),
            delay: Duration::from_millis(delay_ms),
        }
    }

    #[test]
    fn the_slower_interface_holds_the_faster_one_back() {
        let arrivals = send(&[interface(9, 0), interface(3, 0)], &[1, 1], 4_000, 1_400);
        let last = arrivals.last().unwrap();
        assert_eq!(arrivals.len(), 4_000);
        let rate = Rate::of(Bytes::new(4_000 * 1_400), last.at - Instant::EPOCH);
        assert!((rate.as_mbps_f64() - 6.0).abs() < 0.1, "{rate}");
    }

    #[test]
    fn a_full_queue_on_one_side_is_a_hundred_numbers_apart() {
        let arrivals = send(&[interface(9, 0), interface(3, 0)], &[1, 1], 2_000, 1_400);
        let steady = &arrivals[1_000..1_500];
        let gaps = steady
            .windows(2)
            .map(|pair| pair[0].number.abs_diff(pair[1].number));
        let widest = gaps.max().unwrap();
        assert!(
            (2 * INTERFACE_QUEUE - 2..=2 * INTERFACE_QUEUE + 3).contains(&widest),
            "{widest}"
        );
    }
    #[test]
    fn weights_share_out_smoothly() {
        let mut turns = Turns::new(&[3, 2]);
        let order: Vec<usize> = (0..10).map(|_| turns.next()).collect();
        assert_eq!(order, [0, 1, 0, 0, 1, 0, 1, 0, 0, 1]);
        let arrivals = send(&[interface(9, 0), interface(3, 0)], &[3, 1], 4_000, 1_400);
        let last = arrivals.last().unwrap();
        let rate = Rate::of(Bytes::new(4_000 * 1_400), last.at - Instant::EPOCH);
        assert!((rate.as_mbps_f64() - 12.0).abs() < 0.2, "{rate}");
    }
}
