//! What the follower waits for, by a clock that goes on once everybody waits.

use super::*;
use std::rc::Rc;

use crate::links::tests::interface;
use crate::uplinks::tests::Host;
use tabane_linux::interfaces::DefaultRoute;
use tabane_policy::Policy;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

/// A follower that hears nothing of the kernel, of routers and of the resolver.
fn deaf(host: &Host) -> Follower {
    let links = &host.uplinks.0;
    Follower {
        routers: None,
        // As if it had asked for them.
        asked_for: links.without_v4(),
        ..Follower::new(None, &host.store)
    }
}

/// Interfaces are looked at again whatever else is heard meanwhile. Those that the kernel has are
/// others than this host's.
#[tokio::test(start_paused = true)]
async fn a_gateways_card_is_looked_for_though_there_is_news_all_the_time() {
    let host = Host::new("");
    let mut wlan = interface("wlan0", &["198.51.100.1"]);
    wlan.default_routes = vec![DefaultRoute {
        metric: 0,
        is_v6: false,
        gateway: Some("198.51.100.254".parse().unwrap()),
    }];
    host.uplinks.0.on_interfaces(vec![wlan]);
    assert!(host.uplinks.0.has_unresolved());
    let mut tables = host.uplinks.subscribe();
    let (tell, news) = unbounded_channel();
    let telling = async {
        loop {
            let policy = Policy::parse("").map_err(Into::into);
            let _ = tell.send(News::Policy(policy));
            sleep(Duration::from_millis(50)).await;
        }
    };
    let following = deaf(&host).run(Rc::downgrade(&host.uplinks.0), news);
    tokio::select! {
        // The answer takes as long as the kernel does, which no clock here knows.
        changed = timeout(Duration::from_secs(30), tables.changed()) => {
            assert!(changed.is_ok(), "the interfaces were not looked at again");
        }
        () = following => unreachable!("the links are there"),
        () = telling => unreachable!("it has no end"),
    }
}

/// How long what begins waits for a way to IPv4, where links have these addresses and the resolver
/// shows a translator after so long, if it does.
async fn waited(addresses: &[&str], shown_after: Option<Duration>) -> u128 {
    let host = Host::new("");
    let links = addresses.iter().map(|it| interface("wwan0", &[*it]));
    host.uplinks.0.on_interfaces(links.collect());
    let mut follower = deaf(&host);
    let resolver = follower.found.0.clone();
    let resolving = async {
        if let Some(after) = shown_after {
            sleep(after).await;
            let translator = Translator::advertised("64:ff9b::".parse().unwrap(), 96);
            let _ = resolver.send(translator.into_iter().collect()).await;
        }
    };
    let begin = Instant::now();
    tokio::join!(follower.await_translators(&host.uplinks.0), resolving);
    begin.elapsed().as_millis()
}

#[tokio::test(start_paused = true)]
async fn what_begins_waits_for_a_way_to_ipv4_until_there_is_one_and_a_second_at_most() {
    let (v4, v6) = ("192.0.2.1", "2001:db8::1");
    assert_eq!(waited(&[v6], None).await, 1_000);
    assert_eq!(waited(&[v6], Some(Duration::from_millis(400))).await, 400);
    assert_eq!(waited(&[v4], None).await, 0);
    assert_eq!(waited(&[v4, v6], None).await, 0);
}
