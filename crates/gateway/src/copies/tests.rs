//! What is held, and what a packet costs.

use super::*;

const NOW: Instant = Instant::from_millis(1);

fn piece(start: u32, payload: &[u8]) -> Piece<'_> {
    Piece {
        start: Seq(start),
        payload,
        keep: true,
        chunk: 4,
        stamp: start,
    }
}

#[test]
fn what_may_be_acknowledged_ends_at_the_first_hole() {
    let mut copies = Copies::new(Seq(10));
    assert_eq!(copies.insert(NOW, piece(10, b"abcdef")), 6);
    assert_eq!(copies.insert(NOW, piece(20, b"uvw")), 3);
    assert_eq!((copies.safe(), copies.top()), (Seq(16), Seq(23)));
    assert!(copies.has_hole());
    assert_eq!(copies.beyond_hole().as_slice(), [(Seq(20), Seq(23))]);
    assert_eq!(copies.insert(NOW, piece(14, b"efghijuv")), 4);
    assert_eq!((copies.safe(), copies.bytes()), (Seq(23), 13));
    assert!(copies.holds(Seq(10), Seq(23)));
}

#[test]
fn a_range_without_a_copy_ends_it_until_the_copy_is_there() {
    let mut copies = Copies::new(Seq(0));
    let bare = Piece {
        keep: false,
        ..piece(0, b"abcd")
    };
    copies.insert(NOW, bare);
    copies.insert(NOW, piece(4, b"efgh"));
    assert_eq!((copies.safe(), copies.contiguous()), (Seq(0), Seq(8)));
    assert!(copies.is_bare() && !copies.has_hole());
    copies.insert(NOW, piece(0, b"abcd"));
    assert_eq!(copies.safe(), Seq(8));
}

#[test]
fn acknowledged_bytes_go_and_the_rest_stays_as_it_came_first() {
    let mut copies = Copies::new(Seq(u32::MAX - 3));
    copies.insert(NOW, piece(u32::MAX - 3, b"abcdefgh"));
    copies.insert(NOW, piece(u32::MAX - 3, b"XXXXXXXX"));
    assert_eq!(copies.acknowledge(Seq(1)), None, "sent twice: no sample");
    let left = copies.missing(Instant::NEVER, 1);
    let left = copies.at(left[0]).and_then(|held| held.data.as_deref());
    assert_eq!(left, Some(&b"fgh"[..]));
    assert_eq!(copies.bytes(), 3);
    copies.acknowledge(Seq(4));
    assert!(copies.is_empty());
    assert_eq!(copies.bytes(), 0);
}

#[test]
fn watched_flows_take_few_ranges_however_much_is_in_flight() {
    let mut copies = Copies::new(Seq(0));
    for i in 0..1_000 {
        let bare = Piece {
            keep: false,
            ..piece(4 * i, b"abcd")
        };
        copies.insert(NOW, bare);
    }
    assert_eq!(copies.held.len(), MAX_BARE_RANGES);
    assert_eq!(copies.contiguous(), Seq(4_000));
    copies.acknowledge(Seq(4_000));
    assert!(copies.is_empty() && copies.bare == 0);
}

/// Of a flow that is only watched, a server that leaves every second byte out.
#[test]
fn ranges_apart_from_each_other_take_no_memory_without_end() {
    for step in [2, -2_i32 as u32] {
        let mut copies = Copies::new(Seq(0x8000_0000));
        for n in 0..10_000 {
            let piece = Piece {
                keep: false,
                ..piece(0x8010_0000_u32.wrapping_add(step.wrapping_mul(n)), b"x")
            };
            copies.insert(NOW, piece);
        }
        assert!(copies.held.len() <= 64, "{}", copies.held.len());
        copies.acknowledge(Seq(0x8020_0000));
        assert!(copies.is_empty() && copies.bare == 0);
    }
}

/// What a thousand acknowledgements take of a host that misses nothing, with so many copies.
#[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
fn asked(ranges: u32) -> std::time::Duration {
    let mut copies = Copies::new(Seq(0));
    for n in 0..ranges {
        copies.insert(NOW, piece(4 * n, b"abcd"));
    }
    let since = std::time::Instant::now();
    for _ in 0..1_000 {
        let missing = copies.missing_below_sacks(9, Instant::NEVER, 2);
        assert!(std::hint::black_box(missing).is_empty());
    }
    since.elapsed()
}

#[test]
fn where_nothing_is_missing_no_acknowledgement_looks_at_all_copies() {
    let rounds = (0..20).map(|_| (asked(1), asked(4_000)));
    let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
    let (one, all) = least.expect("twenty");
    println!("1,000 acknowledgements: {one:?} with one copy, {all:?} with 4,000");
    assert!(all < 10 * one.max(std::time::Duration::from_micros(1)));
}

