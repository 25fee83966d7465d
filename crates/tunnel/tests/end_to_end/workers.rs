//! A relay on several threads: every packet of a session comes to the one that has it, and what is
//! limited is limited for all of them together.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket as StdUdpSocket};
use std::num::NonZeroU8;
use std::rc::Rc;

use tabane_base::{Bytes, Duration, Rate};
use tabane_core::{CloseReason, Identity, PathStatus};
use tabane_tunnel::{
    CarrierKind, Client, ClientConfig, ClientState, ConnectError, GuestSnapshot, RelaySnapshot,
    TlsPeer, User, UserLimits,
};
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use super::cables::Stream;
use super::world::{RelayOptions, RunningRelay, client_config, eventually, refusing, run};

fn relay(workers: u8) -> RunningRelay {
    RunningRelay::start(options(workers))
}

fn options(workers: u8) -> RelayOptions {
    RelayOptions {
        workers: NonZeroU8::new(workers).unwrap(),
        server: true,
        ..RelayOptions::default()
    }
}

/// The client of this number, with a key and names of its own.
fn config(relay: &RunningRelay, number: u8) -> ClientConfig {
    ClientConfig {
        identity: Identity::from_seed([100 + number; 32]),
        seed: [number; 32],
        ..client_config(relay)
    }
}

async fn connect(relay: &RunningRelay, numbers: std::ops::Range<u8>) -> Vec<Client> {
    let mut clients = Vec::new();
    for number in numbers {
        let client = Client::connect(config(relay, number)).await;
        clients.push(client.unwrap_or_else(|error| panic!("{number}: {error}")));
    }
    clients
}

/// Which workers have sessions.
fn busy(seen: &RelaySnapshot) -> BTreeSet<usize> {
    seen.guests.iter().map(|guest| guest.worker).collect()
}

fn active_paths(guest: &GuestSnapshot) -> usize {
    let paths = guest.session.paths.iter();
    let active = paths.filter(|path| path.status == PathStatus::Active);
    active.count()
}

/// Clients until two workers have sessions, at most so many.
async fn at_two_workers(relay: &RunningRelay, most: u8) -> Vec<Client> {
    let mut clients = Vec::new();
    for number in 0..most {
        clients.extend(connect(relay, number..number + 1).await);
        if busy(&relay.look().await).len() > 1 {
            return clients;
        }
    }
    panic!("all at one worker");
}

#[test]
fn every_path_of_a_session_leads_to_its_worker_however_many_there_are() {
    for workers in 1..=4 {
        run(async move {
            let relay = relay(workers);
            let clients = connect(&relay, 0..12).await;
            let has_two = |client: &Client| {
                let links = client.snapshot().links;
                let active = |status| status == Some(PathStatus::Active);
                links
                    .iter()
                    .all(|link| active(link.path.as_ref().map(|path| path.status)))
            };
            eventually("all links carry data", || clients.iter().all(has_two)).await;
            for client in &clients[..3] {
                let stream = Stream::start(client, relay.server.unwrap()).await;
                stream.grows("from the server").await;
            }
            // Each end proves the other's address by itself, the relay's end perhaps later.
            let mut seen = relay.look().await;
            while !seen.guests.iter().all(|guest| active_paths(guest) == 2) {
                seen = relay.look().await;
            }
            assert_eq!(seen.guests.len(), 12);
            assert_eq!(seen.workers, usize::from(workers));
            let numbers: BTreeSet<_> = seen.guests.iter().map(|guest| guest.number).collect();
            assert_eq!(numbers.len(), 12, "no two have one number");
            assert_eq!(busy(&seen).len() > 1, workers > 1, "{:?}", busy(&seen));
            assert_eq!(seen.counters.resets, 0, "no packet was a stranger's");
            for client in clients {
                client.close().await;
            }
            relay.stop();
        });
    }
}

