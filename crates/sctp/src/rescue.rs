//! Sends again what the stack leaves lying.
//!
//! With CMT, usrsctp repeats a chunk at once when later ones are reported, but only the first time.
//! When the repetition is lost too, it waits for a timeout, and that timer begins anew whenever
//! anything else on the path is acknowledged: while there is data to send, it never fires. The
//! receiver hands over nothing meanwhile, and windows stand still. (Seen: 4.5 s of a transfer of
//! 5 s.) So a copy of each packet is kept until it is acknowledged. What was sent before something
//! else on the same path that has arrived, and has been missing for longer than a round trip since
//! it was last sent, is lost: it is sent once more, by the best path. To the receiver it is a
//! packet like any other; to the stack, one that was not lost after all.
//!
//! Pure: time is what the stack was told of, packets are bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use tabane_base::{Bytes, Duration};

use crate::packet;
use crate::path::PathId;

/// Bytes of the copies kept; the oldest are the ones that are needed.
const KEPT_MAX: usize = 16 << 20;
/// Packets sent again at one time, so that what was lost to a full queue does not fill it anew.
const AT_A_TIME: usize = 4;
/// What is missing is looked for so often.
const PAUSE: Duration = Duration::from_millis(10);
/// A gap of the acknowledgement that reaches further back is of another time (RFC 1982).
const HALF: u32 = 1 << 31;

#[derive(Debug)]
struct Flight {
    first: u32,
    last: u32,
    /// The last time, by which path, and how many packets had been sent before.
    sent_at: Duration,
    path: PathId,
    order: u64,
    /// So an acknowledgement tells nothing of the path.
    repeated: bool,
    /// Known to have arrived, once.
    heard: bool,
    packet: Vec<u8>,
}

/// A packet that was sent once and has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) path: PathId,
    pub(crate) rtt: Duration,
}

/// What is known to have arrived.
#[derive(Debug, Default)]
struct News {
    /// By path: the latest packet, by its order.
    latest: BTreeMap<PathId, u64>,
    /// Paths by which something has arrived since that was asked.
    fresh: BTreeSet<PathId>,
    samples: Vec<Sample>,
}

/// Packets of one association.
#[derive(Debug, Default)]
pub(crate) struct Rescue {
    /// By transmission sequence number.
    flights: VecDeque<Flight>,
    kept: usize,
    /// Everything up to this has arrived.
    cumulative: u32,
    /// What has arrived beyond, counted from `cumulative`.
    arrived: Vec<Range<u32>>,
    news: News,
    sent: u64,
    /// When it was last looked what has arrived, and when what is missing.
    heard_at: Duration,
    looked_at: Duration,
}

impl Rescue {
    /// A packet leaves by a path.
    pub(crate) fn on_transmit(&mut self, now: Duration, path: PathId, packet: &[u8]) {
        let Some((first, last)) = packet::sequence_numbers(packet) else {
            return;
        };
        self.sent += 1;
        let newest = self.flights.back();
        if newest.is_none_or(|newest| is_before(newest.last, first)) {
            if self.flights.is_empty() {
                self.cumulative = first.wrapping_sub(1);
                self.arrived.clear();
            }
            if self.kept + packet.len() <= KEPT_MAX {
                self.kept += packet.len();
                self.flights.push_back(Flight {
                    first,
                    last,
                    sent_at: now,
                    path,
                    order: self.sent,
                    repeated: false,
                    heard: false,
                    packet: packet.to_vec(),
                });
            }
            return;
        }
        // The stack's own repetition.
        let after = |flight: &Flight| is_before(flight.last, first);
        let at = self.flights.partition_point(after);
        if let Some(flight) = self.flights.get_mut(at) {
            flight.sent_again(now, path, self.sent);
        }
    }

    /// An acknowledgement has come.
    pub(crate) fn on_packet(&mut self, now: Duration, packet: &[u8]) {
        let Some((cumulative, gaps)) = packet::acknowledged(packet) else {
            return;
        };
        if is_before(cumulative, self.cumulative) {
            return;
        }
        let covered = |flight: &mut Flight| !is_before(cumulative, flight.last);
        while let Some(mut flight) = self.flights.pop_front_if(covered) {
            self.news.hear(now, &mut flight);
            self.kept -= flight.packet.len();
        }
        self.cumulative = cumulative;
        self.arrived = gaps;
        self.arrived.sort_by_key(|range| range.start);
        if now > self.heard_at {
            self.heard_at = now;
            self.look(now);
        }
    }

