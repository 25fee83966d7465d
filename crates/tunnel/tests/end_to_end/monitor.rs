//! What sessions measure ends up in the host's one monitor.

use tabane_core::PathPolicy;
use tabane_tunnel::{Client, HostMonitor, LinkBind};

use super::world::{RelayOptions, RunningRelay, client_config, eventually, link, run};

#[test]
fn all_sessions_of_a_host_tell_one_monitor() {
    run(async {
        let monitor = HostMonitor::default();
        let relays = [(); 2].map(|()| RunningRelay::start(RelayOptions::default()));
        let mut clients = Vec::new();
        for relay in &relays {
            let mut config = client_config(relay);
            config.monitor = monitor.clone();
            config.links = vec![link("a", 1)];
            let client = Client::connect(config).await.unwrap();
            client.measure(4);
            clients.push(client);
        }
        eventually("both sessions have told what they measured", || {
            let links = monitor.links();
            let paths = links.iter().flat_map(|link| &link.paths);
            let is_measured = |path: &&tabane_tunnel::PathEstimate| {
                path.trains_out >= 4 && path.trains_in >= 4 && path.rtt_smoothed.is_some()
            };
            links.len() == 1 && paths.filter(is_measured).count() == 2
        })
        .await;
        assert!(clients[0].snapshot().links[0].estimate.is_some());
        clients[0].remove_link("a", "unplugged");
        assert!(!monitor.link("a").unwrap().present);
        clients[0].add_link(link("a", 1)).unwrap();
        assert!(monitor.link("a").unwrap().present);
        for relay in relays {
            relay.stop();
        }
    });
}

#[test]
fn a_metered_link_is_measured_by_what_it_carries_anyway() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let mut config = client_config(&relay);
        let monitor = config.monitor.clone();
        let metered = LinkBind {
            policy: PathPolicy {
                metered: true,
                ..PathPolicy::default()
            },
            ..link("b", 2)
        };
        config.links = vec![link("a", 1), metered];
        let client = Client::connect(config).await.unwrap();
        let trains = |name: &str| {
            let link = monitor.link(name).unwrap();
            link.paths.iter().map(|path| path.trains_out).sum::<usize>()
        };
        eventually("both links are up", || {
            let links = client.snapshot().links;
            let is_up = |link: &tabane_tunnel::LinkSnapshot| {
                link.path.as_ref().is_some_and(|path| path.rtt_measured)
            };
            links.iter().all(is_up)
        })
        .await;
        client.measure(8);
        eventually("the other link is measured", || trains("a") >= 8).await;
        let b = monitor.link("b").unwrap();
        assert!(b.metered && trains("b") == 0, "{b:?}");
        relay.stop();
    });
}