/// Passes datagrams on, to the relay from one port of its own and another later.
struct Nat {
    inside: SocketAddr,
    outside: Rc<Cell<u8>>,
    task: AbortHandle,
}

impl Nat {
    async fn new(relay: SocketAddr) -> Self {
        let inner = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let inside = inner.local_addr().unwrap();
        let outside = Rc::new(Cell::new(1));
        let host = outside.clone();
        let task = spawn_local(async move {
            let mut has = 0;
            let (mut outer, mut client) = (None, None);
            let (mut up, mut down) = ([0; 2_000], [0; 2_000]);
            loop {
                if std::mem::replace(&mut has, host.get()) != host.get() {
                    let local = (format!("127.0.0.{}", host.get()), 0);
                    outer = Some(UdpSocket::bind(local).await.unwrap());
                }
                let socket = outer.as_ref().unwrap();
                tokio::select! {
                    Ok((n, from)) = inner.recv_from(&mut up) => {
                        client = Some(from);
                        socket.send_to(&up[..n], relay).await.unwrap();
                    }
                    Ok(n) = socket.recv(&mut down) => {
                        inner.send_to(&down[..n], client.unwrap()).await.unwrap();
                    }
                }
            }
        });
        Self {
            inside,
            outside,
            task: task.abort_handle(),
        }
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[test]
fn a_session_stays_with_its_worker_when_its_address_and_port_change() {
    for workers in [2, 3] {
        run(async move {
            let relay = relay(workers);
            let nat = Nat::new(relay.address).await;
            for number in 0..3 {
                let mut config = config(&relay, number);
                config.relays[0].addrs = vec![nat.inside];
                config.links.truncate(1);
                let client = Client::connect(config).await.unwrap();
                let stream = Stream::start(&client, relay.server.unwrap()).await;
                for host in 10..14 {
                    nat.outside.set(host);
                    stream.grows("from another address").await;
                }
                assert_eq!(client.snapshot().sessions, 1);
                client.close().await;
            }
            assert_eq!(relay.look().await.counters.resets, 0);
            relay.stop();
        });
    }
}

#[test]
fn a_client_that_knew_another_number_of_workers_learns_at_once_that_they_are_gone() {
    run(async {
        let first = relay(3);
        let address = first.address;
        let clients = connect(&first, 0..8).await;
        first.vanish();
        let second = RunningRelay::start(RelayOptions {
            listen: address,
            ..options(2)
        });
        // Silence would take far longer.
        let again = async {
            let is_back = |client: &Client| {
                let now = client.snapshot();
                now.sessions == 2 && now.state == ClientState::Connected
            };
            eventually("all have new sessions", || clients.iter().all(is_back)).await;
        };
        timeout(Duration::from_secs(20), again).await.unwrap();
        assert!(second.look().await.counters.resets > 0);
        for client in clients {
            client.close().await;
        }
        second.stop();
    });
}

#[test]
fn a_session_by_tls_comes_to_its_worker_and_so_do_its_paths_by_udp() {
    run(async {
        let port = refusing().await.port();
        let relay = RunningRelay::start(RelayOptions {
            tls: Some(port),
            ..options(3)
        });
        let mut clients = Vec::new();
        for number in 0..9 {
            let mut config = config(&relay, number);
            config.relays[0].tls = Some(TlsPeer { port, name: None });
            config.links[0].carrier.kind = CarrierKind::Tls;
            config.links[1].carrier.kind = CarrierKind::Udp;
            clients.push(Client::connect(config).await.unwrap());
        }
        let has_both = |client: &Client| {
            let links = client.snapshot().links;
            let active = |status| status == Some(PathStatus::Active);
            links
                .iter()
                .all(|link| active(link.path.as_ref().map(|path| path.status)))
        };
        eventually("both carriers carry", || clients.iter().all(has_both)).await;
        let seen = relay.look().await;
        assert!(busy(&seen).len() > 1);
        assert_eq!(seen.counters.resets, 0);
        for client in &clients[..3] {
            let stream = Stream::start(client, relay.server.unwrap()).await;
            stream.grows("over both").await;
        }
        for client in clients {
            client.close().await;
        }
        relay.stop();
    });
}

fn ann(limits: UserLimits) -> User {
    User::new("ann", limits, Bytes::ZERO)
}

#[test]
fn a_user_s_ninth_session_is_refused_wherever_the_eight_are() {
    run(async {
        let user = ann(UserLimits {
            sessions: Some(8),
            ..UserLimits::default()
        });
        let relay = RunningRelay::start(RelayOptions {
            user: Some(user.clone()),
            ..options(4)
        });
        let mut clients = connect(&relay, 0..8).await;
        assert!(busy(&relay.look().await).len() > 1);
        for number in 8..12 {
            let ninth = Client::connect(config(&relay, number)).await.err().unwrap();
            let expected = CloseReason::TooManySessions;
            assert!(
                matches!(&ninth, ConnectError::Refused(reason) if *reason == expected),
                "{ninth}"
            );
        }
        clients.pop().unwrap().close().await;
        let next = Client::connect(config(&relay, 20)).await.unwrap();
        assert_eq!(user.usage().sessions, 8);
        for client in clients.into_iter().chain([next]) {
            client.close().await;
        }
        relay.stop();
    });
}

#[test]
fn a_user_s_rate_holds_for_sessions_at_two_workers_and_each_has_its_part() {
    run(async {
        let rate = Rate::from_mbps(40);
        let user = ann(UserLimits {
            rate_down: Some(rate),
            ..UserLimits::default()
        });
        let relay = RunningRelay::start(RelayOptions {
            user: Some(user.clone()),
            ..options(2)
        });
        let clients = at_two_workers(&relay, 12).await;
        let last = clients.len() - 1;
        // The first is at one worker and the last at the other.
        let server = relay.server.unwrap();
        let streams = [
            Stream::start(&clients[0], server).await,
            Stream::start(&clients[last], server).await,
        ];
        for stream in &streams {
            stream.grows("at first").await;
        }
        let (begin, before) = (Instant::now(), user.usage().down);
        let at_first = streams.each_ref().map(|stream| stream.received.get());
        sleep(Duration::from_secs(3)).await;
        let passed = user.usage().down.get() - before.get();
        let wanted = rate.amount_in(begin.elapsed()).get();
        let most = wanted + wanted / 20;
        assert!((wanted / 2..most).contains(&passed), "{passed} of {wanted}");
        for (stream, before) in streams.iter().zip(at_first) {
            let part = stream.received.get() - before;
            assert!(part > passed / 4, "{part} of {passed}");
        }
        for client in clients {
            client.close().await;
        }
        relay.stop();
    });
}

#[test]
fn whoever_is_turned_out_is_so_at_every_worker_within_a_second() {
    run(async {
        let relay = relay(3);
        let clients = connect(&relay, 0..9).await;
        assert!(busy(&relay.look().await).len() > 1);
        let begin = Instant::now();
        for number in 0..9 {
            relay.turn_out(Identity::from_seed([100 + number; 32]).public_key());
        }
        let is_out = |client: &Client| client.snapshot().state != ClientState::Connected;
        eventually("all are out", || clients.iter().all(is_out)).await;
        assert!(
            begin.elapsed() < Duration::from_secs(1),
            "{:?}",
            begin.elapsed()
        );
        for client in clients {
            client.close().await;
        }
        relay.stop();
    });
}

#[test]
fn a_port_of_a_relay_is_taken_for_the_next_and_free_when_it_has_ended() {
    run(async {
        let relay = relay(3);
        let address = relay.address;
        let taken = StdUdpSocket::bind(address).err().unwrap();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        relay.stop();
        StdUdpSocket::bind(address).unwrap();
    });
}
