//! TCP connections through the tunnel: data, ends, refusals.

use std::io;

use tabane_base::{Bytes, Seed};
use tabane_tunnel::{Ending, OpenError, Silence, Status, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;

use super::world::{
    RelayOptions, RunningRelay, carry, client_config, listener, pair, refusing, run, world,
};

#[test]
fn what_goes_in_comes_out_and_each_direction_ends_by_itself() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        let served = spawn_local(async move {
            let (mut tcp, _) = server.accept().await.unwrap();
            let mut heard = Vec::new();
            // Only the program's half-close ends this.
            tcp.read_to_end(&mut heard).await.unwrap();
            tcp.write_all(b"good bye").await.unwrap();
            heard
        });
        let (mut program, carried) = pair().await;
        let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
        program.write_all(b"hello").await.unwrap();
        program.shutdown().await.unwrap();
        let mut answer = Vec::new();
        program.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"good bye");
        assert_eq!(served.await.unwrap(), b"hello");

        let carried = carrying.await.unwrap().unwrap();
        assert_eq!(carried.ending, Ending::Finished);
        assert_eq!(
            (carried.sent, carried.received),
            (Bytes::new(5), Bytes::new(8))
        );
        client.close().await;
        relay.stop();
    });
}

#[test]
fn the_server_may_speak_first_and_names_are_resolved_at_the_relay() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        spawn_local(async move {
            let (mut tcp, _) = server.accept().await.unwrap();
            tcp.write_all(b"220 ready").await.unwrap();
        });
        let (mut program, carried) = pair().await;
        let target = Target::host("localhost", address.port()).unwrap();
        let flow = client.open_tcp(target, Silence::Waits).await.unwrap();
        spawn_local(flow.carry(carried));
        let mut greeting = [0; 9];
        program.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"220 ready");
        client.close().await;
        relay.stop();
    });
}

#[test]
fn megabytes_both_ways_at_once_over_two_paths_arrive_unchanged() {
    const SIZE: usize = 48 << 20;
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        spawn_local(async move {
            let (tcp, _) = server.accept().await.unwrap();
            exchange(tcp, SIZE, "down", "up").await;
        });
        let (program, carried) = pair().await;
        let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
        exchange(program, SIZE, "up", "down").await;
        let carried = carrying.await.unwrap().unwrap();
        assert_eq!(carried.ending, Ending::Finished);
        assert_eq!(carried.sent, Bytes::from(SIZE));
        assert_eq!(carried.received, Bytes::from(SIZE));

        let session = client.snapshot().session.unwrap();
        assert_eq!(session.paths.len(), 2, "a path per link");
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_refused_destination_is_told() {
    run(async {
        let (relay, client) = world().await;
        let target = Target::Address(refusing().await);
        let told = client.open_tcp(target, Silence::Waits).await.err();
        assert_eq!(told, Some(OpenError::Refused(Status::Refused)));

        let unknown = Target::host("no-such-host.invalid", 80).unwrap();
        let told = client.open_tcp(unknown, Silence::Waits).await.err();
        assert_eq!(told, Some(OpenError::Refused(Status::NameNotFound)));
        client.close().await;
        relay.stop();
    });
}

#[test]
fn private_destinations_are_denied_unless_allowed() {
    run(async {
        let relay = RunningRelay::start(RelayOptions {
            access: tabane_tunnel::Access::Public,
            ..RelayOptions::default()
        });
        let client = tabane_tunnel::Client::connect(client_config(&relay))
            .await
            .unwrap();
        let (server, address) = listener().await;
        for target in [
            Target::Address(address),
            Target::Address(
                format!("[::ffff:127.0.0.1]:{}", address.port())
                    .parse()
                    .unwrap(),
            ),
            Target::host("localhost", address.port()).unwrap(),
            Target::host("10.0.0.1", 80).unwrap(),
            Target::host("169.254.169.254", 80).unwrap(),
        ] {
            let told = client.open_tcp(target.clone(), Silence::Waits).await.err();
            assert_eq!(told, Some(OpenError::Refused(Status::Denied)), "{target}");
        }
        let nobody = tokio::time::timeout(std::time::Duration::from_millis(50), server.accept());
        assert!(nobody.await.is_err(), "the relay connected all the same");
        client.close().await;
        relay.stop();
    });
}

#[test]
fn resets_pass_through_in_both_directions() {
    run(async {
        let (relay, client) = world().await;
        // The program resets; the server feels it.
        let (server, address) = listener().await;
        let felt = spawn_local(async move {
            let (mut tcp, _) = server.accept().await.unwrap();
            tcp.write_all(b"x").await.unwrap();
            tcp.read(&mut [0; 1]).await.unwrap_err().kind()
        });
        let (mut program, carried) = pair().await;
        let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
        // A reset overtakes what was sent before it, so the connection must be seen to stand.
        program.read_exact(&mut [0; 1]).await.unwrap();
        program.set_zero_linger().unwrap();
        drop(program);
        assert_eq!(felt.await.unwrap(), io::ErrorKind::ConnectionReset);
        assert_eq!(carrying.await.unwrap().unwrap().ending, Ending::ResetHere);

        // The server resets; the program feels it.
        let (server, address) = listener().await;
        spawn_local(async move {
            let (mut tcp, _) = server.accept().await.unwrap();
            tcp.read_exact(&mut [0; 1]).await.unwrap();
            tcp.set_zero_linger().unwrap();
        });
        let (mut program, carried) = pair().await;
        let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
        program.write_all(b"x").await.unwrap();
        let felt = program.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(felt.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(carrying.await.unwrap().unwrap().ending, Ending::ResetThere);

        super::world::eventually("every stream is forgotten", || {
            client.snapshot().session.unwrap().streams == 0
        })
        .await;
        client.close().await;
        relay.stop();
    });
}

#[test]
fn readers_that_stall_hold_up_nobody_else() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        spawn_local(async move {
            loop {
                let (tcp, _) = server.accept().await.unwrap();
                spawn_local(send(tcp, 64 << 20, "bulk"));
            }
        });
        let mut stalled = Vec::new();
        for _ in 0..50 {
            let (program, carried) = pair().await;
            spawn_local(carry(&client, carried, Target::Address(address)));
            program.readable().await.unwrap();
            stalled.push(program);
        }
        let (program, carried) = pair().await;
        spawn_local(carry(&client, carried, Target::Address(address)));
        receive(program, 64 << 20, "bulk").await;
        drop(stalled);
        client.close().await;
        relay.stop();
    });
}

