//! By a clock that goes on once everybody waits. The relays are nowhere, or say nothing.

use super::*;
use crate::client::{Client, ClientConfig, LinkBind, OpenError, RelayPeer, Silence};
use crate::client::{RelayMerit, SessionNumbers};
use crate::monitor::HostMonitor;
use std::net::SocketAddr;
use tabane_base::Duration;
use tabane_core::{DatagramOrder, Identity, SessionConfig};
use tokio::net::UdpSocket;
use tokio::task::LocalSet;

/// Two days of such a clock take a moment.
async fn run(body: impl Future<Output = ()>) {
    LocalSet::new().run_until(body).await;
}

/// A client of so many relays, whose names nobody knows.
fn client(relays: u8) -> Client {
    client_of(vec![Vec::new(); usize::from(relays)], Vec::new())
}

/// A client of the relays at these addresses.
fn client_of(addrs: Vec<Vec<SocketAddr>>, links: Vec<LinkBind>) -> Client {
    let relay = |(addrs, number): (Vec<SocketAddr>, u8)| RelayPeer {
        name: format!("relay {number}"),
        key: Identity::from_seed([number; 32]).public_key(),
        addrs,
        token: None,
        udp_ports: Vec::new(),
        tls: None,
    };
    let config = ClientConfig {
        identity: Identity::from_seed([200; 32]),
        relays: addrs.into_iter().zip(1..).map(relay).collect(),
        merits: Vec::<RelayMerit>::new(),
        links,
        session: SessionConfig::default(),
        monitor: HostMonitor::default(),
        udp_order: DatagramOrder::AtOnce,
        seed: [4; 32],
        numbers: SessionNumbers::default(),
        proxy: None,
        mark: None,
    };
    Client::start(config).unwrap()
}

/// How long until each of so many tries has failed, from the one before on.
async fn waits(client: &Client, tries: usize) -> Vec<Duration> {
    let mut standing = client.shared.standing.subscribe();
    let mut waits = Vec::new();
    for _ in 0..tries {
        let begin = Instant::now();
        standing.changed().await.unwrap();
        waits.push(begin.elapsed());
    }
    waits
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_nowhere_is_tried_ever_more_rarely_and_at_once_with_news() {
    run(async {
        let client = client(1);
        let expected = [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000];
        let tried = waits(&client, expected.len()).await;
        for (wait, expected) in tried.iter().zip(expected.map(Duration::from_millis)) {
            // Each by chance a quarter more or less, and timers go by milliseconds.
            let least = expected * 3 / 4;
            let most = expected * 5 / 4 + Duration::from_millis(2);
            assert!((least..=most).contains(wait), "{wait:?} {expected:?}");
        }
        assert_ne!(tried[6], tried[7], "not all clients at the same time");
        client.set_relay_addrs(0, Vec::new());
        assert_eq!(waits(&client, 1).await, [Duration::ZERO]);
        // It went on from there, for two days: never given up, and never oftener.
        let begin = Instant::now();
        let mut tries = 0;
        while begin.elapsed() < Duration::from_secs(48 * 3_600) {
            tries += waits(&client, 1).await.len();
        }
        assert!((30_000..40_000).contains(&tries), "{tries}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn with_several_relays_the_first_try_waits_for_nothing() {
    run(async {
        let client = client(2);
        let tried = waits(&client, 2).await;
        assert_eq!(tried[0], Duration::ZERO);
        assert!(tried[1] >= Duration::from_millis(75), "{tried:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_waits_ten_seconds_for_a_session_of_however_many_relays() {
    run(async {
        for relays in [1, 2, 5] {
            let client = client(relays);
            let begin = Instant::now();
            let target = SocketAddr::from(([192, 0, 2, 1], 80));
            let opened = client.open_tcp(target.into(), Silence::Waits).await;
            assert!(matches!(opened.err(), Some(OpenError::NoSession(_))));
            assert_eq!(begin.elapsed().as_secs(), 10, "of {relays}");
            let target = SocketAddr::from(([192, 0, 2, 1], 80));
            let begin = Instant::now();
            let given_back = client.open_tcp(target.into(), Silence::GivesBack).await;
            assert!(matches!(given_back.err(), Some(OpenError::SessionLost)));
            assert_eq!(begin.elapsed(), Duration::ZERO, "it goes plainly at once");
        }
    })
    .await;
}

/// Each of them has its head start over the next, counted from when that one was asked, and none
/// is asked again by then.
#[tokio::test(start_paused = true)]
async fn relays_that_say_nothing_are_passed_over_one_by_one() {
    run(async {
        let mut relays = Vec::new();
        for _ in 0..3 {
            relays.push(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        }
        let addrs = relays.iter().map(|it| vec![it.local_addr().unwrap()]);
        let begin = Instant::now();
        let _client = client_of(addrs.collect(), vec![LinkBind::unbound()]);
        for (relay, expected) in relays.iter().zip([0, 1_500, 3_000]) {
            relay.readable().await.unwrap();
            let asked = begin.elapsed().as_millis();
            // Timers go by milliseconds.
            assert!((expected..=expected + 2).contains(&asked), "{asked}");
        }
    })
    .await;
}
