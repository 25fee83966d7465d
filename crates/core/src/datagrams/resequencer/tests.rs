//! Order and deadlines, step by step.

use super::*;
use crate::datagrams::label::DatagramOrder;
use bytes::Bytes;
use tabane_base::{Rng, Seed};

const FAST: PathId = PathId(0);
const SLOW: PathId = PathId(1);
const DEADLINE: Duration = Duration::from_millis(25);
const LEAD: Duration = Duration::from_millis(50);

/// A resequencer with what it handed out.
#[derive(Default)]
struct Reader {
    resequencer: Resequencer,
    out: VecDeque<Datagram>,
}

impl Reader {
    fn arrive(&mut self, ms: u64, path: PathId, number: u64, lead: Duration) -> Vec<u64> {
        self.arrive_in(FlowId(4), ms, path, number, lead)
    }

    fn arrive_in(
        &mut self,
        flow: FlowId,
        ms: u64,
        path: PathId,
        number: u64,
        lead: Duration,
    ) -> Vec<u64> {
        let now = Instant::from_millis(ms);
        let place = Place {
            number,
            deadline: DEADLINE,
            lead,
        };
        let datagram = Datagram {
            flow,
            order: DatagramOrder::Within(DEADLINE),
            data: Bytes::copy_from_slice(&number.to_be_bytes()),
        };
        let out = &mut self.out;
        self.resequencer.handle(now, path, place, datagram, out);
        self.taken()
    }

    fn expire(&mut self, ms: u64) -> Vec<u64> {
        self.resequencer
            .expire(Instant::from_millis(ms), &mut self.out);
        self.taken()
    }

    fn taken(&mut self) -> Vec<u64> {
        let number = |datagram: Datagram| {
            let bytes = datagram.data.first_chunk::<8>().expect("a number");
            u64::from_be_bytes(*bytes)
        };
        self.out.drain(..).map(number).collect()
    }
}

/// A hostile client begins and gives up a path with each packet.
#[test]
fn of_paths_that_come_and_go_no_more_are_known_than_may_be_open() {
    let mut reader = Reader::default();
    for number in 0..10_000 {
        let path = PathId(number as u32);
        reader.arrive(number / 100, path, 2 * number, LEAD);
        let known = reader.resequencer.sequences[&FlowId(4)].progress.len();
        assert!(known <= MAX_PATHS, "{known}");
    }
}

#[test]
fn what_overtook_waits_for_the_slow_path() {
    let mut reader = Reader::default();
    assert_eq!(reader.arrive(0, FAST, 0, LEAD), [0]);
    assert_eq!(reader.arrive(1, FAST, 2, LEAD), []);
    assert_eq!(reader.arrive(2, FAST, 3, LEAD), []);
    assert_eq!(
        reader.arrive(50, SLOW, 1, Duration::from_millis(1)),
        [1, 2, 3]
    );
    assert_eq!(reader.resequencer.held_bytes(), 0);
    assert_eq!(reader.resequencer.expires_at(), None);
}

#[test]
fn a_gap_is_given_up_at_the_deadline_and_what_comes_later_comes_once() {
    let mut reader = Reader::default();
    reader.arrive(0, FAST, 0, LEAD);
    assert_eq!(reader.arrive(1, FAST, 2, LEAD), []);
    assert_eq!(
        reader.resequencer.expires_at(),
        Some(Instant::from_millis(1 + 50 + 25))
    );
    assert_eq!(reader.expire(75), []);
    assert_eq!(reader.expire(76), [2]);
    assert_eq!(reader.arrive(80, SLOW, 1, LEAD), [1]);
    assert_eq!(reader.arrive(81, SLOW, 1, LEAD), []);
    assert_eq!(reader.arrive(82, FAST, 2, LEAD), []);
}

#[test]
fn a_gap_that_every_path_has_left_behind_is_closed_at_once() {
    let mut reader = Reader::default();
    reader.arrive(0, FAST, 0, LEAD);
    reader.arrive(1, SLOW, 1, LEAD);
    assert_eq!(reader.arrive(2, FAST, 3, LEAD), []);
    assert_eq!(reader.arrive(3, FAST, 6, LEAD), []);
    // Two of the slow path's, so far behind 2 that it cannot bring it.
    assert_eq!(reader.arrive(4, SLOW, 4, LEAD), []);
    assert_eq!(reader.arrive(5, SLOW, 5, LEAD), [3, 4, 5, 6]);
}

