//! The table as a whole: what it tells apart, what it forgets, and that nothing upsets it.

use tabane_base::{Rng, Seed};

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;
const CLOCK: ClockId = ClockId(1);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn remote(n: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], n))
}

fn key(link: &str) -> PathKey<'_> {
    PathKey {
        link,
        remote: remote(1),
    }
}

#[test]
fn one_way_delays_are_relative_to_the_best_path_to_the_same_clock() {
    let mut table = LinkTable::default();
    // The far end's clock is an hour behind; only the difference of 40 ms shows.
    let hour = MS(3_600_000);
    let sent = at(8_000_000);
    for (link, delay) in [("wlan0", MS(10)), ("wwan0", MS(50))] {
        let arrived = sent + delay - hour;
        table.on_one_way(at(0), key(link), CLOCK, (sent, arrived));
    }
    let stranger = (sent, sent);
    let apart = PathKey {
        link: "wwan0",
        remote: remote(2),
    };
    table.on_one_way(at(0), apart, ClockId(2), stranger);
    let beyond =
        |link: &str, path: usize| table.link(at(0), link).unwrap().paths[path].forward_beyond_best;
    assert_eq!(beyond("wlan0", 0), Some(Duration::ZERO));
    assert_eq!(beyond("wwan0", 0), Some(MS(40)));
    assert_eq!(beyond("wwan0", 1), Some(Duration::ZERO));
}

#[test]
fn the_queue_is_rate_times_the_delay_beyond_the_least() {
    let mut table = LinkTable::default();
    table.on_rtt(at(0), key("a"), MS(20), MS(20));
    for millis in (0..3_000).step_by(10) {
        table.on_delivered(at(millis), key("a"), Bytes::new(12_500));
    }
    table.on_rtt(at(3_000), key("a"), MS(60), MS(30));
    // R-M/TCP eq. 3: 10 Mbit/s for 40 ms.
    let link = table.link(at(3_000), "a").unwrap();
    assert_eq!(link.queue, Bytes::kilo(50));
    assert_eq!(link.rtt_min, Some(MS(20)));
}

#[test]
fn bandwidth_is_no_less_than_what_was_delivered() {
    let mut table = LinkTable::default();
    let train = Train {
        bytes: Bytes::new(1_500),
        spacing: MS(2),
    };
    table.on_train(at(0), key("a"), Direction::Out, train);
    let estimate = |table: &LinkTable, now| table.link(at(now), "a").unwrap().paths[0].clone();
    let slow = Some(Rate::from_mbps(6));
    assert_eq!(estimate(&table, 0).bandwidth_out, slow);
    for millis in (0..2_000).step_by(10) {
        table.on_delivered(at(millis), key("a"), Bytes::new(12_500));
    }
    let path = estimate(&table, 2_000);
    assert_eq!(path.pair_out, slow);
    assert_eq!(path.bandwidth_out, Some(Rate::from_mbps(10)));
    assert_eq!(path.pair_in, None);
}

#[test]
fn a_link_is_remembered_for_a_while_and_forgotten_when_it_was_away_for_long() {
    let mut table = LinkTable::default();
    table.on_link(at(0), "wlan0", true);
    table.on_rtt(at(0), key("wlan0"), MS(20), MS(20));
    table.on_link_gone(at(1_000), "wlan0");
    let gone = table.link(at(1_000), "wlan0").unwrap();
    assert!(!gone.present && gone.metered && gone.rtt_min == Some(MS(20)));
    table.on_link(at(31_000), "wlan0", false);
    let back = table.link(at(31_000), "wlan0").unwrap();
    assert!(back.present && !back.metered && back.rtt_min == Some(MS(20)));
    table.on_link_gone(at(32_000), "wlan0");
    table.on_link(at(132_000), "wlan0", false);
    assert_eq!(table.link(at(132_000), "wlan0").unwrap().rtt_min, None);
    table.on_link_gone(at(0), "never there");
    assert_eq!(table.link(at(0), "never there"), None);
}

