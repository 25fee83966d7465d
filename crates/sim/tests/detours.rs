//! The way of one of two links gets longer, as by a handover or another satellite: both carry again
//! what they carried before, with default settings.

use std::fmt::Write as _;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_netem::{Change, LinkConfig, LinkSpec, RateModel};
use tabane_sim::{Setup, Side, Transfer, World};

const AT: Duration = Duration::from_secs(5);
/// What is carried is looked at for so long, before it and so long after it.
const SPAN: Duration = Duration::from_secs(3);
const SETTLES: Duration = Duration::from_secs(3);
/// Of what was carried before.
const CARRIED: f64 = 0.9;

/// Rates in Mbit/s, and delays in ms: of the link whose way changes, before and then, and of the
/// other one.
const DETOURS: [(u64, u64, u64, u64, u64); 5] = [
    (25, 4, 40, 14, 20),
    (25, 4, 60, 14, 20),
    (60, 10, 90, 20, 15),
    (10, 3, 30, 40, 10),
    (20, 30, 100, 20, 30),
];

fn link(name: &str, mbps: u64, delay_ms: u64, then_ms: Option<u64>) -> LinkSpec {
    let rate = Rate::from_mbps(mbps);
    let change = |delay_ms| Change {
        at: AT,
        every: None,
        rate: None,
        delay: Some(Duration::from_millis(delay_ms)),
        loss: None,
    };
    let config = LinkConfig {
        rate: RateModel::Constant(rate),
        queue: rate
            .amount_in(Duration::from_millis(150))
            .max(Bytes::kilo(60)),
        delay: Duration::from_millis(delay_ms),
        changes: then_ms.map(change).into_iter().collect(),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

#[test]
fn a_link_whose_way_gets_longer_carries_what_it_did() {
    let mut table = String::from("Mbit/s and ms            of what was carried\n");
    let mut is_less = false;
    for (mbps, delay, then, other_mbps, other_delay) in DETOURS {
        for (transfer, receiver) in [
            (Transfer::download(), Side::Client),
            (Transfer::upload(), Side::Server),
        ] {
            let links = vec![
                link("a", mbps, delay, Some(then)),
                link("b", other_mbps, other_delay, None),
            ];
            let mut world = World::new(Setup::new(Seed(3), links));
            world.connect();
            world.add(transfer);
            let at = Instant::EPOCH + AT;
            world.run_until(at + SETTLES + SPAN);
            let outcome = world.outcome(receiver);
            let rate = |from: Instant| outcome.goodput_between(from, from + SPAN).as_mbps_f64();
            let carried = rate(at + SETTLES) / rate(at - SPAN);
            is_less |= carried < CARRIED;
            let _ = writeln!(
                table,
                "{mbps:3} {delay:2} to {then:3} + {other_mbps:3} {other_delay:2}  {carried:.2}"
            );
        }
    }
    println!("{table}");
    assert!(!is_less, "\n{table}");
}
