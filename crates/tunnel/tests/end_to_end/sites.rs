//! Networks behind clients, as others of their group are told of them.

use std::cell::Cell;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tabane_base::{Bytes, PortRange, Prefix, Protocol};
use tabane_core::Identity;
use tabane_tunnel::{
    CallProtocol, Client, Exposure, ExposureEvent, Grants, PortClaim, RelayLimits, Silence, Status,
    Target, User, UserLimits,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::packets::ping;
use super::world::{RelayOptions, RunningRelay, carry, client_config, eventually, pair, run};

const ROUTE: &str = "10.250.7.0/24";
const OTHER_ROUTE: &str = "10.250.8.0/24";
const HOST: &str = "10.250.7.1:9";

/// Clients of a relay as `options` says, all of one user who may offer these routes: they are of
/// one group.
fn relay(options: RelayOptions) -> RunningRelay {
    let grants = Grants {
        routes: [ROUTE, OTHER_ROUTE].map(|it| it.parse().unwrap()).into(),
        ports: vec!["1024-65535".parse().unwrap()],
        ..Grants::default()
    };
    let limits = UserLimits {
        grants,
        ..UserLimits::default()
    };
    RunningRelay::start(RelayOptions {
        user: Some(User::new("ann", limits, Bytes::ZERO)),
        ..options
    })
}

async fn client(relay: &RunningRelay, seed: u8) -> Client {
    let mut config = client_config(relay);
    config.identity = Identity::from_seed([seed; 32]);
    Client::connect(config).await.unwrap()
}

/// Every host of the route: gives back what comes.
async fn echo(mut route: Exposure, pinged: Rc<Notify>) {
    while let ExposureEvent::Visitor(mut visitor) = route.next().await {
        let pinged = pinged.clone();
        spawn_local(async move {
            match visitor.call_protocol().await {
                Some(CallProtocol::Carried(Protocol::Tcp)) => {
                    let (far, carried) = pair().await;
                    let flow = visitor.connected().await.unwrap();
                    spawn_local(flow.carry(carried));
                    let (mut read, mut write) = split(far);
                    let _ = copy(&mut read, &mut write).await;
                }
                Some(CallProtocol::Carried(Protocol::Udp)) => {
                    let flow = visitor.datagrams();
                    while let Ok(datagram) = flow.recv().await {
                        flow.send(&datagram).unwrap();
                    }
                }
                Some(CallProtocol::Echoes) => {
                    pinged.notify_one();
                    visitor.gone().await;
                }
                other => panic!("{other:?}"),
            }
        });
    }
}

/// A hundred sessions that are told of each of a thousand changes a second leave nobody else much.
#[test]
fn who_offers_and_takes_back_without_end_is_not_told_of_each_time() {
    run(async {
        let relay = relay(RelayOptions::default());
        let (restless, other) = (client(&relay, 3).await, client(&relay, 5).await);
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

/// Each of them keeps what it has told, and looks for what is new.
#[test]
fn a_session_has_two_streams_of_routes_and_no_more() {
    run(async {
        let relay = relay(RelayOptions::default());
        let (site, other) = (client(&relay, 3).await, client(&relay, 5).await);
        let _kept = site
            .offer_route(Prefix::parse(ROUTE).unwrap())
            .await
            .unwrap();
        let (told, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        for _ in 0..5 {
            let (other, told, refused) = (other.clone(), told.clone(), refused.clone());
            spawn_local(async move {
                let tell = |list: tabane_tunnel::SiteList, _| {
                    let count = if list.routes.is_empty() {
                        &refused
                    } else {
                        &told
                    };
                    count.set(count.get() + 1);
                };
                other.follow_routes(tell).await;
            });
        }
        eventually("all were answered", || told.get() + refused.get() == 5).await;
        assert_eq!((told.get(), refused.get()), (2, 3));
    });
}

/// As after a relay was replaced: one asks at once, before either has what it had.
#[test]
fn who_asks_a_site_in_a_new_session_waits_for_both_networks_and_is_shown() {
    run(async {
        let relay = relay(RelayOptions::default());
        let [ours, theirs] = [ROUTE, OTHER_ROUTE].map(|it| Prefix::parse(it).unwrap());
        let (caller, site) = (client(&relay, 3).await, client(&relay, 5).await);
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
            visitor.refuse(Status::Refused).await;
            drop(ours);
            (seen, at)
        };
        let (asked, seen) = tokio::join!(asking, offering);
        assert_eq!(seen, (from, target));
        let refused = asked.err().map(|error| error.to_string());
        assert!(refused.is_some(), "it was opened");
    });
}

#[test]
fn visitors_of_a_port_keep_none_of_the_group_out() {
    run(async {
        let limits = RelayLimits {
            visitors: 1,
            ..RelayLimits::default()
        };
        let relay = relay(RelayOptions {
            limits,
            ..RelayOptions::default()
        });
        let (site, caller) = (client(&relay, 3).await, client(&relay, 5).await);
        let route = site
            .offer_route(Prefix::parse(ROUTE).unwrap())
            .await
            .unwrap();
        spawn_local(echo(route, Rc::default()));
        // Whichever is free.
        let mut exposed = None;
        for port in 20_000..20_100 {
            let claim = PortClaim {
                protocol: Protocol::Tcp,
                ports: PortRange::parse(&port.to_string()).unwrap(),
            };
            if let Ok(exposure) = site.expose(claim, None).await {
                exposed = Some((exposure, port));
                break;
            }
        }
        let (mut exposure, port) = exposed.unwrap();
        let _stranger = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let ExposureEvent::Visitor(_visitor) = exposure.next().await else {
            panic!("nobody came");
        };
        let (mut program, carried) = pair().await;
        let host: SocketAddrV4 = HOST.parse().unwrap();
        spawn_local(carry(&caller, carried, Target::Address(host.into())));
        program.write_all(b"c").await.unwrap();
        let mut byte = [0];
        program.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"c");
    });
}

#[test]
fn flows_and_pings_to_a_site_keep_no_connection_out_and_hold_no_relay_up() {
    run(async {
        let limits = RelayLimits {
            visitors: 1,
            ..RelayLimits::default()
        };
        let grace = Duration::from_secs(30);
        let relay = relay(RelayOptions {
            limits,
            grace,
            ..RelayOptions::default()
        });
        let (site, caller) = (client(&relay, 3).await, client(&relay, 5).await);
        let (route, pinged) = (Prefix::parse(ROUTE).unwrap(), Rc::<Notify>::default());
        let route = site.offer_route(route).await.unwrap();
        spawn_local(echo(route, pinged.clone()));
        let host: SocketAddrV4 = HOST.parse().unwrap();
        let target = Target::Address(host.into());
        let flow = caller.open_udp(target.clone()).await.unwrap();
        flow.send(b"a").unwrap();
        assert_eq!(&flow.recv().await.unwrap()[..], b"a");
        let second = caller.open_udp(target.clone()).await.unwrap();
        assert!(second.recv().await.is_err(), "there may be one");
        let packets = caller.open_packets(false).await.unwrap();
        packets
            .send(&ping([10, 0, 0, 1], host.ip().octets(), 1))
            .unwrap();
        pinged.notified().await;
        let (mut program, carried) = pair().await;
        spawn_local(carry(&caller, carried, target));
        program.write_all(b"c").await.unwrap();
        let mut byte = [0];
        program.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"c");
        program.shutdown().await.unwrap();
        assert_eq!(program.read(&mut byte).await.unwrap(), 0);
        let began = Instant::now();
        relay.stop();
        let took = began.elapsed();
        assert!(took < grace / 3, "{took:?}");
    });
}