#[test]
fn memory_is_bounded_and_what_is_gone_goes_first() {
    let mut table = LinkTable::default();
    for n in 0..200_u64 {
        table.on_link(at(n), &format!("link {n}"), false);
        if n == 199 - 20 {
            table.on_link_gone(at(n), "link 179");
        }
    }
    assert_eq!(table.links.len(), MAX_LINKS);
    assert!(table.link(at(200), "link 199").is_some());
    assert!(table.link(at(200), "link 179").is_none());
    let mut hear = |n, ms| {
        let key = PathKey {
            link: "link 199",
            remote: remote(n),
        };
        table.on_packets(at(ms), key, 1, 0);
        let paths = table.link(at(ms), "link 199").unwrap().paths;
        assert!(paths.len() <= MAX_PATHS);
        paths.iter().any(|path| path.remote == remote(n))
    };
    // A relay with more clients than that: those that are known are not put out in turn, which
    // would have all of them looked through for every packet.
    let most = u16::try_from(MAX_PATHS).unwrap();
    assert!((0..most).all(|n| hear(n, 1_000)));
    assert!((most..3_000).all(|n| !hear(n, 15_000)));
    assert!((0..most / 2).all(|n| hear(n, 15_000)));
    // The others have gone by then.
    assert!((3_000..3_000 + most / 2).all(|n| hear(n, 21_001)));
    assert!(!hear(3_000 + most / 2, 21_001));
    assert!((0..most / 2).all(|n| hear(n, 21_001)));
}

/// Nothing, what is usual, what is absurd.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(5) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.next_u64(),
        3 => rng.below(3_000),
        _ => rng.below(5_000_000_000),
    }
}

/// One piece of news, whichever.
fn happen(rng: &mut Rng, table: &mut LinkTable, now: Instant) {
    let which = rng.below(3) as u16;
    let name = ["a", "b", "c"][usize::from(which)];
    let path = PathKey {
        link: name,
        remote: remote(which),
    };
    let (one, other) = (number(rng), number(rng));
    let nanos = Duration::from_nanos;
    match rng.below(7) {
        0 => table.on_link(now, name, one % 2 == 0),
        1 => table.on_link_gone(now, name),
        2 => table.on_rtt(now, path, nanos(one), nanos(other)),
        3 => {
            let times = (Instant::from_nanos(one), Instant::from_nanos(other));
            table.on_one_way(now, path, ClockId(rng.below(3)), times);
        }
        4 => {
            let direction = [Direction::Out, Direction::In][rng.below(2) as usize];
            let train = Train {
                bytes: Bytes::new(one),
                spacing: nanos(other),
            };
            table.on_train(now, path, direction, train);
        }
        5 => table.on_delivered(now, path, Bytes::new(one)),
        _ => table.on_packets(now, path, one, other),
    }
}

/// Clocks that jump, round trips of zero, five seconds or centuries, rates of zero and without
/// limit, links that come and go: estimates stay within what they can be.
#[test]
fn anything_may_happen() {
    for seed in 0..300 {
        let mut rng = Seed(seed).rng("monitor");
        let alphas = [0.9, 0.0, 1.0, f64::NAN, f64::INFINITY, -3.0];
        let mut table = LinkTable::new(MonitorSettings {
            alpha: alphas[rng.below(6) as usize],
            rtt_window: Duration::from_nanos(number(&mut rng)),
        });
        for _ in 0..200 {
            let now = Instant::from_nanos(number(&mut rng));
            happen(&mut rng, &mut table, now);
            for link in table.snapshot(now) {
                assert!((0.0..=1.0).contains(&link.loss), "seed {seed}: {link:?}");
                for path in &link.paths {
                    let rates = [path.pair_out, path.pair_in];
                    let known = path.rtt_smoothed.is_some();
                    let is_sane = known == path.rtt_min.is_some()
                        && rates.iter().all(|rate| *rate != Some(Rate::MAX));
                    assert!(is_sane, "seed {seed}: {path:?}");
                }
            }
        }
    }
}

/// What a look at a link with so many paths takes, each to a clock of its own as at a relay.
#[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
fn looked_at(paths: u16) -> std::time::Duration {
    let mut table = LinkTable::default();
    for n in 0..paths {
        let path = PathKey {
            link: "eth0",
            remote: remote(n),
        };
        let clock = ClockId(u64::from(n) / 4);
        table.on_one_way(at(0), path, clock, (at(1), at(2)));
    }
    let since = std::time::Instant::now();
    assert_eq!(table.snapshot(at(3))[0].paths.len(), usize::from(paths));
    since.elapsed()
}

/// Whoever carries packets waits for the table meanwhile.
#[test]
fn a_look_takes_as_long_as_there_are_paths() {
    let rounds = (0..20).map(|_| (looked_at(64), looked_at(1_024)));
    let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
    let (few, all) = least.expect("twenty");
    println!("a look: {few:?} at 64 paths, {all:?} at 1,024");
    assert!(all < 48 * few, "{few:?} at 64 paths, {all:?} at 1,024");
}