    /// The paths by which data is known to have arrived since this was last asked.
    pub(crate) fn arrivals(&mut self) -> BTreeSet<PathId> {
        std::mem::take(&mut self.news.fresh)
    }

    /// What has arrived since this was last asked.
    pub(crate) fn samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.news.samples)
    }

    /// The number of the packet that left last by a path and may be under way.
    pub(crate) fn latest(&self, path: PathId) -> Option<u32> {
        let mut flights = self.flights.iter().rev();
        let latest = flights.find(|flight| flight.path == path && !flight.heard);
        latest.map(|flight| flight.first)
    }

    /// User data that left by a path and of whose arrival nothing is known.
    pub(crate) fn outstanding(&self, path: PathId) -> Bytes {
        let has = |number: u32| self.has(number.wrapping_sub(self.cumulative));
        let flights = self.flights.iter().filter(|flight| flight.path == path);
        let missing = flights.filter(|flight| !has(flight.first) || !has(flight.last));
        let bytes = missing.map(|flight| packet::data_bytes(&flight.packet) as u64);
        Bytes::new(bytes.sum())
    }

    /// Whether what lies so far beyond `cumulative` has arrived.
    fn has(&self, offset: u32) -> bool {
        self.arrived.iter().any(|range| range.contains(&offset))
    }

    /// What is lost, which includes everything on paths that are `given_up`, and was last sent
    /// longer ago than `patience` has for its path; taken for sent `by` a path. Without one it
    /// stays where it is.
    pub(crate) fn poll(
        &mut self,
        now: Duration,
        by: Option<PathId>,
        given_up: &BTreeSet<PathId>,
        patience: impl Fn(PathId) -> Duration,
    ) -> Vec<Vec<u8>> {
        let mut again = Vec::new();
        if now < self.looked_at + PAUSE {
            return again;
        }
        self.looked_at = now;
        let missing = self.look(now);
        let Some(by) = by else { return again };
        for at in missing {
            let flight = &mut self.flights[at];
            let latest = self.news.latest.get(&flight.path);
            let overtaken = latest.is_some_and(|latest| *latest > flight.order);
            let is_lost = overtaken || given_up.contains(&flight.path);
            if is_lost && now > flight.sent_at + patience(flight.path) && again.len() < AT_A_TIME {
                self.sent += 1;
                flight.sent_again(now, by, self.sent);
                again.push(flight.packet.clone());
            }
        }
        again
    }

    /// Looks what has arrived, and gives what is missing before the last of that.
    fn look(&mut self, now: Duration) -> Vec<usize> {
        let cumulative = self.cumulative;
        let offset = |number: u32| number.wrapping_sub(cumulative);
        let mut ranges = self.arrived.iter().peekable();
        let mut missing = Vec::new();
        for (at, flight) in self.flights.iter_mut().enumerate() {
            let (first, last) = (offset(flight.first), offset(flight.last));
            while ranges.next_if(|range| range.end <= first).is_some() {}
            let Some(range) = ranges.peek() else { break };
            if range.contains(&first) && range.contains(&last) {
                self.news.hear(now, flight);
            } else {
                missing.push(at);
            }
        }
        missing
    }
}

impl News {
    fn hear(&mut self, now: Duration, flight: &mut Flight) {
        if flight.repeated || std::mem::replace(&mut flight.heard, true) {
            return;
        }
        let Flight {
            path,
            order,
            sent_at,
            ..
        } = *flight;
        let rtt = now.saturating_sub(sent_at);
        self.samples.push(Sample { path, rtt });
        let latest = self.latest.entry(path).or_default();
        if order > *latest {
            *latest = order;
            self.fresh.insert(path);
        }
    }
}

impl Flight {
    fn sent_again(&mut self, now: Duration, path: PathId, order: u64) {
        self.sent_at = now;
        self.path = path;
        self.order = order;
        self.repeated = true;
    }
}

