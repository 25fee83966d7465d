//! Losses come in bursts of so many packets (Gilbert and Elliott's model): a link is not silent
//! until as many probes have been lost one by one.

use std::fmt::Write as _;

use tabane_base::{Duration, Instant, Rate, Seed};
use tabane_netem::{LinkConfig, LinkSpec, LossModel, Probability, RateModel};
use tabane_sim::{Setup, Side, Transfer, World};

const FROM: Instant = Instant::from_millis(1_000);
const UNTIL: Instant = Instant::from_millis(9_000);
/// Of what is not lost, all links together.
const CARRIED: f64 = 0.55;

/// Rates in kbit/s, one-way delays in ms, and how likely a burst of 20 packets begins.
const LINKS: [(u64, u64, f64); 6] = [
    (7_700, 4, 0.005),
    (5_100, 11, 0.005),
    (12_300, 9, 0.001),
    (5_200, 3, 0.0005),
    (45_400, 6, 0.005),
    (74_000, 38, 0.005),
];
const BURST_ENDS: f64 = 0.05;

fn link(kbps: u64, delay_ms: u64, begins: f64) -> LinkSpec {
    let probability = |p| Probability::new(p).expect("a probability");
    let rate = Rate::from_bps(kbps * 1_000);
    let config = LinkConfig {
        rate: RateModel::Constant(rate),
        queue: rate.amount_in(Duration::from_millis(150)),
        delay: Duration::from_millis(delay_ms),
        loss: LossModel::GilbertElliott {
            good_to_bad: probability(begins),
            bad_to_good: probability(BURST_ENDS),
            loss_good: Probability::ZERO,
            loss_bad: Probability::ONE,
        },
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: format!("{kbps} kbit/s"),
        up: config.clone(),
        down: config,
    }
}

#[test]
fn a_burst_of_losses_is_over_after_a_few_probes() {
    let mut table = String::from("kbit/s and ms, of what is not lost, longest silence\n");
    let mut parts = Vec::new();
    for (kbps, delay_ms, begins) in LINKS {
        for seed in 1..=4 {
            let links = vec![link(kbps, delay_ms, begins)];
            let mut world = World::new(Setup::new(Seed(seed), links));
            world.connect();
            world.add(Transfer::download());
            world.run_until(UNTIL);
            let outcome = world.outcome(Side::Client);
            let kept = BURST_ENDS / (BURST_ENDS + begins);
            let goodput = outcome.goodput_between(FROM, UNTIL).as_mbps_f64() * 1_000.0;
            let part = goodput / (kbps as f64 * kept);
            let silence = outcome.silence_max().as_millis();
            let _ = writeln!(table, "{kbps:6} {delay_ms:2}  {part:.2}  {silence:4} ms");
            parts.push(part);
        }
    }
    let mean = parts.iter().sum::<f64>() / parts.len() as f64;
    println!("{table}mean {mean:.2}");
    assert!(mean > CARRIED, "{table}mean {mean:.2}");
}
