//! The life of a session: let in or not, links that come and go, relays that restart or never
//! answer, and strangers at the relay's port.

use std::net::UdpSocket as StdUdpSocket;
use std::thread;

use tabane_base::{Duration, Seed};
use tabane_core::{CloseReason, Identity};
use tabane_linux::descriptors::raise_limit;
use tabane_tunnel::{
    Client, ClientConfig, ClientState, ConnectError, LinkBind, LinkError, OpenError, Silence,
    Target,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;
use tokio::time::Instant;

use super::world::{
    RelayOptions, RunningRelay, carry, client_config, eventually, link, listener, pair, run, world,
};

#[test]
fn a_wrong_token_is_refused_with_a_reason() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        for token in [None, Some(b"guess".to_vec())] {
            let mut config = client_config(&relay);
            config.relays[0].token = token;
            let refused = Client::connect(config).await.err().unwrap();
            assert!(
                matches!(refused, ConnectError::Refused(CloseReason::Unauthorised)),
                "{refused}"
            );
        }
        relay.stop();
    });
}

#[test]
fn a_key_has_as_many_sessions_as_it_may_and_others_have_theirs() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let seed = |number: u16| {
            let mut seed = [0; 32];
            seed[..2].copy_from_slice(&number.to_be_bytes());
            seed
        };
        let config = |number: u16, key: u16| ClientConfig {
            identity: Identity::from_seed(seed(key)),
            seed: seed(number),
            ..client_config(&relay)
        };
        let mut clients = Vec::new();
        for number in 0..8 {
            clients.push(Client::connect(config(number, 3)).await.unwrap());
        }
        let ninth = Client::connect(config(8, 3)).await.err().unwrap();
        assert!(
            matches!(ninth, ConnectError::Refused(CloseReason::TooManySessions)),
            "{ninth}"
        );
        // Each needs some ten descriptors; the key goes on asking.
        let most = raise_limit().unwrap().unwrap_or(u64::MAX);
        let others = if most >= 16_384 { 1_000 } else { 156 };
        for number in 100..100 + others {
            let others = Client::connect(config(number, number)).await;
            clients.insert(0, others.unwrap());
        }
        let again = Client::connect(config(9, 3)).await.err().unwrap();
        assert!(
            matches!(again, ConnectError::Refused(CloseReason::TooManySessions)),
            "{again}"
        );
        // What is given up may be had again.
        clients.pop().unwrap().close().await;
        let next = Client::connect(config(10, 3)).await.unwrap();
        for client in clients.into_iter().chain([next]) {
            client.close().await;
        }
        relay.stop();
    });
}

#[test]
fn a_relay_with_another_key_is_not_trusted() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let mut config = client_config(&relay);
        config.relays[0].key = Identity::from_seed([9; 32]).public_key();
        let refused = Client::connect(config).await.err().unwrap();
        assert!(
            matches!(refused, ConnectError::Refused(CloseReason::WrongPeerKey)),
            "{refused}"
        );
        relay.stop();
    });
}

#[test]
fn a_relay_that_never_answers_is_named_with_the_links_tried() {
    run(async {
        let silent = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let relay = RunningRelay::start(RelayOptions::default());
        let mut config = client_config(&relay);
        config.relays[0].addrs = vec![address];
        config.session.handshake_timeout = Duration::from_millis(300);
        let failure = Client::connect(config).await.err().unwrap();
        let text = failure.to_string();
        assert!(matches!(failure, ConnectError::NoAnswer { .. }), "{text}");
        assert!(
            text.contains(&address.to_string()) && text.contains("a, b"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
        relay.stop();
    });
}

#[test]
fn a_relay_of_another_version_is_told_apart() {
    run(async {
        let other = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2_048];
            while let Ok((len, from)) = other.recv_from(&mut buffer) {
                // A Version Negotiation packet [P-2.5]: the attempt stands where it stood.
                assert!(len > 13);
                let mut answer = vec![0xc0, 0, 0, 0, 0];
                answer.extend(&buffer[5..13]);
                answer.extend(77_u32.to_be_bytes());
                other.send_to(&answer, from).unwrap();
            }
        });
        let relay = RunningRelay::start(RelayOptions::default());
        let mut config = client_config(&relay);
        config.relays[0].addrs = vec![address];
        let refused = Client::connect(config).await.err().unwrap();
        let ConnectError::Refused(CloseReason::VersionMismatch { theirs }) = refused else {
            panic!("{refused}");
        };
        assert_eq!(theirs, [77]);
        relay.stop();
    });
}

