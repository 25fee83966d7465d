//! Much is sent both ways at once: acknowledgements queue behind the other direction's packets, and
//! neither side takes that for a slow link, nor for a longer one that wants more in flight.

#[path = "links/constant.rs"]
mod constant;

use std::fmt::Write as _;

use constant::link;
use tabane_base::{Duration, Instant, Seed};
use tabane_sim::{Setup, Side, Transfer, World};

const FROM: Instant = Instant::from_millis(4_000);
const UNTIL: Instant = Instant::from_millis(10_000);
const STEP: Duration = Duration::from_millis(50);
/// Of the rate, in each direction; the rest are headers and acknowledgements.
const CARRIED: f64 = 0.85;
/// The mean of the round trips beyond the shortest, both directions' queues together: the links'
/// own queues hold 200 ms.
const WAITED_MS: f64 = 40.0;

/// Rates in Mbit/s, the same both ways, and one-way delays in ms.
const NETWORKS: [&[(u64, u64)]; 9] = [
    &[(10, 10)],
    &[(50, 5)],
    &[(50, 40)],
    &[(100, 10)],
    &[(30, 50)],
    &[(56, 74)],
    &[(61, 2)],
    &[(30, 3), (20, 30)],
    &[(40, 2), (35, 35), (40, 6)],
];

/// What is carried down and up, of the rate, and the mean time in queues, in ms.
fn run(links: &[(u64, u64)]) -> (f64, f64, f64) {
    let queue = Duration::from_millis(200);
    let specs = links.iter().map(|it| link(*it, queue));
    let mut world = World::new(Setup::new(Seed(2), specs.collect()));
    world.connect();
    world.add(Transfer::download());
    world.add(Transfer::upload());
    let (mut at, mut waits) = (FROM, Vec::new());
    while at < UNTIL {
        world.run_until(at);
        for side in [Side::Server, Side::Client] {
            let session = world.session(side).expect("a session");
            let paths = session.snapshot(at).paths;
            let waited = |rtt: Duration, min| rtt.saturating_sub(min).as_secs_f64() * 1e3;
            waits.extend(
                paths
                    .iter()
                    .map(|path| waited(path.rtt_smoothed, path.rtt_min)),
            );
        }
        at += STEP;
    }
    world.run_until(UNTIL);
    let sum = links.iter().map(|(mbps, _)| mbps).sum::<u64>() as f64;
    let carried = |side| {
        world
            .outcome(side)
            .goodput_between(FROM, UNTIL)
            .as_mbps_f64()
            / sum
    };
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    (carried(Side::Client), carried(Side::Server), mean)
}

#[test]
fn both_directions_are_filled_without_a_queue() {
    let mut table =
        String::from("Mbit/s and ms each way: of the rate down and up, time in queues\n");
    let mut is_well = true;
    for links in NETWORKS {
        let (down, up, waited_ms) = run(links);
        let _ = writeln!(table, "{links:?}: {down:.2} {up:.2}, {waited_ms:3.0} ms");
        is_well &= down > CARRIED && up > CARRIED && waited_ms < WAITED_MS;
    }
    println!("{table}");
    assert!(is_well, "{table}");
}
