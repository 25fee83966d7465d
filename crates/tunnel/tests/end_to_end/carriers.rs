//! Links that let no UDP through: the kernel's packet filter drops it at the relay's end of a
//! cable, and the link is carried by TLS.
//!
//! ```text
//!   client namespace                       relay namespace
//!   left   10.79.1.1 ═══════ veth ═══════ 10.79.1.2  (left)    10.79.9.9 is behind both
//!   right  10.79.2.1 ═══════ veth ═══════ 10.79.2.2  (right)
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use tabane_base::Duration;
use tabane_core::PathStatus;
use tabane_linux::netns::Netns;
use tabane_tunnel::{
    Carrier, CarrierKind, CarrierWish, Client, ClientConfig, LinkBind, LinkSnapshot, TlsPeer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::cables::{Cables, Stream, ip};
use super::world::{RelayOptions, RunningRelay, client_config, eventually, run};

const TLS_PORT: u16 = 8443;

#[test]
fn where_udp_does_not_pass_the_session_goes_by_tls() {
    with_walls(
        "both",
        &["left", "right"],
        |_| {},
        |world, client| async move {
            assert!(world.took < Duration::from_secs(3), "{:?}", world.took);
            world.carried(&client, "left", Carrier::Tls).await;
            world.carried(&client, "right", Carrier::Tls).await;
            let stream = Stream::start(&client, world.cables.server()).await;
            let paths = || ["left", "right"].map(|link| world.link(&client, link).path.unwrap().id);
            let (before, begun) = (paths(), Instant::now());
            // For longer than a relay keeps connections that no client's session goes by.
            while begun.elapsed() < std::time::Duration::from_secs(13) {
                stream.grows("by TLS").await;
            }
            assert_eq!(paths(), before);
            let why = world.link(&client, "left").carrier_why;
            assert!(why.unwrap().contains("UDP"));
        },
    );
}

#[test]
fn a_link_without_udp_joins_one_with_it() {
    with_walls(
        "one",
        &["right"],
        |_| {},
        |world, client| async move {
            world.carried(&client, "right", Carrier::Tls).await;
            world.carried(&client, "left", Carrier::Udp).await;
            let stream = Stream::start(&client, world.cables.server()).await;
            stream.grows("over both").await;
            let path = world.link(&client, "right").path.unwrap();
            assert!(path.received.get() > 100_000, "{}", path.received.get());
        },
    );
}

#[test]
fn udp_that_is_lost_under_way_is_replaced_and_nothing_is_lost() {
    with_walls(
        "midway",
        &[],
        |_| {},
        |world, client| async move {
            let stream = Stream::start(&client, world.cables.server()).await;
            stream.grows("by UDP").await;
            world.wall("left");
            world.wall("right");
            let begun = Instant::now();
            stream.grows("by TLS").await;
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(10), "{took:?}");
            world.carried(&client, "left", Carrier::Tls).await;
            world.carried(&client, "right", Carrier::Tls).await;
            // One link's connections are cut: the others go on, and it is dialed again.
            world.cut("left");
            stream.grows("with one connection cut").await;
            world.carried(&client, "left", Carrier::Tls).await;
            stream.grows("by both again").await;
            // The client does not hear of it, but that the relay closes the path.
            world.nft("add chain inet walls out { type filter hook output priority 0; }");
            world.nft("add rule inet walls out oifname left tcp flags rst drop");
            world.cut("left");
            world.lost(&client, "left").await;
            world.carried(&client, "left", Carrier::Tls).await;
            assert_eq!(client.snapshot().sessions, 1);
        },
    );
}

#[test]
fn where_udp_passes_nobody_is_dialed() {
    with_walls(
        "none",
        &[],
        |_| {},
        |world, client| async move {
            let stream = Stream::start(&client, world.cables.server()).await;
            world.carried(&client, "left", Carrier::Udp).await;
            world.carried(&client, "right", Carrier::Udp).await;
            stream.grows("by UDP").await;
            // Every SYN towards the port is counted.
            let counters = world.nft("list counters");
            assert!(counters.contains("packets 0"), "{counters}");
        },
    );
}

#[test]
fn the_policy_may_ask_for_tls_and_for_a_proxy() {
    let wish = |config: &mut ClientConfig| {
        config.links[0].carrier.kind = CarrierKind::Tls;
        config.links[1].carrier = CarrierWish {
            kind: CarrierKind::Tls,
            proxy: Some("http://10.79.2.2:3128".parse().unwrap()),
        };
    };
    with_walls("wish", &[], wish, |world, client| async move {
        world.carried(&client, "left", Carrier::Tls).await;
        world.carried(&client, "right", Carrier::Tls).await;
        let stream = Stream::start(&client, world.cables.server()).await;
        stream.grows("by TLS, and by a proxy").await;
        let received = || world.link(&client, "right").path.unwrap().received.get();
        eventually("data by the proxy", || received() > 100_000).await;
    });
}

/// Two cables with walls in them, and how long a session took.
struct World {
    cables: Rc<Cables>,
    took: Duration,
}

