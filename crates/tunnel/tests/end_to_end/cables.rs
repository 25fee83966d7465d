//! Links that fail for real: veth pairs between two namespaces, pulled under a transfer.
//!
//! ```text
//!   client namespace                       relay namespace
//!   left   10.79.1.1 ═══════ veth ═══════ 10.79.1.2  (left)
//!   right  10.79.2.1 ═══════ veth ═══════ 10.79.2.2  (right)
//!                                         127.0.0.1  server
//! ```
//!
//! There is no route but those of the links: each reaches the relay at an address of its own.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::PathStatus;
use tabane_linux::netns::Netns;
use tabane_tunnel::{Client, LinkBind, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::spawn_local;

use super::world::{
    RelayOptions, RunningRelay, carry, client_config, eventually, pair, relay_peer, run,
};

/// How long a link is gone in these tests: long enough for it to be given up and tried in vain.
const OUTAGE: Duration = Duration::from_millis(1_500);

#[test]
fn a_link_that_goes_down_and_up_again_is_missed_by_nobody_and_used_again() {
    with_cables("updown", |cables, client| async move {
        let stream = Stream::start(&client, cables.server()).await;
        stream.grows("over both links").await;
        cables.client("link set left down");
        stream.grows("with one link down").await;
        tokio::time::sleep(OUTAGE).await;
        stream.grows("with one link down for longer").await;
        cables.client("link set left up");
        eventually("the link carries data again", || is_active(&client, "left")).await;
        stream.grows("over both again").await;
        assert_eq!(client.snapshot().sessions, 1);
    });
}

#[test]
fn an_outage_of_all_links_ends_nothing_though_another_relay_answers_first() {
    with_relays("spare", 2, |cables, client| async move {
        let stream = Stream::start(&client, cables.server()).await;
        stream.grows("over both links").await;
        for outage in [700, 1_500, 2_300, 3_100] {
            for link in ["left", "right"] {
                cables.client(&format!("link set {link} down"));
            }
            tokio::time::sleep(Duration::from_millis(outage)).await;
            for link in ["right", "left"] {
                cables.client(&format!("link set {link} up"));
            }
            stream.grows("over the links that came back").await;
            assert_eq!(client.snapshot().relay, Some(0));
        }
    });
}

#[test]
fn an_interface_that_vanishes_and_comes_back_is_used_again() {
    with_cables("vanish", |cables, client| async move {
        let stream = Stream::start(&client, cables.server()).await;
        stream.grows("over both links").await;
        cables.client("link del right");
        stream.grows("with one interface gone").await;
        tokio::time::sleep(OUTAGE).await;
        assert!(client.snapshot().links[1].problem.is_some());
        cables.lay("right", 2);
        eventually("the link carries data again", || {
            is_active(&client, "right")
        })
        .await;
        stream.grows("over both again").await;
        assert_eq!(client.snapshot().sessions, 1);
    });
}

#[test]
fn a_session_outlives_the_loss_of_every_link() {
    with_cables("dark", |cables, client| async move {
        let stream = Stream::start(&client, cables.server()).await;
        stream.grows("over both links").await;
        cables.client("link set left down");
        cables.client("link set right down");
        tokio::time::sleep(OUTAGE).await;
        cables.client("link set right up");
        stream.grows("over the link that came back").await;
        cables.client("link set left up");
        eventually("the other link carries data", || is_active(&client, "left")).await;
        assert_eq!(client.snapshot().sessions, 1);
    });
}

/// A download without end, and how far it has come.
pub(crate) struct Stream {
    pub(crate) received: Rc<Cell<u64>>,
}

impl Stream {
    pub(crate) async fn start(client: &Client, server: SocketAddr) -> Self {
        let (mut program, carried) = pair().await;
        spawn_local(carry(client, carried, Target::Address(server)));
        let received = Rc::new(Cell::new(0));
        let count = received.clone();
        spawn_local(async move {
            let mut chunk = vec![0; 1 << 16];
            while let Ok(n @ 1..) = program.read(&mut chunk).await {
                // The server counts through all bytes: what is lost, doubled or swapped shows.
                let expected = (count.get() % 251) as u8;
                assert_eq!(chunk[0], expected, "wrong byte at {}", count.get());
                count.set(count.get() + n as u64);
            }
        });
        Self { received }
    }

    pub(crate) async fn grows(&self, when: &str) {
        let before = self.received.get();
        eventually(when, || self.received.get() > before + 4_000_000).await;
    }
}

pub(crate) fn is_active(client: &Client, link: &str) -> bool {
    let snapshot = client.snapshot();
    let link = snapshot.links.iter().find(|it| it.name == link);
    link.and_then(|link| link.path.as_ref())
        .is_some_and(|path| path.status == PathStatus::Active)
}

/// Two namespaces and the links between them; removed when dropped.
pub(crate) struct Cables {
    pub(crate) client: Netns,
    pub(crate) relay: Netns,
    pub(crate) server: Cell<Option<SocketAddr>>,
}

impl Cables {
    /// `None` without privilege.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let make = |side: &str| {
            let name = format!("tbn-{name}-{side}-{}", std::process::id());
            match Netns::create(&name) {
                Ok(netns) => Some(netns),
                Err(error) if error.source.kind() == ErrorKind::PermissionDenied => None,
                Err(error) => panic!("{error}"),
            }
        };
        let cables = Self {
            client: make("c")?,
            relay: make("r")?,
            server: Cell::new(None),
        };
        for netns in [&cables.client, &cables.relay] {
            ip(netns, "link set lo up");
        }
        cables.lay("left", 1);
        cables.lay("right", 2);
        Some(cables)
    }

    fn lay(&self, name: &str, net: u8) {
        let relay = self.relay.name();
        self.client(&format!(
            "link add {name} type veth peer name {name} netns {relay}"
        ));
        self.client(&format!("addr add 10.79.{net}.1/24 dev {name}"));
        ip(
            &self.relay,
            &format!("addr add 10.79.{net}.2/24 dev {name}"),
        );
        self.client(&format!("link set {name} up"));
        ip(&self.relay, &format!("link set {name} up"));
    }

    pub(crate) fn client(&self, command: &str) {
        ip(&self.client, command);
    }

    /// What the relay sends by this cable, in Mbit/s: without a limit the first cable may carry all
    /// that anybody reads.
    pub(crate) fn limit_rate(&self, cable: &str, rate: u64) {
        let tbf = format!("root tbf rate {rate}mbit burst 20000 latency 60ms");
        let status = Command::new("tc")
            .args(["-n", self.relay.name(), "qdisc", "add", "dev", cable])
            .args(tbf.split(' '))
            .status()
            .unwrap();
        assert!(status.success(), "tc {tbf}");
    }

    pub(crate) fn server(&self) -> SocketAddr {
        self.server.get().unwrap()
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        for netns in [&self.client, &self.relay] {
            Netns::remove(netns.name()).unwrap();
        }
    }
}

