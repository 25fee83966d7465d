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
use tabane_core::{Identity, PathStatus};
use tabane_linux::netns::Netns;
use tabane_tunnel::{
    Carrier, CarrierKind, CarrierMemory, CarrierWish, Client, ClientConfig, LinkBind, LinkSnapshot,
    TlsPeer, UDP_PORTS,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::cables::{Cables, Stream, ip};
use super::world::{RelayOptions, RunningRelay, bind, client_config, eventually, run};

const TLS_PORT: u16 = 8443;
/// Where the relay listens for UDP as well.
const OTHER_PORT: u16 = 4500;

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
            // More than one link carries.
            for cable in ["left", "right"] {
                world.cables.limit_rate(cable, 40);
            }
            let _stream = Stream::start(&client, world.cables.server()).await;
            let received = || world.link(&client, "right").path.unwrap().received.get();
            eventually("data by TLS", || received() > 100_000).await;
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
            // Every SYN towards the port is counted, and every packet to other UDP ports.
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
        for cable in ["left", "right"] {
            world.cables.limit_rate(cable, 40);
        }
        let _stream = Stream::start(&client, world.cables.server()).await;
        let received = || world.link(&client, "right").path.unwrap().received.get();
        eventually("data by the proxy", || received() > 100_000).await;
    });
}

#[test]
fn the_environments_proxy_is_used_where_nothing_else_passes() {
    let proxied = |config: &mut ClientConfig| {
        config.proxy = Some("http://10.79.9.9:3128".parse().unwrap());
    };
    let (name, both) = ("proxied", ["left", "right"]);
    with_walls(name, &[], proxied, |world, client| async move {
        for cable in both {
            world.wall(cable);
            world.nft(&format!(
                "add rule inet walls in iifname {cable} tcp dport {TLS_PORT} drop"
            ));
        }
        for cable in both {
            world.carried(&client, cable, Carrier::Tls).await;
        }
        Stream::start(&client, world.cables.server())
            .await
            .grows("by the proxy")
            .await;
    });
}

#[test]
fn where_only_another_port_passes_links_go_by_that() {
    let both = ["left", "right"];
    with_walls(
        "ports",
        &[],
        |_| {},
        |world, client| async move {
            // A session that is there, then one that is to be.
            let stream = Stream::start(&client, world.cables.server()).await;
            stream.grows("by the relay's own port").await;
            assert_eq!(world.link(&client, "left").carried_by(), "udp");
            both.iter()
                .for_each(|cable| world.wall_but(cable, OTHER_PORT));
            for cable in both {
                eventually("another port is found", || {
                    world.link(&client, cable).carried_by() == "udp:4500"
                })
                .await;
            }
            stream.grows("by the other port").await;
            assert_eq!(client.snapshot().sessions, 1);
            let why = world.link(&client, "left").carrier_why.unwrap();
            assert!(why.contains("own port"), "{why}");
            // TLS, dialed beside it, may answer first on a busy machine: here there is none.
            let mut config = world.config.clone();
            config.relays.iter_mut().for_each(|relay| relay.tls = None);
            let begun = Instant::now();
            let other = Client::connect(config).await.unwrap();
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(1), "{took:?}");
            for cable in both {
                eventually("another port from the start", || {
                    let link = world.link(&other, cable);
                    let status = link.path.as_ref().map(|path| path.status);
                    link.carried_by() == "udp:4500" && status == Some(PathStatus::Active)
                })
                .await;
            }
            other.close().await;
        },
    );
}

#[test]
fn a_link_goes_back_to_the_relays_own_port_and_counts_all_its_ways() {
    let one = |config: &mut ClientConfig| {
        config.links.truncate(1);
        // TLS, dialed beside it, may answer first on a busy machine.
        config.relays[0].tls = None;
    };
    with_walls("return", &[], one, |world, client| async move {
        let stream = Stream::start(&client, world.cables.server()).await;
        stream.grows("by the relay's own port").await;
        let received = |link: LinkSnapshot| link.path.unwrap().received.get();
        let by_own = received(world.link(&client, "left"));
        world.wall_but("left", OTHER_PORT);
        let by = |port: &'static str| {
            let (world, client) = (world.clone(), client.clone());
            async move {
                let carried = || world.link(&client, "left").carried_by() == port;
                eventually(port, carried).await;
            }
        };
        by("udp:4500").await;
        stream.grows("by the other port").await;
        world.nft("flush chain inet walls in");
        by("udp").await;
        stream.grows("by the relay's own port again").await;
        let link = world.link(&client, "left");
        assert_eq!(
            (link.carrier_why.clone(), client.snapshot().sessions),
            (None, 1)
        );
        let all = link.volume.received.get();
        assert!(all >= by_own + received(link), "{all}");
    });
}

