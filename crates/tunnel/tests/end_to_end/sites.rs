//! Networks behind clients, as others of their group are told of them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tabane_base::{Bytes, Prefix};
use tabane_core::Identity;
use tabane_tunnel::{
    CallProtocol, Client, ExposureEvent, Grants, Silence, Status, User, UserLimits, Visitor,
};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::world::{RelayOptions, RunningRelay, client_config, run};

const ROUTE: &str = "10.250.7.0/24";

/// Its clients' user may have these routes.
fn relay_for(routes: &[&str]) -> RunningRelay {
    let grants = Grants {
        routes: routes.iter().map(|it| it.parse().unwrap()).collect(),
        ..Grants::default()
    };
    let limits = UserLimits {
        grants,
        ..UserLimits::default()
    };
    RunningRelay::start(RelayOptions {
        user: Some(User::new("ann", limits, Bytes::ZERO)),
        ..RelayOptions::default()
    })
}

async fn second_client(relay: &RunningRelay) -> Client {
    let mut config = client_config(relay);
    config.identity = Identity::from_seed([5; 32]);
    Client::connect(config).await.unwrap()
}

/// A hundred sessions that are told of each of a thousand changes a second leave nobody else much.
#[test]
fn who_offers_and_takes_back_without_end_is_not_told_of_each_time() {
    run(async {
        let relay = relay_for(&[ROUTE]);
        let restless = Client::connect(client_config(&relay)).await.unwrap();
        let other = second_client(&relay).await;
        let (lists, is_here) = (Rc::new(Cell::new(0_u128)), Rc::new(Cell::new(false)));
        let told = (lists.clone(), is_here.clone());
        spawn_local(async move {
            let tell = |list: tabane_tunnel::SiteList, _| {
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

/// As after a relay was replaced: one asks at once, before either has what it had.
#[test]
fn who_asks_a_site_in_a_new_session_waits_for_both_networks_and_is_shown() {
    run(async {
        let relay = relay_for(&[ROUTE, "10.250.8.0/24"]);
        let [ours, theirs] = [ROUTE, "10.250.8.0/24"].map(|it| Prefix::parse(it).unwrap());
        let caller = Client::connect(client_config(&relay)).await.unwrap();
        let site = second_client(&relay).await;
        let following = caller.clone();
        spawn_local(async move { following.follow_routes(|_, _| ()).await });
        let from = "10.250.7.9:4000".parse().unwrap();
        let target: std::net::SocketAddr = "10.250.8.9:80".parse().unwrap();
        let asking = caller.on_behalf_of(Some(from));
        let asking = asking.open_tcp(target.into(), Silence::Waits);
        let offering = async {
            // Long after the request.
            sleep(Duration::from_millis(300)).await;
            let mut theirs = site.offer_route(theirs).await.unwrap();
            sleep(Duration::from_millis(300)).await;
            let ours = caller.offer_route(ours).await.unwrap();
            let ExposureEvent::Visitor(mut visitor) = theirs.next().await else {
                panic!("nobody came");
            };
            let spoken = visitor.call_protocol().await;
            assert!(
                matches!(spoken, Some(CallProtocol::Carried(_))),
                "{spoken:?}"
            );
            let (seen, at) = (visitor.from, visitor.at);
            Visitor::refuse(visitor, Status::Refused).await;
            drop(ours);
            (seen, at)
        };
        let (asked, seen) = tokio::join!(asking, offering);
        assert_eq!(seen, (from, target));
        let refused = asked.err().map(|error| error.to_string());
        assert!(refused.is_some(), "it was opened");
    });
}
