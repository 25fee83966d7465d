//! Streams that only show how fast the way to the relay is.

use tabane_tunnel::{Access, Client, Measure, OpenError, Status, loopback};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::world::{RelayOptions, RunningRelay, client_config, run, world};

/// The near end of a measure; it ends with this.
async fn opened(client: &Client, measure: Measure) -> TcpStream {
    let flow = client.open_measure(measure).await.unwrap();
    let (near, far) = loopback::pair().await.unwrap();
    spawn_local(flow.carry(far));
    near
}

#[test]
fn the_relay_gives_takes_and_gives_back() {
    run(async {
        let (relay, client) = world().await;
        let mut down = opened(&client, Measure::Down).await;
        let mut given = vec![1; 3_000_000];
        down.read_exact(&mut given).await.unwrap();
        drop(down);

        let mut up = opened(&client, Measure::Up).await;
        up.write_all(&given).await.unwrap();
        up.shutdown().await.unwrap();
        let mut counts = Vec::new();
        up.read_to_end(&mut counts).await.unwrap();
        let counts: Vec<u64> = counts
            .chunks(8)
            .map(|count| u64::from_be_bytes(count.try_into().unwrap()))
            .collect();
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!(counts.last(), Some(&3_000_000));

        let mut echo = opened(&client, Measure::Echo).await;
        for number in 0..20u64 {
            let said = number.to_be_bytes();
            echo.write_all(&said).await.unwrap();
            let mut heard = [0xff; 8];
            echo.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard, said);
        }
        drop(echo);
        client.close().await;
        relay.stop();
    });
}

#[test]
fn whoever_has_enough_is_told_and_a_peer_is_not_measured() {
    run(async {
        let (relay, client) = world().await;
        let mut open = Vec::new();
        let refused = loop {
            match client.open_measure(Measure::Echo).await {
                Ok(flow) => open.push(flow),
                Err(error) => break error,
            }
            assert!(open.len() < 100, "nobody keeps count");
        };
        assert!(
            matches!(refused, OpenError::Refused(Status::Limit)),
            "{refused}"
        );
        drop(open);
        client.close().await;
        relay.stop();

        let peer = RunningRelay::start(RelayOptions {
            access: Access::Own,
            ..RelayOptions::default()
        });
        let client = Client::connect(client_config(&peer)).await.unwrap();
        let refused = client.open_measure(Measure::Down).await.err().unwrap();
        assert!(
            matches!(refused, OpenError::Refused(Status::Denied)),
            "{refused}"
        );
        client.close().await;
        peer.stop();
    });
}