/// What is missing, lost, on its way and to be reported is what walks find.
#[test]
fn what_is_known_of_copies_is_what_a_walk_finds() {
    for seed in 0..300 {
        let mut rng = tabane_base::Seed(seed).rng("copies");
        let mut copies = Copies::new(Seq(u32::MAX - 100));
        let (mut now, mut before) = (NOW, Instant::EPOCH);
        for step in 0..200 {
            let at = copies.base() + rng.below(80) as u32;
            let end = at + rng.below(30) as u32;
            now += tabane_base::Duration::from_millis(rng.below(3));
            match rng.below(10) {
                0 => copies.forget_sacks(),
                1 => drop(copies.acknowledge(copies.base() + rng.below(12) as u32)),
                2 | 3 => drop(copies.sack(&[(at, end)])),
                4 => copies.note_resent(now, at),
                5 => before = before.max(now - tabane_base::Duration::from_millis(20)),
                _ => {
                    let piece = Piece {
                        start: at,
                        keep: rng.below(8) > 0,
                        ..piece(0, &b"abcdefghijklmnopqrst"[..rng.below(20) as usize])
                    };
                    copies.insert(now, piece);
                }
            }
            let whence = format!("seed {seed} step {step}");
            let held: Vec<_> = copies.held.iter().collect();
            let top = held.iter().rev().find(|held| held.sacked);
            let top = top.map(|held| held.end);
            let is_missing =
                |held: &Held| !held.sacked && held.resent_at.is_none_or(|at| at < before);
            let is_lost =
                |held: &Held| top.is_some_and(|top| top.beyond(held.end) >= 9) && is_missing(held);
            let first = |of: &dyn Fn(&Held) -> bool| {
                let copied = held.iter().filter(|held| held.data.is_some() && of(held));
                copied.take(2).map(|held| held.start).collect::<Vec<_>>()
            };
            let length = |held: &&&Held| held.end.beyond(held.start);
            let there = held.iter().filter(|held| !held.sacked && !is_lost(held));
            let on_the_way: u32 = there.map(|held| length(&held)).sum();
            let mut runs: Vec<Block> = Vec::new();
            for held in held.iter().filter(|held| held.data.is_some()) {
                match runs.last_mut() {
                    _ if !held.end.is_after(copies.contiguous()) => {}
                    Some((_, end)) if *end == held.start => *end = held.end,
                    _ => runs.push((held.start, held.end)),
                }
            }
            runs.truncate(MAX_BLOCKS);
            let walks = (
                first(&is_missing),
                first(&is_lost),
                first(&|held| !held.sacked),
            );
            assert_eq!(copies.sacked_top, top, "{whence}");
            assert_eq!(copies.beyond_hole().as_slice(), runs, "{whence}");
            assert_eq!(
                copies.missing_below_sacks(9, before, 2),
                walks.1,
                "{whence}"
            );
            if top.is_some() {
                assert_eq!(copies.on_the_way(), on_the_way, "{whence}");
            }
            assert_eq!(copies.missing(before, 2), walks.0, "{whence}");
            assert_eq!(copies.missing(Instant::NEVER, 2), walks.2, "{whence}");
        }
    }
}

/// What a thousand packets take of a server that left one out of so many ranges; and as many
/// acknowledgements of a host that has every second one and has been sent the others again, a
/// short time ago and not, and then has all but the first.
fn reported(ranges: u32) -> [std::time::Duration; 4] {
    let mut copies = Copies::new(Seq(0));
    for n in 1..ranges {
        copies.insert(NOW, piece(4 * n, b"abcd"));
    }
    let of_the_server = spent(|| assert_eq!(copies.beyond_hole().as_slice().len(), 1));
    copies.insert(NOW, piece(0, b"abcd"));
    let later = Instant::from_millis(2);
    for n in 0..ranges / 2 {
        assert!(copies.sack(&[(Seq(8 * n + 4), Seq(8 * n + 8))]));
        copies.note_resent(later, Seq(8 * n));
    }
    let early = spent(|| assert!(copies.missing_below_sacks(9, NOW, 2).is_empty()));
    let before = Instant::from_millis(3);
    let held_back = spent(|| {
        assert_eq!(copies.missing_below_sacks(9, before, 2).len(), 2);
        assert!(copies.on_the_way() < 20);
    });
    let all_but_one = [(Seq(4), Seq(4 * ranges)); 4];
    copies.sack(&all_but_one);
    let said_again = spent(|| assert!(!copies.sack(&all_but_one)));
    [of_the_server, early, held_back, said_again]
}

#[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
fn spent(mut work: impl FnMut()) -> std::time::Duration {
    let mut once = || {
        let since = std::time::Instant::now();
        (0..1_000).for_each(|_| work());
        since.elapsed()
    };
    once().min(once()).min(once())
}

#[test]
fn whatever_is_reported_no_packet_looks_at_all_copies() {
    let (few, many) = (reported(8), reported(7_000));
    println!("1,000 packets: {few:?} with 8 copies, {many:?} with 7,000");
    for (few, many) in few.into_iter().zip(many) {
        assert!(many < 20 * few.max(std::time::Duration::from_micros(20)));
    }
}