pub(crate) fn ip(netns: &Netns, command: &str) {
    let status = Command::new("ip")
        .args(["-n", netns.name()])
        .args(command.split(' '))
        .status()
        .unwrap();
    assert!(status.success(), "ip {command}");
}

/// Runs `body` with cables, a relay at their far end, and a client over both.
fn with_cables<F>(name: &str, body: impl FnOnce(Rc<Cables>, Client) -> F + Send)
where
    F: Future<Output = ()> + 'static,
{
    with_relays(name, 1, body);
}

/// The same with so many relays there, the first one preferred.
fn with_relays<F>(name: &str, relays: u8, body: impl FnOnce(Rc<Cables>, Client) -> F + Send)
where
    F: Future<Output = ()> + 'static,
{
    let Some(cables) = Cables::new(name) else {
        println!("skipped: making network namespaces needs root");
        return;
    };
    let start = |number| {
        let relay = cables.relay.run(|| {
            RunningRelay::start(RelayOptions {
                listen: "0.0.0.0:0".parse().unwrap(),
                server: true,
                identity: [100 + number; 32],
                ..RelayOptions::default()
            })
        });
        relay.unwrap()
    };
    let relays: Vec<_> = (0..relays).map(start).collect();
    cables.server.set(relays[0].server);
    let netns = cables.client.clone();
    let mut config = client_config(&relays[0]);
    config.relays = relays.iter().map(relay_peer).collect();
    let at = |net, relay: &RunningRelay| {
        vec![SocketAddr::from(([10, 79, net, 2], relay.address.port()))]
    };
    config.links = [("left", 1), ("right", 2)]
        .map(|(name, net)| LinkBind {
            relay_addrs: Some(relays.iter().map(|relay| at(net, relay)).collect()),
            ..LinkBind::interface(name, Some(Ipv4Addr::new(10, 79, net, 1)), None)
        })
        .into();
    netns
        .run(|| {
            run(async {
                let client = Client::connect(config).await.unwrap();
                eventually("both links are up", || {
                    is_active(&client, "left") && is_active(&client, "right")
                })
                .await;
                body(Rc::new(cables), client.clone()).await;
                client.close().await;
            });
        })
        .unwrap();
    for relay in relays {
        relay.stop();
    }
}

/// Serves bytes that count through 0..251, as many as anybody reads.
pub(crate) async fn serve_counting(listener: TcpListener) {
    loop {
        let (mut tcp, _) = listener.accept().await.unwrap();
        spawn_local(async move {
            let chunk: Vec<u8> = (0..251 * 256).map(|i| (i % 251) as u8).collect();
            while tcp.write_all(&chunk).await.is_ok() {}
        });
    }
}
