//! Packets with an address of the relay's pool, and those that a relay must not pass on. The kernel
//! of a namespace stands for the internet: it answers pings of the relay's own address.

use std::num::NonZeroU8;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tabane_base::{Duration, Prefix};
use tabane_core::{Identity, ServerConfig, SessionConfig};
use tabane_linux::{netns::Netns, routing::Routing, tun::Tun};
use tabane_tunnel::{
    Access, Admission, Client, ClientConfig, DestinationRule, Destinations, ExitConfig,
    HostMonitor, Lodging, PacketFlow, Relay, RelayConfig, RelayLimits, RelayMonitor, RelayPeer,
    SessionNumbers, User, UserLimits,
};
use tokio::time::timeout;

use super::world::{TOKEN, link, run};

const MTU: u16 = 1_400;
const RELAY: [u8; 4] = [100, 64, 16, 1];

/// Runs a test in a network namespace of its own.
fn in_namespace(name: &str, body: impl FnOnce() + Send) {
    let name = format!("tbt{}{name}", std::process::id());
    let Ok(netns) = Netns::create(&name) else {
        println!("skipped: namespaces need root");
        return;
    };
    let ended = netns.run(|| catch_unwind(AssertUnwindSafe(body)));
    Netns::remove(&name).unwrap();
    if let Err(panic) = ended.unwrap() {
        resume_unwind(panic);
    }
}

/// A relay with this pool, whose own address is 100.64.16.1; it denies 192.0.2.0/24.
async fn relay(range: &str) -> (RelayMonitor, RelayPeer) {
    let range = Prefix::parse(range);
    let routing = Routing::open().unwrap();
    routing.bring_up("lo", 65_536).await.unwrap();
    let tun = Tun::open("pool").unwrap();
    let index = routing.bring_up("pool", MTU.into()).await.unwrap();
    let bits = range.unwrap().bits;
    routing
        .add_address(index, RELAY.into(), bits)
        .await
        .unwrap();
    let identity = Identity::from_seed([1; 32]);
    let user = User::new(
        "ann",
        UserLimits {
            destinations: Destinations {
                deny: vec!["192.0.2.0/24".parse::<DestinationRule>().unwrap()],
                ..Destinations::default()
            },
            ..UserLimits::default()
        },
        tabane_base::Bytes::ZERO,
    );
    let relay = Relay::bind(RelayConfig {
        identity: identity.clone(),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        access: Access::Private,
        limits: RelayLimits::default(),
        server: ServerConfig::default(),
        session: SessionConfig::default(),
        mark: None,
        own_addresses: Vec::new(),
        authorise: Box::new(move |applicant| {
            applicant.answer(Admission::Admit(Some(user.clone())))
        }),
        resolvers: Vec::new(),
        monitor: HostMonitor::default(),
        seed: [2; 32],
        exit: Some(ExitConfig {
            tun,
            v4: range,
            v6: None,
            mtu: MTU,
            before: None,
        }),
        workers: NonZeroU8::MIN,
        inheritance: None,
        web_doors: Vec::new(),
        fleet_list: None,
        fleet_loads: None,
    })
    .unwrap();
    let monitor = relay.monitor();
    let peer = RelayPeer {
        name: "relay".to_owned(),
        key: identity.public_key(),
        addrs: relay.local_addrs().to_vec(),
        token: Some(TOKEN.to_vec()),
        udp_ports: Vec::new(),
        tls: None,
    };
    tokio::task::spawn_local(relay.run(std::future::pending()));
    (monitor, peer)
}

/// The client with this key; `seed` is another each time.
async fn client(relay: &RelayPeer, key: u8, seed: u8) -> Client {
    let config = ClientConfig {
        merits: Vec::new(),
        identity: Identity::from_seed([key; 32]),
        relays: vec![relay.clone()],
        links: vec![link("a", 2), link("b", 3)],
        session: SessionConfig::default(),
        monitor: HostMonitor::default(),
        udp_order: tabane_core::DatagramOrder::AtOnce,
        seed: [seed; 32],
        numbers: SessionNumbers::default(),
        proxy: None,
        mark: None,
    };
    Client::connect(config).await.unwrap()
}

fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

fn packet(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend(source);
    packet.extend(destination);
    let checksum = sum(&packet);
    packet[10..12].copy_from_slice(&checksum);
    packet.extend(payload);
    packet
}

pub(crate) fn ping(source: [u8; 4], destination: [u8; 4], number: u8) -> Vec<u8> {
    let mut message = vec![8, 0, 0, 0, 0, 7, 0, number];
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum);
    packet(source, destination, 1, &message)
}

fn own_address(flow: &PacketFlow) -> [u8; 4] {
    flow.assignment().v4.unwrap().octets()
}

/// The number of the next answer to a ping.
async fn answer(flow: &PacketFlow) -> u8 {
    let packet = flow.recv().await.unwrap();
    assert_eq!((packet[9], packet[20]), (1, 0), "an echo reply: {packet:?}");
    packet[27]
}