impl World {
    fn link(&self, client: &Client, name: &str) -> LinkSnapshot {
        let snapshot = client.snapshot();
        let found = snapshot.links.into_iter().find(|link| link.name == name);
        found.unwrap()
    }

    async fn carried(&self, client: &Client, name: &str, by: Carrier) {
        eventually(&format!("{name} is carried by {by}"), || {
            let link = self.link(client, name);
            let status = link.path.map(|path| path.status);
            link.carrier == by && status == Some(PathStatus::Active)
        })
        .await;
    }

    async fn lost(&self, client: &Client, name: &str) {
        eventually(&format!("{name} is lost"), || {
            let path = self.link(client, name).path;
            path.is_none_or(|path| path.status != PathStatus::Active)
        })
        .await;
    }

    /// From here on no UDP passes by this cable.
    fn wall(&self, cable: &str) {
        wall(&self.cables.relay, cable);
    }

    /// Resets what TLS is under way on a cable, once.
    fn cut(&self, cable: &str) {
        let netns = self.cables.relay.name();
        let net = if cable == "left" { 1 } else { 2 };
        let status = Command::new("ip")
            .args(["netns", "exec", netns, "ss", "-K", "-t", "dst"])
            .arg(format!("10.79.{net}.1"))
            .status()
            .unwrap();
        assert!(status.success());
    }

    fn nft(&self, rule: &str) -> String {
        nft(&self.cables.relay, rule)
    }
}

fn wall(netns: &Netns, cable: &str) {
    nft(
        netns,
        &format!("add rule inet walls in iifname {cable} meta l4proto udp drop"),
    );
}

fn nft(netns: &Netns, rule: &str) -> String {
    let output = Command::new("ip")
        .args(["netns", "exec", netns.name(), "nft"])
        .arg(rule)
        .output()
        .unwrap();
    assert!(output.status.success(), "nft {rule}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `body` with a client over both cables to a relay that takes in TLS, behind walls.
fn with_walls<F>(
    name: &str,
    walls: &[&str],
    change: impl FnOnce(&mut ClientConfig) + Send,
    body: impl FnOnce(Rc<World>, Client) -> F + Send,
) where
    F: Future<Output = ()> + 'static,
{
    let Some(cables) = Cables::new(name) else {
        println!("skipped: making network namespaces needs root");
        return;
    };
    ip(&cables.relay, "addr add 10.79.9.9/32 dev lo");
    cables.client("route add 10.79.9.9 via 10.79.1.2 dev left metric 1");
    cables.client("route add 10.79.9.9 via 10.79.2.2 dev right metric 2");
    nft(&cables.relay, "add table inet walls");
    nft(&cables.relay, "add counter inet walls dials");
    nft(
        &cables.relay,
        "add chain inet walls in { type filter hook input priority 0; }",
    );
    nft(
        &cables.relay,
        &format!("add rule inet walls in tcp dport {TLS_PORT} tcp flags syn counter name dials"),
    );
    for cable in walls {
        wall(&cables.relay, cable);
    }
    let relay = cables
        .relay
        .run(|| {
            RunningRelay::start(RelayOptions {
                listen: "0.0.0.0:0".parse().unwrap(),
                server: true,
                tls: Some(TLS_PORT),
                ..RelayOptions::default()
            })
        })
        .unwrap();
    cables.relay.run(http_proxy).unwrap();
    cables.server.set(relay.server);
    let netns = cables.client.clone();
    let mut config = client_config(&relay);
    config.relays[0].addrs = vec![SocketAddr::from(([10, 79, 9, 9], relay.address.port()))];
    config.relays[0].tls = Some(TlsPeer {
        port: TLS_PORT,
        name: None,
    });
    config.links = [("left", 1), ("right", 2)]
        .map(|(name, net)| LinkBind::interface(name, Some(Ipv4Addr::new(10, 79, net, 1)), None))
        .into();
    change(&mut config);
    netns
        .run(|| {
            run(async {
                let begun = Instant::now();
                let client = Client::connect(config).await.unwrap();
                let world = World {
                    cables: Rc::new(cables),
                    took: begun.elapsed(),
                };
                body(Rc::new(world), client.clone()).await;
                client.close().await;
            });
        })
        .unwrap();
    relay.stop();
}

/// An HTTP proxy that connects to whatever it is told, on a thread of its own.
fn http_proxy() {
    let listener = std::net::TcpListener::bind("0.0.0.0:3128").unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let serve = async {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (mut from, _) = listener.accept().await.unwrap();
                tokio::task::spawn_local(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(from.read_u8().await.unwrap());
                    }
                    let head = String::from_utf8(head).unwrap();
                    let target = head.split(' ').nth(1).unwrap();
                    let mut to = TcpStream::connect(target).await.unwrap();
                    from.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                });
            }
        };
        tabane_tunnel::block_on::<std::pin::Pin<Box<dyn Future<Output = ()>>>>(Box::pin(serve))
    });
}
