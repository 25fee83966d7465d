//! A link gives a small part of its rate for a second or two, as behind a wall or in a cutting, and
//! then all of it again: how much of that is used in the first two seconds.

use std::fmt::Write as _;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_netem::{Change, JitterShape, LinkConfig, LinkSpec, Radio, RadioKind, RateModel};
use tabane_sim::{Setup, Side, Transfer, World};

const FADES: Duration = Duration::from_secs(6);
const LOOKED_AT: Duration = Duration::from_secs(2);
/// Of the rate; 0.29 to 0.67 until a fade was told from a newcomer.
const USED: f64 = 0.7;

/// What one link is, and how it fades.
struct Fading {
    kbps: u64,
    delay_ms: u64,
    jitter_ms: u64,
    queue_ms: u64,
    /// In thousandths.
    left: u64,
    lasts_ms: u64,
}

impl Fading {
    fn link(&self) -> LinkSpec {
        let way = |part: u64| {
            let rate = |kbps: u64| Rate::from_bps(kbps * 1_000 / part);
            let change = |at, kbps| Change {
                at,
                every: None,
                rate: Some(rate(kbps)),
                delay: None,
                loss: None,
            };
            let queue = rate(self.kbps).amount_in(Duration::from_millis(self.queue_ms));
            LinkConfig {
                rate: RateModel::Constant(rate(self.kbps)),
                queue: queue.max(Bytes::kilo(30)),
                delay: Duration::from_millis(self.delay_ms),
                jitter: Duration::from_millis(self.jitter_ms),
                jitter_shape: JitterShape::Correlated,
                changes: vec![
                    change(FADES, self.kbps * self.left / 1_000),
                    change(self.until(), self.kbps),
                ],
                ..LinkConfig::wire()
            }
        };
        LinkSpec {
            name: "fading".into(),
            up: way(4),
            down: way(1),
        }
    }

    fn until(&self) -> Duration {
        FADES + Duration::from_millis(self.lasts_ms)
    }

    /// The part of the rate that is used right after it.
    fn used_afterwards(&self, seed: Seed) -> f64 {
        let mut world = World::new(Setup::new(seed, vec![self.link()]));
        world.connect_by_each_link();
        world.add(Transfer::download());
        let from = Instant::EPOCH + self.until();
        world.run_until(from + LOOKED_AT);
        let carried = (world.outcome(Side::Client)).goodput_between(from, from + LOOKED_AT);
        carried.as_bps() as f64 / (self.kbps * 1_000) as f64
    }
}

#[test]
fn a_link_that_faded_is_used_again_at_once() {
    let fading = |kbps, delay_ms, jitter_ms, queue_ms, left, lasts_ms| Fading {
        kbps,
        delay_ms,
        jitter_ms,
        queue_ms,
        left,
        lasts_ms,
    };
    let mut table = String::from("part of the rate that is used in the first 2 s after a fade\n");
    let mut is_well = true;
    for link in [
        fading(32_100, 32, 0, 331, 72, 658),
        fading(49_300, 13, 0, 341, 229, 822),
        fading(56_900, 16, 0, 134, 41, 1_526),
        fading(83_200, 23, 3, 226, 14, 1_018),
        fading(38_500, 41, 0, 325, 13, 2_270),
        fading(12_000, 20, 5, 250, 100, 4_000),
    ] {
        let used = link.used_afterwards(Seed(1));
        is_well &= used >= USED;
        let _ = writeln!(table, "{} kbit/s: {used:.2}", link.kbps);
    }
    println!("{table}");
    assert!(is_well, "{table}");
}

/// A link of radio that fell from 46 to 6 Mbit/s with its queue full. What the round before the
/// first room had shown was sent into what was left, twice: 1.5 MB were lost.
#[test]
fn what_a_link_had_carried_is_not_sent_into_its_fade() {
    let radio = Radio {
        kind: RadioKind::Steps,
        seed: 82_226,
    };
    let mut world = World::new(Setup::new(Seed(radio.seed), vec![radio.link()]));
    world.connect_by_each_link();
    world.add(Transfer::download());
    let end = Instant::from_millis(13_000);
    world.run_until(end);
    let snapshot = world.session(Side::Server).expect("set up").snapshot(end);
    let lost: Bytes = snapshot.paths.iter().map(|path| path.lost).sum();
    assert!(lost <= Bytes::mega(1), "{lost}");
}
