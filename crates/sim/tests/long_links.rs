//! Links that hold much: the sender's own queue stays short, though start-up meets the receiver's
//! window before it meets the link's rate.

#[path = "links/constant.rs"]
mod constant;

use std::fmt::Write as _;

use constant::link;
use tabane_base::{Duration, Instant, Seed};
use tabane_sim::{Setup, Side, Transfer, World};

const FROM: Instant = Instant::from_millis(3_000);
const UNTIL: Instant = Instant::from_millis(6_000);
const STEP: Duration = Duration::from_millis(50);
/// The longest mean queue, in ms, and the least goodput, of the rate.
const QUEUE_MS: f64 = 15.0;
const CARRIED: f64 = 0.93;

/// Rates in Mbit/s and one-way delays in ms.
const LINKS: [(u64, u64); 8] = [
    (50, 60),
    (50, 80),
    (74, 38),
    (74, 80),
    (100, 80),
    (200, 40),
    (200, 80),
    (400, 38),
];

/// What is carried of the rate, and the mean of our own queue in ms.
fn run(mbps: u64, delay_ms: u64) -> (f64, f64) {
    let link = link((mbps, delay_ms), Duration::from_millis(300));
    let mut world = World::new(Setup::new(Seed(3), vec![link]));
    world.connect();
    world.add(Transfer::download());
    let (mut at, mut queues) = (FROM, Vec::new());
    while at < UNTIL {
        world.run_until(at);
        let session = world.session(Side::Server).expect("a session");
        let rtt = session.snapshot(at).paths[0].rtt_smoothed;
        queues.push(rtt.as_secs_f64() * 1e3 - 2.0 * delay_ms as f64);
        at += STEP;
    }
    world.run_until(UNTIL);
    let goodput = world.outcome(Side::Client).goodput_between(FROM, UNTIL);
    let mean = queues.iter().sum::<f64>() / queues.len() as f64;
    (goodput.as_mbps_f64() / mbps as f64, mean)
}

#[test]
fn links_that_hold_much_are_filled_without_a_queue() {
    let mut table = String::from("Mbit/s, ms each way: of the rate, own queue\n");
    let mut is_well = true;
    for (mbps, delay_ms) in LINKS {
        let (carried, queue_ms) = run(mbps, delay_ms);
        let _ = writeln!(
            table,
            "{mbps:4} {delay_ms:3}: {carried:.2}, {queue_ms:5.1} ms"
        );
        is_well &= carried > CARRIED && queue_ms < QUEUE_MS;
    }
    println!("{table}");
    assert!(is_well, "{table}");
}