#[test]
fn where_tls_is_remembered_the_session_does_not_wait_for_udp() {
    let recalled = |config: &mut ClientConfig| {
        let links = config.links.iter_mut();
        links.for_each(|link| link.memory = Some(CarrierMemory::Silent));
    };
    let both = ["left", "right"];
    with_walls("remembered", &both, recalled, |world, client| async move {
        // Without memory UDP alone is given 400 ms.
        assert!(world.took < Duration::from_millis(400), "{:?}", world.took);
        for cable in both {
            world.carried(&client, cable, Carrier::Tls).await;
            let link = world.link(&client, cable);
            assert_eq!(link.memory, Some(CarrierMemory::Silent));
            let why = link.carrier_why.unwrap();
            assert!(why.contains("remembered"), "{why}");
        }
        // In a network that has changed since, UDP answers first, and that is what is known then.
        world.nft("flush chain inet walls in");
        let other = Client::connect(world.config.clone()).await.unwrap();
        world.carried(&other, "left", Carrier::Udp).await;
        let memory = || world.link(&other, "left").memory;
        assert_eq!(memory(), Some(CarrierMemory::Usual));
        other.close().await;
    });
}

#[test]
fn a_port_that_another_has_is_left_to_it() {
    run(async {
        let mut relay = bind(&RelayOptions::default(), Identity::from_seed([1; 32])).await;
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap();
        relay.listen_also(taken).unwrap_err();
        assert!(!relay.local_addrs().contains(&taken));
        drop(other);
        relay.listen_also(taken).unwrap();
        assert!(relay.local_addrs().contains(&taken));
    });
}

#[test]
fn udp_that_is_policed_is_left_for_tls() {
    let one = |config: &mut ClientConfig| config.links.truncate(1);
    with_walls("policed", &[], one, |world, client| async move {
        world.limit("left", "meta l4proto udp");
        let stream = Stream::start(&client, world.cables.server()).await;
        let begun = Instant::now();
        world.carried(&client, "left", Carrier::Tls).await;
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        let why = world.link(&client, "left").carrier_why.unwrap();
        assert!(why.contains("policed"), "{why}");
        // At the policed rate this would take minutes.
        stream.grows("by TLS").await;
        stream.grows("by TLS, and by nothing else").await;
        assert_eq!(client.snapshot().sessions, 1);
    });
}

#[test]
fn udp_stays_where_tls_is_policed_as_well() {
    let one = |config: &mut ClientConfig| config.links.truncate(1);
    with_walls("slow", &[], one, |world, client| async move {
        for protocol in ["udp", "tcp"] {
            world.limit("left", &format!("meta l4proto {protocol}"));
        }
        let _stream = Stream::start(&client, world.cables.server()).await;
        let paths = || client.snapshot().session.unwrap().paths;
        eventually("both carry the link", || {
            let carry = paths()
                .into_iter()
                .filter(|path| path.received.get() > 50_000);
            carry.count() == 2
        })
        .await;
        eventually("one is given up", || paths().len() == 1).await;
        let link = world.link(&client, "left");
        assert_eq!((link.carrier, link.carrier_why), (Carrier::Udp, None));
        assert!(!link.path.unwrap().tuple.socket.is_ordered());
    });
}

/// Two cables with walls in them, and how long a session took.
pub(crate) struct World {
    pub(crate) cables: Rc<Cables>,
    took: Duration,
    config: ClientConfig,
}

impl World {
    fn link(&self, client: &Client, name: &str) -> LinkSnapshot {
        let snapshot = client.snapshot();
        let found = snapshot.links.into_iter().find(|link| link.name == name);
        found.unwrap()
    }

    pub(crate) async fn carried(&self, client: &Client, name: &str, by: Carrier) {
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
    pub(crate) fn wall(&self, cable: &str) {
        wall(&self.cables.relay, cable);
    }

    /// From here on no UDP passes by this cable but to one port.
    fn wall_but(&self, cable: &str, port: u16) {
        self.nft(&format!(
            "add rule inet walls in iifname {cable} udp dport != {port} drop"
        ));
    }

    /// From here on a megabit a second of what `fits` passes by this cable each way.
    fn limit(&self, cable: &str, fits: &str) {
        let over = format!("{fits} limit rate over 125 kbytes/second burst 100 kbytes drop");
        self.nft("add chain inet walls out { type filter hook output priority 0; }");
        self.nft(&format!("add rule inet walls in iifname {cable} {over}"));
        self.nft(&format!("add rule inet walls out oifname {cable} {over}"));
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

    pub(crate) fn nft(&self, rule: &str) -> String {
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
pub(crate) fn with_walls<F>(
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
    nft(
        &cables.relay,
        "add rule inet walls in udp dport { 443, 4500 } counter name dials",
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
                also: Some(OTHER_PORT),
                ..RelayOptions::default()
            })
        })
        .unwrap();
    cables.relay.run(http_proxy).unwrap();
    cables.server.set(relay.server);
    let netns = cables.client.clone();
    let mut config = client_config(&relay);
    config.relays[0].addrs = vec![SocketAddr::from(([10, 79, 9, 9], relay.address.port()))];
    // At 443 nobody listens.
    config.relays[0].udp_ports = UDP_PORTS.to_vec();
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
                let client = Client::connect(config.clone()).await.unwrap();
                let world = World {
                    cables: Rc::new(cables),
                    took: begun.elapsed(),
                    config,
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