#[test]
fn a_flow_on_one_path_never_waits() {
    let mut reader = Reader::default();
    for number in [0, 1, 5, 6, 4, 9] {
        assert_eq!(reader.arrive(0, FAST, number, Duration::ZERO), [number]);
    }
    assert_eq!(reader.arrive(0, FAST, 5, Duration::ZERO), []);
}

#[test]
fn nothing_waits_for_ever_whatever_the_sender_says() {
    let mut reader = Reader::default();
    assert_eq!(reader.arrive(0, FAST, 1, Duration::MAX), []);
    assert_eq!(
        reader.resequencer.expires_at(),
        Some(Instant::EPOCH + MAX_WAIT)
    );
    let last = (1 << 62) - 1;
    assert_eq!(reader.arrive(1, FAST, last, LEAD), []);
    // The second waits less long, and what was held before it goes with it.
    assert_eq!(reader.expire(76), [1, last]);
    assert_eq!(reader.arrive(77, FAST, 7, LEAD), [7]);
}

#[test]
fn memory_and_flows_are_bounded() {
    let mut reader = Reader::default();
    let big = Bytes::from(vec![0; 60_000]);
    for n in 1..200 {
        let place = Place {
            number: 2 * n,
            deadline: DEADLINE,
            lead: LEAD,
        };
        let datagram = Datagram {
            flow: FlowId(n % 4),
            order: DatagramOrder::Within(DEADLINE),
            data: big.clone(),
        };
        let (now, out) = (Instant::EPOCH, &mut reader.out);
        reader.resequencer.handle(now, FAST, place, datagram, out);
        assert!(reader.resequencer.held_bytes() <= MAX_HELD);
    }
    reader.out.clear();
    for flow in 0..3 * MAX_FLOWS as u64 {
        reader.arrive_in(FlowId(flow), flow, FAST, 1, LEAD);
        assert!(reader.resequencer.sequences.len() <= MAX_FLOWS);
    }
    for n in 0..4 * MAX_GAPS as u64 {
        reader.arrive_in(FlowId(9), 0, FAST, 3 * n, Duration::ZERO);
    }
    let gaps = reader.resequencer.sequences[&FlowId(9)].missing.len();
    assert!(gaps <= MAX_GAPS, "{gaps}");
}

#[test]
fn a_forgotten_flow_leaves_nothing() {
    let mut reader = Reader::default();
    reader.arrive(0, FAST, 5, LEAD);
    reader.resequencer.forget(FlowId(4));
    assert_eq!(reader.resequencer.held_bytes(), 0);
    assert_eq!(reader.resequencer.expires_at(), None);
}

/// Numbers over paths with delays, losses and repeats of their own: in order except for what was
/// given up, nothing twice, nothing kept back longer than it may.
#[test]
fn whatever_arrives_nothing_comes_twice_or_waits_too_long() {
    for seed in (0..200).map(Seed) {
        let mut rng = seed.rng("arrivals");
        let mut reader = Reader::default();
        let mut arrivals = arrivals(&mut rng);
        arrivals.sort_unstable();
        let mut given = BTreeSet::new();
        for (at, number, path) in &arrivals {
            for number in reader.expire(*at) {
                assert!(given.insert(number), "{seed}: {number} twice");
            }
            let lead = LEAD * u32::from(*path == 0) + Duration::from_millis(1);
            for number in reader.arrive(*at, PathId(*path), *number, lead) {
                assert!(given.insert(number), "{seed}: {number} twice");
            }
            if let Some(at_most) = reader.resequencer.expires_at() {
                assert!(at_most <= Instant::from_millis(*at) + MAX_WAIT, "{seed}");
            }
        }
        given.extend(reader.expire(1 << 40));
        let sent: BTreeSet<_> = arrivals.iter().map(|(_, number, _)| *number).collect();
        assert_eq!(given, sent, "{seed}: something is missing");
        assert_eq!(reader.resequencer.held_bytes(), 0, "{seed}");
    }
}

fn arrivals(rng: &mut Rng) -> Vec<(u64, u64, u32)> {
    let mut arrivals = Vec::new();
    for number in 0..300 {
        let path = rng.below(3) as u32;
        let at = number + u64::from(path) * 30 + rng.below(3) * rng.below(40);
        if rng.chance(0.95) {
            arrivals.push((at, number, path));
        }
        if rng.chance(0.1) {
            arrivals.push((at + rng.below(100), number, rng.below(3) as u32));
        }
    }
    arrivals
}
