//! A link that was far for a moment is used again.
//!
//! While its round trips are long, everything arrives earlier by waiting for the other link, so
//! nothing is sent there, and nothing measures that it has become near again.

use tabane_base::{Bytes, Duration, Rate, Seed};
use tabane_netem::{Direction, LinkConfig, LinkSpec, RateModel};
use tabane_sim::{LinkId, Setup, Transfer, World};

const SLOW: LinkId = LinkId(1);

fn link(name: &str, mbps: u64) -> LinkSpec {
    let config = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(mbps)),
        queue: Bytes::kilo(75),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

#[test]
fn a_link_that_was_far_for_a_moment_is_used_again() {
    for seed in 0..8 {
        let mut world = World::new(Setup::new(Seed(seed), vec![link("a", 10), link("b", 3)]));
        world.connect();
        world.add(Transfer::download());
        for (millis, span) in [(0, 2), (600, 3), (0, 2)] {
            let now = world.now();
            for direction in [Direction::Up, Direction::Down] {
                let link = world.network_mut().link_mut(SLOW, direction);
                link.set_delay(now, Duration::from_millis(millis));
            }
            world.run_for(Duration::from_secs(span));
        }
        let carried = |world: &World| {
            let counters = world.network().counters(SLOW, Direction::Down);
            counters.delivered.bytes
        };
        let before = carried(&world);
        world.run_for(Duration::from_secs(5));
        let rate = Rate::of(carried(&world) - before, Duration::from_secs(5));
        println!("seed {seed}: {rate:?}");
        assert!(rate > Rate::from_bps(2_700_000), "seed {seed}: {rate:?}");
    }
}
