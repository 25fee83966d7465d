//! Single links whose packets are late by up to the path's delay, in order, in any shape: what the
//! default carries of what the better of our `cubic` and `bbr` carry, and how long packets queue.
//!
//! Seeds below 1000 are for tuning. `TABANE_SEEDS=1000..1100 cargo test -p tabane-sim --test jitter
//! -- --nocapture` shows others, link by link.

use std::ops::Range;

use tabane_base::{Bytes, Duration, Rate, Rng, Seed, scale};
use tabane_core::ControllerKind;
use tabane_netem::{JitterShape, LinkConfig, LinkSpec, Radio, RadioKind, RateModel};
use tabane_sim::RadioRun;

const SPAN: Duration = Duration::from_secs(10);
const SEEDS: Range<u64> = 2000..2024;

/// Of the better of `cubic` and `bbr`: the median, the worst tenth and the worst of the links. The
/// tenth is to be 0.90, and is 0.86.
const MEDIAN_LEAST: f64 = 0.97;
const TENTH_LEAST: f64 = 0.85;
const WORST_LEAST: f64 = 0.8;

/// Which ways packets are late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ways {
    Down,
    Up,
    Both,
}

/// A link whose rate, length, queue and jitter are drawn by seed.
struct Jittery {
    rate: Rate,
    delay: Duration,
    /// As part of what the path holds.
    queue: f64,
    most: Duration,
    shape: JitterShape,
    ways: Ways,
}

impl Jittery {
    fn new(seed: u64) -> Self {
        let mut rng = Seed(seed).rng("jittery link");
        let rate = Rate::from_bps((between(&mut rng, (3.0, 120.0)) * 1e6) as u64);
        let rtt = Duration::from_micros((between(&mut rng, (10.0, 100.0)) * 1e3) as u64);
        let most = scale(rtt, between(&mut rng, (0.2, 1.0)));
        let shape = JitterShape::ALL[rng.below(JitterShape::ALL.len() as u64) as usize];
        let ways = [Ways::Down, Ways::Up, Ways::Both][rng.below(3) as usize];
        Self {
            rate,
            delay: rtt / 2,
            queue: between(&mut rng, (1.0, 4.0)),
            most: most.min(Duration::from_millis(50)),
            shape,
            ways,
        }
    }

    fn link(&self) -> LinkSpec {
        let held = self.rate.amount_in(self.delay * 2).get() as f64;
        let queue = Bytes::new((held * self.queue) as u64).max(Bytes::kilo(30));
        let config = |is_late: bool| LinkConfig {
            rate: RateModel::Constant(self.rate),
            queue,
            delay: self.delay,
            jitter: if is_late { self.most } else { Duration::ZERO },
            jitter_shape: self.shape,
            ..LinkConfig::wire()
        };
        LinkSpec {
            name: "jittery".to_owned(),
            up: config(self.ways != Ways::Down),
            down: config(self.ways != Ways::Up),
        }
    }
}

/// Drawn evenly in the logarithm.
fn between(rng: &mut Rng, (least, most): (f64, f64)) -> f64 {
    (least.ln() + rng.unit() * (most / least).ln()).exp()
}

#[expect(clippy::disallowed_methods, reason = "how seeds are chosen")]
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("TABANE_SEEDS") else {
        return SEEDS;
    };
    let (from, until) = text.split_once("..").expect("FROM..UNTIL");
    let number = |text: &str| text.parse().expect("FROM..UNTIL");
    number(from)..number(until)
}

/// The median, and the value that a tenth does not reach.
fn median_and_tenth(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() / 10])
}

#[test]
fn the_default_carries_what_tcp_carries_however_late_packets_are() {
    let (mut of_better, mut waits) = (Vec::new(), Vec::new());
    println!(
        "seed, Mbit/s, RTT, jitter | Mbit/s, ms queued p50, p95: ours, bbr, cubic | of better"
    );
    for seed in seeds() {
        let jittery = Jittery::new(seed);
        let run = |kind| RadioRun::new(vec![jittery.link()], kind, Seed(seed), SPAN);
        let runs = [
            ControllerKind::Tabane,
            ControllerKind::Bbr,
            ControllerKind::Cubic,
        ]
        .map(run);
        let [ours, bbr, cubic] = [0, 1, 2].map(|index: usize| runs[index].goodput.as_mbps_f64());
        let part = ours / bbr.max(cubic);
        let Jittery {
            rate, delay, most, ..
        } = jittery;
        print!(
            "{seed:4} {:5.1} {:3} {:2} {:11} {:4?} {:.1}",
            rate.as_mbps_f64(),
            (delay * 2).as_millis(),
            most.as_millis(),
            jittery.shape.name(),
            jittery.ways,
            jittery.queue,
        );
        for run in &runs {
            let (p50, p95) = (run.wait_p50.as_millis(), run.wait_p95.as_millis());
            print!(" | {:5.1} {p50:3} {p95:3}", run.goodput.as_mbps_f64());
        }
        println!(" | {part:.3}");
        of_better.push(part);
        waits.push(-runs[0].wait_p95.as_secs_f64() * 1e3);
    }
    let least = of_better.iter().copied().fold(f64::INFINITY, f64::min);
    let (median, tenth) = median_and_tenth(of_better);
    let (wait, wait_tenth) = median_and_tenth(waits);
    println!(
        "of the better: median {median:.3}, worst tenth {tenth:.3}, worst {least:.3}; \
         p95 queued: median {:.1} ms, worst tenth {:.1} ms",
        -wait, -wait_tenth
    );
    assert!(
        median >= MEDIAN_LEAST && tenth >= TENTH_LEAST && least >= WORST_LEAST,
        "{median} {tenth} {least}"
    );
}

/// The way up lets packets pass every 20 ms from 6.7 s on, and the queue has overflowed once: 0.12
/// of this link was used until what overflowed was forgotten.
#[test]
fn after_losses_a_way_back_that_is_served_in_turns_does_not_wear_it_down() {
    let radio = Radio {
        kind: RadioKind::Steps,
        seed: 50_021,
    };
    let links = vec![radio.link()];
    let run = RadioRun::new(links, ControllerKind::Tabane, Seed(radio.seed), SPAN);
    let arrived = |ms| run.arrived_after(Duration::from_millis(ms));
    let (from, until) = (7_000, 8_500);
    let lasts = Duration::from_millis(until - from);
    let rate = Rate::of(arrived(until) - arrived(from), lasts);
    let used = rate.as_mbps_f64() / 17.9;
    println!("{}: {used:.2} of the rate", radio);
    assert!(used >= 0.35, "{used}");
}
