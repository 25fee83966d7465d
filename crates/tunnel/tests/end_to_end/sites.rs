//! Networks behind clients, as others of their group are told of them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tabane_base::{Bytes, Prefix};
use tabane_core::Identity;
use tabane_tunnel::{Client, Grants, User, UserLimits};
use tokio::task::spawn_local;

use super::world::{RelayOptions, RunningRelay, client_config, run};

const ROUTE: &str = "10.250.7.0/24";

/// A hundred sessions that are told of each of a thousand changes a second leave nobody else much.
#[test]
fn who_offers_and_takes_back_without_end_is_not_told_of_each_time() {
    run(async {
        let grants = Grants {
            routes: vec![ROUTE.parse().unwrap()],
            ..Grants::default()
        };
        let limits = UserLimits {
            grants,
            ..UserLimits::default()
        };
        let relay = RunningRelay::start(RelayOptions {
            user: Some(User::new("ann", limits, Bytes::ZERO)),
            ..RelayOptions::default()
        });
        let restless = Client::connect(client_config(&relay)).await.unwrap();
        let mut config = client_config(&relay);
        config.identity = Identity::from_seed([5; 32]);
        let other = Client::connect(config).await.unwrap();
        let (lists, is_here) = (Rc::new(Cell::new(0_u128)), Rc::new(Cell::new(false)));
        let told = (lists.clone(), is_here.clone());
        spawn_local(async move {
            let tell = |list: tabane_tunnel::SiteList| {
                told.0.set(told.0.get() + 1);
                told.1.set(list.routes.iter().any(|route| route.is_here));
            };
            other.follow_routes(tell).await;
        });
        let route = Prefix::parse(ROUTE).unwrap();
        let (began, mut turns) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(1) {
            drop(restless.offer_route(route).await.unwrap());
            turns += 1;
        }
        let _kept = restless.offer_route(route).await.unwrap();
        while !is_here.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let most = began.elapsed().as_millis() / 100 + 2;
        let lists = lists.get();
        assert!(lists <= most, "{lists} lists of {turns} changes");
        assert!(turns > 2 * most, "{turns} changes are few");
    });
}