#[test]
fn links_without_a_common_family_or_interface_are_explained() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let mut config = client_config(&relay);
        config.links = vec![LinkBind {
            v4: None,
            ..link("v6only", 2)
        }];
        let failure = Client::connect(config.clone()).await.err().unwrap();
        assert!(
            matches!(failure, ConnectError::NoUsableLink { .. }),
            "{failure}"
        );

        config.links = vec![LinkBind::interface(
            "nosuch0",
            Some([127, 0, 0, 2].into()),
            None,
        )];
        let failure = Client::connect(config.clone()).await.err().unwrap();
        assert!(failure.to_string().contains("nosuch0"), "{failure}");

        // One good link is enough.
        config.links.push(link("good", 3));
        let client = Client::connect(config).await.unwrap();
        let snapshot = client.snapshot();
        assert!(snapshot.links[0].problem.is_some());
        assert!(snapshot.links[1].path.is_some());
        client.close().await;
        relay.stop();
    });
}

#[test]
fn links_come_and_go_under_a_transfer() {
    const SIZE: usize = 200 << 20;
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let mut config = client_config(&relay);
        config.links = vec![link("a", 2)];
        let client = Client::connect(config).await.unwrap();
        let (server, address) = listener().await;
        spawn_local(async move {
            let (mut tcp, _) = server.accept().await.unwrap();
            let chunk = vec![7; 1 << 20];
            for _ in 0..SIZE / chunk.len() {
                tcp.write_all(&chunk).await.unwrap();
            }
        });
        let (mut program, carried) = pair().await;
        spawn_local(carry(&client, carried, Target::Address(address)));
        let mut chunk = vec![0; SIZE / 4];
        program.read_exact(&mut chunk).await.unwrap();

        client.add_link(link("b", 3)).unwrap();
        let taken = client.add_link(link("b", 4));
        assert!(matches!(taken, Err(LinkError::InUse { .. })));
        program.read_exact(&mut chunk).await.unwrap();
        eventually("the new link has a path", || {
            client.snapshot().links[1].path.is_some()
        })
        .await;

        assert!(client.remove_link("a", "unplugged"));
        assert!(!client.remove_link("a", "unplugged"));
        program.read_exact(&mut chunk).await.unwrap();
        program.read_exact(&mut chunk).await.unwrap();
        assert_eq!(program.read(&mut chunk).await.unwrap(), 0);
        let snapshot = client.snapshot();
        assert_eq!(snapshot.links.len(), 1);
        assert_eq!(snapshot.session.unwrap().paths.len(), 1);
        assert_eq!(snapshot.sessions, 1);
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_restarted_relay_gets_a_new_session_and_old_connections_are_reset() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        let serving = spawn_local(async move {
            let mut held = Vec::new();
            loop {
                let (mut tcp, _) = server.accept().await.unwrap();
                tcp.write_all(b"hello").await.unwrap();
                held.push(tcp);
            }
        });
        let (mut old, carried) = pair().await;
        spawn_local(carry(&client, carried, Target::Address(address)));
        let mut greeting = [0; 5];
        old.read_exact(&mut greeting).await.unwrap();

        let listen = relay.address;
        relay.stop();
        old.read_exact(&mut greeting).await.unwrap_err();
        // Asked for while there is no session: waits for the next one.
        let (mut new, carried) = pair().await;
        spawn_local(carry(&client, carried, Target::Address(address)));
        let relay = RunningRelay::start(RelayOptions {
            listen,
            ..RelayOptions::default()
        });
        new.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"hello");
        let snapshot = client.snapshot();
        assert_eq!(snapshot.state, ClientState::Connected);
        assert_eq!(snapshot.sessions, 2);
        serving.abort();
        client.close().await;
        relay.stop();
    });
}

