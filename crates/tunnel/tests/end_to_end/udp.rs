//! UDP flows through the tunnel.

use tabane_tunnel::{Client, FlowError, MAX_FLOW_PAYLOAD, RelayLimits, Status, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;

use super::world::{
    RelayOptions, RunningRelay, client_config, listener, pair, run, udp_echo, world,
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
        spawn_local(client.carry_tcp(carried, Target::Resolver));
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
        let first = client.open_tcp(target.clone()).await.unwrap();
        let second = client.open_tcp(target.clone()).await.err();
        assert_eq!(
            second,
            Some(tabane_tunnel::OpenError::Refused(Status::Limit))
        );
        drop(first);
        client.open_tcp(target).await.unwrap();
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_silent_flow_to_the_resolver_is_ended_by_the_relay() {
    run(async {
        let relay = RunningRelay::start(RelayOptions {
            resolvers: vec![udp_echo()],
            ..RelayOptions::default()
        });
        let client = Client::connect(client_config(&relay)).await.unwrap();
        let flow = client.open_udp(Target::Resolver).await.unwrap();
        flow.send(b"question").unwrap();
        flow.recv().await.unwrap();
        // [P-T.3]: 10 s.
        assert_eq!(flow.recv().await, Err(FlowError::Ended));
        assert_eq!(flow.recv().await, Err(FlowError::Ended));
        client.close().await;
        relay.stop();
    });
}
