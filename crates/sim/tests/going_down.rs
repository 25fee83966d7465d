//! A server that goes down: clients are told over links that lose much, and what is under way
//! goes on.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_netem::{LinkConfig, LinkSpec, LossModel, Probability, RateModel};
use tabane_sim::{JobId, Setup, Side, Transfer, World};

#[test]
fn a_client_is_sent_away_over_links_that_lose_much_and_its_download_finishes() {
    for seed in 0..20 {
        let link = |name: &str| {
            let config = LinkConfig {
                rate: RateModel::Constant(Rate::from_mbps(20)),
                queue: Bytes::kilo(100),
                delay: Duration::from_millis(10),
                loss: LossModel::Random(Probability::new(0.2).expect("a share")),
                ..LinkConfig::wire()
            };
            LinkSpec {
                name: name.to_owned(),
                up: config.clone(),
                down: config,
            }
        };
        let mut world = World::new(Setup::new(Seed(seed), vec![link("a"), link("b")]));
        world.connect();
        world.add(Transfer {
            down: Bytes::mega(2),
            ..Transfer::download()
        });
        let end = Instant::from_millis(120_000);
        let begun = |world: &World| world.job(JobId(0)).read(Side::Client) > Bytes::kilo(100);
        assert!(world.run_while(end, |world| !begun(world)), "seed {seed}");
        world.with_session(Side::Server, |session| session.send_away());
        world.run_while(end, |world| !(world.is_sent_away() && world.all_over()));
        assert!(world.is_sent_away(), "seed {seed}: never told");
        assert_eq!(world.finished(Side::Client), 1, "seed {seed}");
    }
}