/// Who gives back does so when silence has lasted: a relay that is back by then serves as before.
#[test]
fn a_moment_s_silence_sends_nobody_another_way() {
    run(async {
        let (relay, client) = world().await;
        let (_server, address) = listener().await;
        let listen = relay.address;
        let open = || client.open_tcp(Target::Address(address), Silence::GivesBack);
        relay.stop();
        eventually("the end is noticed", || !client.is_reachable()).await;
        let again = async {
            RunningRelay::start(RelayOptions {
                listen,
                ..RelayOptions::default()
            })
        };
        let (opened, relay) = tokio::join!(open(), again);
        opened.expect("the relay is back");

        relay.stop();
        eventually("the end is noticed", || !client.is_reachable()).await;
        assert!(matches!(open().await, Err(OpenError::SessionLost)));
        assert!(client.is_given_up());
        let asked = Instant::now();
        assert!(matches!(open().await, Err(OpenError::SessionLost)));
        assert!(asked.elapsed() < Duration::from_millis(100), "given up");
    });
}

/// Anybody on the way could have shown another key: the client says so, and goes on asking.
#[test]
fn a_relay_that_comes_back_with_another_key_is_told_of_and_not_used() {
    run(async {
        let (relay, client) = world().await;
        let listen = relay.address;
        relay.stop();
        let with_key = |identity| {
            RunningRelay::start(RelayOptions {
                listen,
                identity,
                ..RelayOptions::default()
            })
        };
        let relay = with_key([8; 32]);
        while client.snapshot().state != ClientState::Connecting(CloseReason::WrongPeerKey) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        relay.stop();
        let relay = with_key([1; 32]);
        while client.snapshot().state != ClientState::Connected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        relay.stop();
    });
}

#[test]
fn closing_tells_everybody() {
    run(async {
        let (relay, client) = world().await;
        let closed = client.closed();
        client.clone().close().await;
        assert_eq!(closed.await, CloseReason::Finished);
        assert_eq!(
            client.snapshot().state,
            ClientState::Closed(CloseReason::Finished)
        );
        assert!(
            client
                .open_tcp(Target::Resolver, Silence::Waits)
                .await
                .is_err()
        );
        relay.stop();
    });
}

#[test]
fn garbage_at_the_relays_port_is_counted_and_hurts_nobody() {
    run(async {
        let (relay, client) = world().await;
        let stranger = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        stranger
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let seed = Seed(5);
        let mut rng = seed.rng("garbage");
        for i in 0..2_000_u32 {
            let mut datagram = vec![0; rng.below(1_500) as usize];
            rng.fill(&mut datagram);
            // Some look like the beginning of a handshake of ours.
            if i % 3 == 0 && datagram.len() > 5 {
                datagram[0] = 0xc0 | (datagram[0] & 0x3f);
                datagram[1..5].copy_from_slice(&1_u32.to_be_bytes());
            }
            let _ = stranger.send_to(&datagram, relay.address);
            if i % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let (server, address) = listener().await;
        spawn_local(async move {
            let (mut tcp, _) = server.accept().await.unwrap();
            tcp.write_all(b"still here").await.unwrap();
        });
        let (mut program, carried) = pair().await;
        spawn_local(carry(&client, carried, Target::Address(address)));
        let mut answer = Vec::new();
        program.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"still here");
        assert_eq!(client.snapshot().sessions, 1);
        client.close().await;
        // While all workers are there.
        let drops = relay.look().await.counters.drops;
        relay.stop();
        let dropped: u64 = drops.iter().map(|(_, count)| count).sum();
        assert!(dropped > 1_000, "{seed}: {drops:?}");
    });
}