#[test]
fn a_client_sends_from_its_own_address_and_what_it_may_not_is_counted() {
    in_namespace("s", || {
        run(async {
            let (monitor, peer) = relay("100.64.16.0/24").await;
            let client = client(&peer, 3, 3).await;
            let flow = client.open_packets(true).await.unwrap();
            let own = own_address(&flow);
            assert_eq!(flow.assignment().lodging, Lodging::Given);
            assert_eq!((own[0], own[1], own[2]), (100, 64, 16));
            assert!((1_280..=MTU).contains(&flow.room()));

            let good = ping(own, RELAY, 1);
            let longer = [&good[..], b"more"].concat();
            let mut options = ping(own, RELAY, 2);
            options[0] = 0x46;
            for (bad, times) in [
                (ping([100, 64, 16, 250], RELAY, 9), 2),
                (ping([127, 0, 0, 1], RELAY, 9), 1),
                (packet(own, RELAY, 6, &[0, 80, 0, 80]), 1),
                (packet(own, RELAY, 17, &[0, 80, 0, 80]), 1),
                (ping(own, [192, 0, 2, 7], 9), 1),
                (ping(own, [224, 0, 0, 1], 9), 1),
                (good[..12].to_vec(), 1),
                (good[..26].to_vec(), 1),
                (longer, 1),
                (options, 1),
                (b"no packet at all".to_vec(), 1),
            ] {
                for _ in 0..times {
                    flow.send(&bad).unwrap();
                }
            }
            flow.send(&good).unwrap();
            assert_eq!(answer(&flow).await, 1);
            let counted = async || monitor.look().await.guests[0].packets.clone();
            let seen = loop {
                let seen = counted().await.unwrap();
                if seen.refused.values().sum::<u64>() == 12 {
                    break seen;
                }
                tokio::task::yield_now().await;
            };
            let refused: Vec<_> = seen.refused.into_iter().collect();
            assert_eq!(
                refused,
                [
                    ("denied", 2),
                    ("malformed", 5),
                    ("spoofed", 3),
                    ("tcp_or_udp", 2)
                ]
            );
            assert_eq!((seen.sent, seen.received), (1, 1));
            assert_eq!(seen.addresses, [std::net::IpAddr::from(own)]);
            let ours = client.snapshot().packets.unwrap();
            assert_eq!((ours.sent, ours.received), (13, 1));
            drop(flow);
            while counted().await.is_some() {
                tokio::task::yield_now().await;
            }
            assert!(client.snapshot().packets.is_none());
            client.close().await;
        });
    });
}

#[test]
fn answers_find_their_client_and_a_full_pool_says_so() {
    in_namespace("f", || {
        run(async {
            // Room for five.
            let (_monitor, peer) = relay("100.64.16.0/29").await;
            let mut clients = Vec::new();
            for seed in 10..15 {
                let client = client(&peer, seed, seed).await;
                let flow = client.open_packets(true).await.unwrap();
                clients.push((client, flow));
            }
            for (number, (_, flow)) in clients.iter().enumerate() {
                flow.send(&ping(own_address(flow), RELAY, number as u8))
                    .unwrap();
            }
            for (number, (_, flow)) in clients.iter().enumerate() {
                assert_eq!(answer(flow).await, number as u8);
                let more = timeout(Duration::from_millis(1), flow.recv()).await;
                assert!(more.is_err(), "somebody else's answer");
            }
            let late = client(&peer, 15, 15).await;
            let without = late.open_packets(true).await.unwrap();
            assert_eq!(without.assignment().lodging, Lodging::Full);
            assert_eq!(without.assignment().v4, None);
            // Pings go by the relay's own sockets.
            without.send(&ping([10, 0, 0, 9], RELAY, 77)).unwrap();
            assert_eq!(answer(&without).await, 77);
            // A client that comes back while its old session lingers has its address.
            let had = own_address(&clients[2].1);
            let again = client(&peer, 12, 112).await;
            let flow = again.open_packets(true).await.unwrap();
            assert_eq!(own_address(&flow), had);
            flow.send(&ping(had, RELAY, 5)).unwrap();
            assert_eq!(answer(&flow).await, 5);
            drop(clients.remove(0).1);
            // Only one that is given back goes to another.
            let gone = &mut late.open_packets(true).await.unwrap();
            for _ in 0..200 {
                if gone.assignment().lodging == Lodging::Given {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                *gone = late.open_packets(true).await.unwrap();
            }
            assert_eq!(gone.assignment().lodging, Lodging::Given);
        });
    });
}

/// Sockets for pings in this thread's namespace, of either kind.
fn ping_sockets() -> usize {
    let of = |table| {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}"));
        // A heading stands first.
        text.unwrap().lines().count() - 1
    };
    of("icmp") + of("raw")
}

#[test]
fn however_many_flows_of_packets_a_session_asks_for_its_pings_have_few_sockets() {
    in_namespace("p", || {
        run(async {
            let (_monitor, peer) = relay("100.64.16.0/24").await;
            let client = client(&peer, 3, 3).await;
            let mut flows = Vec::new();
            for _ in 0..16 {
                flows.extend(client.open_packets(false).await);
            }
            for flow in &flows {
                for host in 0..64 {
                    flow.send(&ping([10, 0, 0, host], RELAY, host)).unwrap();
                    assert_eq!(answer(flow).await, host);
                }
            }
            let sockets = ping_sockets();
            assert!((64..=128).contains(&sockets), "{sockets}");
            // One that is given up makes room.
            flows.clear();
            while client.open_packets(false).await.is_err() {
                tokio::task::yield_now().await;
            }
        });
    });
}
