//! Links of radio: the default beside `bbr`, `cubic` and `rmtcp`, and bonds beside single links.
//!
//! The small table is compared with `radio.txt`, so that a change of behaviour shows in review:
//! `TABANE_BLESS=1 cargo test -p tabane-sim --test radio` accepts what is new. Seeds below 1000 are
//! for tuning. What is reported is of others: `tabane sim radio --seeds 1000..1025`.

use std::fmt::Write as _;
use std::ops::Range;

use tabane_base::Duration;
use tabane_core::ControllerKind;
use tabane_netem::{Direction, Radio, RadioKind};
use tabane_sim::{RadioComparison, bond_of_best};

const SEEDS: Range<u64> = 0..2;
const SPAN: Duration = Duration::from_secs(8);

/// On no link of the small table does the default carry less of what the better of cubic and BBR
/// carries: something broke.
const OF_BETTER_LEAST: f64 = 0.6;

#[test]
fn controllers_on_links_of_radio() {
    let mut table = String::from("link          Mbit/s  delay   queue kB");
    for kind in ControllerKind::ALL {
        let _ = write!(table, " | {kind:>6}  p50   p95");
    }
    table.push_str(" | of better\n");
    for kind in RadioKind::ALL {
        for seed in SEEDS {
            let comparison = RadioComparison::new(Radio { kind, seed }, SPAN);
            table.push_str(&row(&comparison));
            let of_better = comparison.of_better();
            assert!(of_better >= OF_BETTER_LEAST, "{of_better}\n{table}");
        }
    }
    table.push_str("\nbonded          of the best link alone after 1 s and 3 s\n");
    for kind in RadioKind::ALL {
        let pair = bonded(kind, SEEDS.start);
        let of_best = bond_of_best(pair, &[1, 3].map(Duration::from_secs));
        let _ = write!(table, "{:12} {:9}", pair[0], pair[1]);
        for part in of_best {
            let _ = write!(table, " {part:5.2}");
        }
        table.push('\n');
    }
    compare(&table);
}

/// Ten packets that start-up gives a link of 0.4 Mbit/s arrive a quarter of a second late, and all
/// that the fast link brings waits behind them: they go again by it as soon as it has nothing else.
#[test]
fn a_slow_link_beside_a_fast_one_costs_little_at_the_start() {
    let (fast, slow) = (RadioKind::Jitter, RadioKind::Walk);
    let pair = [(fast, 2), (slow, 502)].map(|(kind, seed)| Radio { kind, seed });
    let of_best = bond_of_best(pair, &[Duration::from_secs(1)]);
    assert!(of_best[0] >= 0.9, "{of_best:?}");
}

/// The first link's round trip may take 160 ms, the second's 33: who waited for the first to answer
/// had 0.64 of what the second alone brings.
#[test]
fn a_near_link_beside_a_far_one_costs_little_at_the_start() {
    let (far, near) = (RadioKind::Jitter, RadioKind::Walk);
    let pair = [(far, 10), (near, 510)].map(|(kind, seed)| Radio { kind, seed });
    let of_best = bond_of_best(pair, &[1, 3].map(Duration::from_secs));
    assert!(of_best[0] >= 0.85 && of_best[1] >= 1.0, "{of_best:?}");
}

/// What start-up gave a link of 0.3 Mbit/s is waited for while there is ever more to send.
#[test]
fn what_a_new_path_is_slow_with_goes_again_while_there_is_more() {
    let (fast, slow) = (RadioKind::Outages, RadioKind::Walk);
    let pair = [(fast, 2), (slow, 502)].map(|(kind, seed)| Radio { kind, seed });
    let of_best = bond_of_best(pair, &[Duration::from_secs(1)]);
    assert!(of_best[0] >= 0.9, "{of_best:?}");
}

/// A link comes to a halt as it joins: nearest so far, it has the acknowledgements of both, and the
/// credit. What the other brings had filled that one's own queue meanwhile, where answers waited:
/// it was taken for silent, and nothing at all was sent for half a second.
#[test]
fn a_link_that_halts_as_it_joins_stops_no_other() {
    for (kind, seed, seconds, least) in [
        (RadioKind::Narrow, 2003, 2, 0.9),
        (RadioKind::Steps, 2006, 1, 0.7),
    ] {
        let pair = [(kind, seed), (RadioKind::Walk, seed + 500)];
        let pair = pair.map(|(kind, seed)| Radio { kind, seed });
        let of_best = bond_of_best(pair, &[Duration::from_secs(seconds)]);
        assert!(of_best[0] >= least, "{}: {of_best:?}", pair[0]);
    }
}

fn row(comparison: &RadioComparison) -> String {
    let down = comparison.radio.config(Direction::Down);
    let mut row = format!(
        "{:12} {:7.2}  {:3} ms  {:8}",
        comparison.radio.to_string(),
        down.mean_rate().as_mbps_f64(),
        down.delay.as_millis(),
        down.queue.get() / 1_000,
    );
    for kind in ControllerKind::ALL {
        let run = comparison.of(kind);
        let _ = write!(
            row,
            " | {:6.2} {:4} {:5}",
            run.goodput.as_mbps_f64(),
            run.wait_p50.as_millis(),
            run.wait_p95.as_millis(),
        );
    }
    let _ = writeln!(row, " | {:.2}", comparison.of_better());
    row
}

/// A link of a kind, with one that wanders.
fn bonded(kind: RadioKind, seed: u64) -> [Radio; 2] {
    let other = Radio {
        kind: RadioKind::Walk,
        seed: seed + 500,
    };
    [Radio { kind, seed }, other]
}

#[expect(clippy::disallowed_methods, reason = "the table of record is a file")]
fn compare(table: &str) {
    println!("{table}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/radio.txt");
    if std::env::var_os("TABANE_BLESS").is_some() {
        std::fs::write(path, table).expect("the tree can be written to");
        return;
    }
    let known = std::fs::read_to_string(path).expect("the table of record is committed");
    assert_eq!(table, known, "accept with TABANE_BLESS=1");
}
