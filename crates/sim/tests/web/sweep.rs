//! Many networks and sizes: what comes out is recorded, so that a change that helps one network at
//! the cost of others is seen.
//!
//! Each row is the mean of six sizes within 9 % of the one named, because what one packet more does
//! to a transfer is chance. `of best`: how many times faster than the best link alone, the least of
//! six and the mean. `of bound`: beside links that begin at once with parts known beforehand; a
//! transfer learns of the length after two round trips. `twice`: bytes that came in vain. Changes
//! made for a good reason are accepted by `TABANE_BLESS=1 cargo test -p tabane-sim --test web`.

use std::fmt::Write as _;

use tabane_base::Bytes;
use tabane_ranges::Order;
use tabane_sim::web::{Fetched, WebLink, WebPlan, fetch};

use crate::networks::{SEED, alone, bound, kbit, known, lent, loss, mbit, ms, shake, swing, with};

/// In percent of a row's size.
const SIZES: [u64; 6] = [100, 97, 103, 94, 106, 91];
/// Never slower than the best link, but for what timers are late by.
const LEAST: f64 = 0.99;
/// A stream of which more is left than fits its window has to skip what others have brought.
const LEAST_STREAM: f64 = 0.93;

struct Network {
    name: &'static str,
    links: Vec<WebLink>,
    sizes: &'static [u64],
    order: Order,
    /// What every fetch must reach of the best link's speed.
    least: f64,
}

fn network(name: &'static str, sizes: &'static [u64], links: Vec<WebLink>) -> Network {
    Network {
        name,
        links,
        sizes,
        order: Order::Any,
        least: LEAST,
    }
}

fn networks() -> Vec<Network> {
    const SLOW: &[u64] = &[1, 4, 16, 32, 64, 128, 256, 512, 1_000];
    const MIDDLE: &[u64] = &[1, 16, 50, 100, 200, 500, 1_000, 2_000, 8_000];
    const FAST: &[u64] = &[1, 16, 64, 200, 1_000, 4_000, 20_000];
    let (fast, slow) = (mbit(8, 15), mbit(3, 25));
    let both = vec![fast.clone(), slow.clone()];
    let jitter = with(mbit(20, 40), |link| link.jitter = ms(15));
    let window = Order::Stream {
        window: Bytes::mega(1),
    };
    vec![
        network("shake 2", SLOW, vec![shake(); 2]),
        network("shake 3", SLOW, vec![shake(); 3]),
        network("shake 2, queue 4 s", SLOW, vec![kbit(64, 100, 40); 2]),
        network("64 + 32 kbit/s", SLOW, vec![shake(), kbit(32, 200, 16)]),
        network("8 + 3", MIDDLE, both.clone()),
        network(
            "3 + 8, known",
            MIDDLE,
            vec![known(slow.clone()), known(fast.clone())],
        ),
        Network {
            // The first request goes by the worse link, as nothing is known of either.
            least: 0.5,
            ..network("3 + 8, unknown", MIDDLE, vec![slow.clone(), fast.clone()])
        },
        network("2 + 2, queue 1 s", MIDDLE, vec![kbit(2_000, 20, 250); 2]),
        network("50 + 20, jitter", FAST, vec![mbit(50, 10), jitter]),
        network("20 + 20, far", FAST, vec![mbit(20, 10), mbit(20, 300)]),
        network("100 + 1", FAST, vec![mbit(100, 5), mbit(1, 30)]),
        network("300 + 300", FAST, vec![mbit(300, 10); 2]),
        network(
            "10 + 5 + lent 10 + 5",
            FAST,
            vec![
                mbit(10, 15),
                mbit(5, 20),
                lent(mbit(10, 20)),
                lent(mbit(5, 30)),
            ],
        ),
        network(
            "8 + 3 swings",
            MIDDLE,
            vec![fast.clone(), with(slow.clone(), swing(500, 5_000, 800))],
        ),
        network(
            "8 swings + 3",
            MIDDLE,
            vec![
                with(fast.clone(), swing(2_000, 12_000, 1_000)),
                slow.clone(),
            ],
        ),
        network(
            "8 + 3, loss 2 %",
            MIDDLE,
            vec![with(fast, loss(0.02)), with(slow, loss(0.02))],
        ),
        Network {
            order: window,
            least: LEAST_STREAM,
            ..network("8 + 3, in order", &[200, 1_000, 8_000], both)
        },
        Network {
            order: window,
            least: LEAST_STREAM,
            ..network("100 + 1, in order", FAST, vec![mbit(100, 5), mbit(1, 30)])
        },
    ]
}

/// What a row says.
#[derive(Default)]
struct Row {
    seconds: f64,
    least: f64,
    of_best: f64,
    of_bound: f64,
    requests: f64,
    twice: f64,
}

impl Row {
    fn measure(network: &Network, kilo: u64) -> Self {
        let mut row = Self {
            least: f64::MAX,
            ..Self::default()
        };
        let part = 1.0 / SIZES.len() as f64;
        for percent in SIZES {
            let size = Bytes::new(kilo * 10 * percent);
            let each: Vec<Fetched> = network.links.iter().map(|link| alone(link, size)).collect();
            let best = each.iter().map(|one| one.took).min().expect("links");
            let plan = WebPlan {
                order: network.order,
                ..WebPlan::SHIPPED
            };
            let ours = fetch(&network.links, plan, size, SEED);
            let took = ours.took.as_secs_f64();
            let of_best = best.as_secs_f64() / took;
            row.seconds += took * part;
            row.least = row.least.min(of_best);
            row.of_best += of_best * part;
            row.of_bound += bound(&each, size).as_secs_f64() / took * part;
            row.requests += ours.requests as f64 * part;
            let bytes = ours.carried.get() as f64 / size.get() as f64;
            row.twice += (bytes - 1.0) * 100.0 * part;
        }
        row
    }
}

#[test]
fn no_network_is_slower_than_its_best_link() {
    let mut table = String::from(
        "links                     kB  seconds  of best: least, mean  of bound  requests  \
         twice %\n",
    );
    let mut failures = String::new();
    for network in networks() {
        for kilo in network.sizes {
            let row = Row::measure(&network, *kilo);
            let _ = writeln!(
                table,
                "{:20}  {kilo:6} {:8.2} {:15.2} {:5.2} {:9.2} {:9.1} {:8.0}",
                network.name,
                row.seconds,
                row.least,
                row.of_best,
                row.of_bound,
                row.requests,
                row.twice
            );
            if row.least < network.least {
                let _ = writeln!(failures, "{}, {kilo} kB: {:.3}", network.name, row.least);
            }
        }
    }
    print!("{table}");
    assert!(failures.is_empty(), "\n{failures}");
    compare(&table);
}

#[expect(clippy::disallowed_methods, reason = "the table of record is a file")]
fn compare(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/sweep.txt");
    if std::env::var_os("TABANE_BLESS").is_some() {
        std::fs::write(path, table).expect("the tree can be written to");
        return;
    }
    let known = std::fs::read_to_string(path).expect("the table of record is committed");
    assert_eq!(table, known, "accept with TABANE_BLESS=1");
}
