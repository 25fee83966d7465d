//! UDP flows through the tunnel.

use std::num::NonZeroU8;

use tabane_base::Duration;
use tabane_tunnel::{
    Client, FlowError, MAX_FLOW_PAYLOAD, RelayLimits, Silence, Status, Target, UdpArrival,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;

use super::world::{
    RelayOptions, RunningRelay, carry, client_config, listener, pair, run, udp_echo, world,
};

#[test]
fn datagrams_of_every_size_go_there_and_back() {
    run(async {
        let (relay, client) = world().await;
        let flow = client.open_udp(Target::Address(udp_echo())).await.unwrap();
        for size in [
            0,
            1,
            100,
            1_200,
            1_472,
            1_500,
            9_000,
            60_000,
            MAX_FLOW_PAYLOAD,
        ] {
            let datagram: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            flow.send(&datagram).unwrap();
            let echo = flow.recv().await.unwrap();
            assert!(echo == datagram, "{size} bytes came back as {}", echo.len());
        }
        let too_large = vec![0; MAX_FLOW_PAYLOAD + 1];
        assert_eq!(flow.send(&too_large), Err(FlowError::TooLarge));
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_burst_to_many_destinations_of_one_socket_arrives() {
    const MANY: usize = 500;
    run(async {
        let (relay, client) = world().await;
        let sockets: Vec<_> = (0..MANY)
            .map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses: Vec<_> = sockets
            .iter()
            .map(|socket| socket.local_addr().unwrap())
            .collect();
        let mapping = client.open_mapping(addresses[0]).await.unwrap();
        for address in &addresses {
            mapping.send(*address, b"burst").unwrap();
        }
        let mut sources = std::collections::BTreeSet::new();
        for socket in sockets {
            socket.set_nonblocking(true).unwrap();
            let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
            let mut buffer = [0; 16];
            let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..len], b"burst");
            sources.insert(from);
        }
        assert_eq!(sources.len(), 1, "destinations see one port");
        client.close().await;
        relay.stop();
    });
}

#[test]
fn answers_from_elsewhere_arrive_and_closed_ports_are_told_of() {
    run(async {
        let (relay, client) = world().await;
        let bind = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (asked, other, closed) = (bind(), bind(), bind());
        let closed_address = closed.local_addr().unwrap();
        let asked_address = asked.local_addr().unwrap();
        drop(closed);
        let mapping = client.open_mapping(asked_address).await.unwrap();
        mapping.send(asked_address, b"question").unwrap();
        asked.set_nonblocking(true).unwrap();
        let asked = tokio::net::UdpSocket::from_std(asked).unwrap();
        let (_, from) = asked.recv_from(&mut [0; 16]).await.unwrap();
        other.send_to(b"from elsewhere", from).unwrap();
        let arrival = UdpArrival::Datagram(other.local_addr().unwrap(), "from elsewhere".into());
        assert_eq!(mapping.recv().await.unwrap(), arrival);
        asked.send_to(b"answer", from).await.unwrap();
        let arrival = UdpArrival::Datagram(asked_address, "answer".into());
        assert_eq!(mapping.recv().await.unwrap(), arrival);

        mapping.send(closed_address, b"anybody?").unwrap();
        let refused = UdpArrival::Undelivered(closed_address, Status::Refused);
        assert_eq!(mapping.recv().await.unwrap(), refused);
        // And it goes on.
        mapping.send(asked_address, b"again").unwrap();
        asked.recv_from(&mut [0; 16]).await.unwrap();

        let flow = client
            .open_udp(Target::Address(closed_address))
            .await
            .unwrap();
        flow.send(b"anybody?").unwrap();
        let refused = FlowError::Undelivered(Status::Refused);
        assert_eq!(flow.recv().await, Err(refused));
        flow.send(b"and now?").unwrap();
        assert_eq!(flow.recv().await, Err(refused));
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_mapping_speaks_with_whom_the_owner_allows() {
    run(async {
        let relay = RunningRelay::start(RelayOptions {
            access: tabane_tunnel::Access::Public,
            ..RelayOptions::default()
        });
        let client = Client::connect(client_config(&relay)).await.unwrap();
        let private = udp_echo();
        let mapping = client.open_mapping(private).await.unwrap();
        mapping.send(private, b"x").unwrap();
        let denied = UdpArrival::Undelivered(private, Status::Denied);
        assert_eq!(mapping.recv().await.unwrap(), denied);
        client.close().await;
        relay.stop();
    });
}

#[test]
fn flows_do_not_mix() {
    run(async {
        let (relay, client) = world().await;
        let echo = udp_echo();
        let mut flows = Vec::new();
        for _ in 0..20 {
            flows.push(client.open_udp(Target::Address(echo)).await.unwrap());
        }
        for (i, flow) in flows.iter().enumerate() {
            flow.send(&[i as u8; 10]).unwrap();
        }
        for (i, flow) in flows.iter().enumerate() {
            assert_eq!(flow.recv().await.unwrap(), [i as u8; 10].as_slice());
        }
        client.close().await;
        relay.stop();
    });
}

#[test]
fn the_relays_resolver_answers_by_udp_and_tcp_even_where_it_is_private() {
    run(async {
        let resolver = udp_echo();
        let tcp = tokio::net::TcpListener::bind(resolver).await.unwrap();
        spawn_local(async move {
            let (mut tcp, _) = tcp.accept().await.unwrap();
            tcp.write_all(b"answer").await.unwrap();
        });
        let relay = RunningRelay::start(RelayOptions {
            access: tabane_tunnel::Access::Public,
            resolvers: vec![resolver],
            ..RelayOptions::default()
        });
        let client = Client::connect(client_config(&relay)).await.unwrap();
        let flow = client.open_udp(Target::Resolver).await.unwrap();
        flow.send(b"question").unwrap();
        assert_eq!(flow.recv().await.unwrap(), b"question".as_slice());

        let (mut program, carried) = pair().await;
        spawn_local(carry(&client, carried, Target::Resolver));
        let mut answer = Vec::new();
        program.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");

        let private = client.open_udp(Target::Address(resolver)).await.unwrap();
        assert_eq!(
            private.recv().await,
            Err(FlowError::Refused(Status::Denied))
        );
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_session_has_as_many_flows_and_connections_as_it_may() {
    run(async {
        let relay = RunningRelay::start(RelayOptions {
            limits: RelayLimits {
                connections: 1,
                flows: 1,
                ..RelayLimits::default()
            },
            ..RelayOptions::default()
        });
        let client = Client::connect(client_config(&relay)).await.unwrap();
        let echo = Target::Address(udp_echo());
        let first = client.open_udp(echo.clone()).await.unwrap();
        first.send(b"x").unwrap();
        first.recv().await.unwrap();
        let second = client.open_udp(echo.clone()).await.unwrap();
        assert_eq!(second.recv().await, Err(FlowError::Refused(Status::Limit)));
        // What is given up may be had again.
        drop((first, second));
        let third = client.open_udp(echo).await.unwrap();
        third.send(b"x").unwrap();
        third.recv().await.unwrap();

        let (_server, address) = listener().await;
        let target = Target::Address(address);
        let first = client
            .open_tcp(target.clone(), Silence::Waits)
            .await
            .unwrap();
        let second = client.open_tcp(target.clone(), Silence::Waits).await.err();
        assert_eq!(
            second,
            Some(tabane_tunnel::OpenError::Refused(Status::Limit))
        );
        drop(first);
        client.open_tcp(target, Silence::Waits).await.unwrap();
        client.close().await;
        relay.stop();
    });
}

/// [P-T.3, P-T.7]: a port at the relay is kept for 120 s of silence, the resolver's for 10, and no
/// longer, so that flows that nobody uses are no burden to a relay whose client does not end them.
#[test]
fn silent_flows_and_mappings_are_ended_by_the_relay_and_no_others() {
    run(async {
        let echo = udp_echo();
        let relay = RunningRelay::start(RelayOptions {
            resolvers: vec![echo],
            workers: NonZeroU8::MIN,
            ..RelayOptions::default()
        });
        let client = Client::connect(client_config(&relay)).await.unwrap();
        let open = async |target| {
            let flow = client.open_udp(target).await.unwrap();
            flow.send(b"x").unwrap();
            flow.recv().await.unwrap();
            flow
        };
        let flow = open(Target::Address(echo)).await;
        let mapping = client.open_mapping(echo).await.unwrap();
        for _ in 0..2 {
            let asked = open(Target::Resolver).await;
            relay.let_pass(Duration::from_secs(9)).await;
            asked.send(b"x").unwrap();
            asked.recv().await.unwrap();
            relay.let_pass(Duration::from_secs(11)).await;
            assert_eq!(asked.recv().await, Err(FlowError::Ended));
            relay.let_pass(Duration::from_secs(98)).await;
            flow.send(b"x").unwrap();
            flow.recv().await.unwrap();
            mapping.send(echo, b"x").unwrap();
            let arrived = mapping.recv().await.unwrap();
            assert!(matches!(arrived, UdpArrival::Datagram(from, _) if from == echo));
        }
        relay.let_pass(Duration::from_secs(121)).await;
        assert_eq!(flow.recv().await, Err(FlowError::Ended));
        assert_eq!(mapping.recv().await, Err(FlowError::Ended));
        client.close().await;
        relay.stop();
    });
}
