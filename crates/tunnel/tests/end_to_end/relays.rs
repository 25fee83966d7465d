//! Several relays: the preferred one is used, another one while it does not answer.

use std::time::Duration;

use tabane_core::Identity;
use tabane_tunnel::{Client, ConnectError, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;

use super::world::{
    RelayOptions, RunningRelay, carry, client_config, eventually, listener, pair, relay_peer, run,
};

fn two() -> (RunningRelay, RunningRelay, tabane_tunnel::ClientConfig) {
    let first = RunningRelay::start(RelayOptions::default());
    let second = RunningRelay::start(RelayOptions {
        identity: [7; 32],
        ..RelayOptions::default()
    });
    let mut config = client_config(&first);
    config.relays[0].name = "first".to_owned();
    let mut other = relay_peer(&second);
    other.name = "second".to_owned();
    config.relays.push(other);
    (first, second, config)
}

#[test]
fn the_preferred_relay_is_used_while_both_answer() {
    run(async {
        let (first, second, config) = two();
        let client = Client::connect(config).await.unwrap();
        assert_eq!(client.snapshot().relay, Some(0));
        client.close().await;
        first.stop();
        second.stop();
    });
}

#[test]
fn a_relay_that_proves_another_key_is_passed_over() {
    run(async {
        let (first, second, mut config) = two();
        config.relays[0].key = Identity::from_seed([9; 32]).public_key();
        let client = Client::connect(config.clone()).await.unwrap();
        assert_eq!(client.snapshot().relay, Some(1));
        client.close().await;
        config.relays[1].token = None;
        let failure = Client::connect(config).await.err().unwrap();
        assert!(matches!(failure, ConnectError::NoRelay(_)), "{failure}");
        let text = failure.to_string();
        for said in [
            "first: the relay at this address has another key",
            "; second: the relay does not accept",
        ] {
            assert!(text.contains(said), "{text}");
        }
        first.stop();
        second.stop();
    });
}

#[test]
fn a_relay_that_falls_silent_is_replaced_and_its_connections_reset() {
    run(async {
        let (first, second, config) = two();
        let (echo, address) = listener().await;
        let target = Target::Address(address);
        spawn_local(async move {
            while let Ok((mut tcp, _)) = echo.accept().await {
                spawn_local(async move {
                    let (mut read, mut write) = tcp.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        let client = Client::connect(config).await.unwrap();
        let (mut program, carried) = pair().await;
        spawn_local(carry(&client, carried, target.clone()));
        let mut byte = [0];
        program.write_all(b"x").await.unwrap();
        program.read_exact(&mut byte).await.unwrap();
        first.vanish();
        program.write_all(b"y").await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(8), program.read_exact(&mut byte));
        assert!(ended.await.unwrap().is_err(), "reset, not answered");
        eventually("the second relay is used", || {
            client.is_reachable() && client.snapshot().relay == Some(1)
        })
        .await;
        let (mut program, carried) = pair().await;
        spawn_local(carry(&client, carried, target));
        program.write_all(b"z").await.unwrap();
        program.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"z");
        client.close().await;
        second.stop();
    });
}
