//! What loss says: a buffer shorter than the queue aimed at loses what is too much and shows
//! nothing else; radio loses some packets whatever is sent.
//!
//! Links of no scenario, over a grid: `cargo test -p tabane-core loss:: -- --nocapture` prints
//! what of it docs/figures.md states.

use tabane_base::{Bytes, Duration, Rate, Seed};

use super::link::{Link, Outcome, PACKET, run, varying};
use super::{Kind, SEED};

const SPAN: Duration = Duration::from_secs(16);
const SPAN_FAST: Duration = Duration::from_secs(8);
const SEEDS: u64 = 3;

fn link(mbps: u64, rtt_ms: u64, buffer: u64) -> Link {
    varying("", vec![Rate::from_mbps(mbps)], rtt_ms / 2, 0).queue(Bytes::new(buffer))
}

fn outcome(link: &Link, mbps: u64, seed: Seed) -> Outcome {
    let span = if mbps > 50 { SPAN_FAST } else { SPAN };
    run(link, &[Kind::Tabane.into()], span, seed)
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// Where the whole buffer is shorter than the queue aimed at, no queue ever says stop. The loss of
/// a window that grew a little each round was learnt as chance, round by round: 5.5 % were lost in
/// the mean and 46 at most, and 80 after a while of 13 Mbit/s with 8 kB.
#[test]
fn buffers_of_a_few_packets_are_not_flooded() {
    let (mut lost, mut used) = (Vec::new(), Vec::new());
    for mbps in [3, 8, 20, 45, 90] {
        for rtt_ms in [2, 4, 8, 16, 40] {
            for packets in [3, 4, 5, 6, 7, 10, 16] {
                let link = link(mbps, rtt_ms, packets * PACKET.get());
                let outcome = outcome(&link, mbps, SEED);
                lost.push(outcome.loss);
                used.push(outcome.second_half);
            }
        }
    }
    lost.sort_by(f64::total_cmp);
    let many = lost.iter().filter(|lost| **lost > 0.05).count();
    let most = lost[lost.len() - 1];
    let (lost, used) = (mean(&lost), mean(&used));
    println!("lost: {lost:.4} in the mean, {most:.3} at most, {many} times more than 0.05");
    println!("second half: {used:.3} of the rate in the mean");
    assert!(lost < 0.01 && many <= 6 && used > 0.985);
}

/// A bound of what is learnt as chance that is too low takes such links for full, seconds long.
#[test]
fn links_that_lose_by_chance_are_filled() {
    for (share, least, least_of_all) in [(0.02, 1.0, 0.95), (0.05, 1.0, 0.9), (0.10, 1.0, 0.8)] {
        let mut used = Vec::new();
        for mbps in [3, 20, 60, 180] {
            for rtt_ms in [4, 20, 80] {
                let held = Rate::from_mbps(mbps).amount_in(Duration::from_millis(rtt_ms));
                let buffer = held.get().max(12 * PACKET.get());
                let link = link(mbps, rtt_ms, buffer).loss(share);
                used.extend(
                    (0..SEEDS)
                        .map(|seed| outcome(&link, mbps, Seed(seed)).second_half / (1.0 - share)),
                );
            }
        }
        let worst = used.iter().copied().fold(f64::MAX, f64::min);
        let used = mean(&used);
        println!("{share} lost: {used:.3} of the rest in the mean, {worst:.3} at least");
        assert!(used >= least && worst >= least_of_all, "{share}");
    }
}