#[test]
fn many_connections_at_once_leave_nothing_behind() {
    run(async {
        let (relay, client) = world().await;
        let (server, address) = listener().await;
        spawn_local(async move {
            loop {
                let (tcp, _) = server.accept().await.unwrap();
                spawn_local(exchange(tcp, 20_000, "many", "many"));
            }
        });
        let mut connections = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let client = client.clone();
            connections.spawn_local(async move {
                let (program, carried) = pair().await;
                let carrying = spawn_local(carry(&client, carried, Target::Address(address)));
                exchange(program, 20_000, "many", "many").await;
                carrying.await.unwrap().unwrap().ending
            });
        }
        for ending in connections.join_all().await {
            assert_eq!(ending, Ending::Finished);
        }
        super::world::eventually("every stream is forgotten", || {
            client.snapshot().session.unwrap().streams == 0
        })
        .await;
        client.close().await;
        relay.stop();
    });
}

/// Sends `size` bytes of the sequence called `ours` and checks as many of `theirs`.
async fn exchange(tcp: tokio::net::TcpStream, size: usize, ours: &str, theirs: &str) {
    let (mut read, mut write) = tcp.into_split();
    let sending = async {
        let mut rng = Seed(9).rng(ours);
        let mut chunk = vec![0; 64 * 1024];
        let mut left = size;
        while left > 0 {
            rng.fill(&mut chunk);
            let n = left.min(chunk.len());
            write.write_all(&chunk[..n]).await.unwrap();
            left -= n;
        }
        write.shutdown().await.unwrap();
    };
    let receiving = check(&mut read, size, theirs);
    tokio::join!(sending, receiving);
}

async fn send(mut tcp: tokio::net::TcpStream, size: usize, label: &'static str) {
    let mut rng = Seed(9).rng(label);
    let mut chunk = vec![0; 64 * 1024];
    for _ in 0..size / chunk.len() {
        rng.fill(&mut chunk);
        // The stalled one is never read to its end.
        if tcp.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

async fn receive(mut tcp: tokio::net::TcpStream, size: usize, label: &str) {
    check(&mut tcp, size, label).await;
}

async fn check(read: &mut (impl AsyncReadExt + Unpin), size: usize, label: &str) {
    let mut rng = Seed(9).rng(label);
    let (mut expected, mut chunk) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut left = size;
    while left > 0 {
        let n = left.min(chunk.len());
        rng.fill(&mut expected);
        read.read_exact(&mut chunk[..n]).await.unwrap();
        assert!(
            chunk[..n] == expected[..n],
            "bytes differ after {}",
            size - left
        );
        left -= n;
    }
    assert_eq!(
        read.read(&mut chunk).await.unwrap(),
        0,
        "bytes beyond the end"
    );
}