fn is_before(a: u32, b: u32) -> bool {
    let distance = b.wrapping_sub(a);
    distance != 0 && distance < HALF
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn data(number: u32) -> Vec<u8> {
        let mut packet = vec![0; packet::COMMON_HEADER];
        packet.extend([0, 3, 0, 20]);
        packet.extend(number.to_be_bytes());
        packet.extend([0; 12]);
        packet
    }

    fn sack(cumulative: u32, gaps: &[(u16, u16)]) -> Vec<u8> {
        let mut packet = vec![0; packet::COMMON_HEADER];
        let len = u16::try_from(16 + 4 * gaps.len()).unwrap();
        packet.extend([3, 0]);
        packet.extend(len.to_be_bytes());
        packet.extend(cumulative.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(u16::try_from(gaps.len()).unwrap().to_be_bytes());
        packet.extend([0; 2]);
        for (start, end) in gaps {
            packet.extend(start.to_be_bytes());
            packet.extend(end.to_be_bytes());
        }
        packet
    }

    const PATIENCE: Duration = Duration::from_millis(100);
    const NEAR: PathId = PathId(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    const FAR: PathId = PathId(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));

    fn at(ms: u64) -> Duration {
        Duration::from_millis(1_000 + ms)
    }

    /// Around the end of the sequence numbers, too.
    #[test]
    fn what_is_lost_goes_again_and_nothing_else() {
        for first in [7, u32::MAX - 3] {
            let number = |n: u32| first.wrapping_add(n);
            let mut rescue = Rescue::default();
            for n in 0..10 {
                // 3 and 4 go the long way.
                let path = if n == 3 || n == 4 { FAR } else { NEAR };
                rescue.on_transmit(at(0), path, &data(number(n)));
            }
            // 2 and 5 are lost, 3 and 4 still under way, and 9 may be.
            rescue.on_packet(at(0), &sack(number(1), &[(5, 7)]));
            assert_eq!(rescue.outstanding(FAR), Bytes::new(8));
            assert_eq!(rescue.outstanding(NEAR), Bytes::new(12));
            let mut poll = |ms| rescue.poll(at(ms), Some(NEAR), &BTreeSet::new(), |_| PATIENCE);
            assert!(poll(90).is_empty());
            assert_eq!(poll(110), [data(number(2)), data(number(5))]);
            assert!(
                poll(500).is_empty(),
                "nothing has overtaken the repetitions"
            );
            // Later ones on the near path arrive, and 2, but not 5.
            for n in 10..14 {
                rescue.on_transmit(at(500), NEAR, &data(number(n)));
            }
            rescue.on_packet(at(0), &sack(number(4), &[(2, 9)]));
            // The stack repeats 5 by itself; that is lost as well.
            rescue.on_transmit(at(510), NEAR, &data(number(5)));
            assert!(
                rescue
                    .poll(at(700), Some(NEAR), &BTreeSet::new(), |_| PATIENCE)
                    .is_empty()
            );
            rescue.on_transmit(at(710), NEAR, &data(number(14)));
            rescue.on_packet(at(0), &sack(number(4), &[(2, 10)]));
            let again = rescue.poll(at(720), Some(NEAR), &BTreeSet::new(), |_| PATIENCE);
            assert_eq!(again, [data(number(5))]);
            // An old acknowledgement changes nothing, the last one ends it.
            rescue.on_packet(at(0), &sack(number(14), &[]));
            rescue.on_packet(at(0), &sack(number(1), &[(2, 3)]));
            assert!(
                rescue
                    .poll(at(1_900), Some(NEAR), &BTreeSet::new(), |_| PATIENCE)
                    .is_empty()
            );
            assert!(rescue.flights.is_empty() && rescue.kept == 0);
        }
    }

    #[test]
    fn copies_have_a_limit() {
        let mut rescue = Rescue::default();
        let mut packet = data(1);
        packet.resize(60_000, 0);
        for n in 0..1_000_u32 {
            packet[16..20].copy_from_slice(&n.to_be_bytes());
            rescue.on_transmit(at(0), NEAR, &packet);
        }
        assert!(rescue.kept <= KEPT_MAX && rescue.flights.len() < 300);
    }
}
