//! Links whose answers take seconds: behind a full queue, or farther than any satellite.

use std::net::SocketAddr;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_tunnel::Client;
use tokio::net::UdpSocket;
use tokio::task::spawn_local;

use super::cables::is_active;
use super::world::{RelayOptions, RunningRelay, client_config, eventually, run};

/// Passes datagrams on to the relay and back, each so much later.
async fn far(relay: SocketAddr, one_way: Duration) -> SocketAddr {
    let inner = Rc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let outer = Rc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let address = inner.local_addr().unwrap();
    let later = move |socket: &Rc<UdpSocket>, datagram: &[u8], to: SocketAddr| {
        let (socket, datagram) = (socket.clone(), datagram.to_vec());
        spawn_local(async move {
            tokio::time::sleep(one_way).await;
            socket.send_to(&datagram, to).await.unwrap();
        });
    };
    spawn_local(async move {
        let mut client = None;
        let (mut up, mut down) = ([0; 2_000], [0; 2_000]);
        loop {
            tokio::select! {
                Ok((n, from)) = inner.recv_from(&mut up) => {
                    client = Some(from);
                    later(&outer, &up[..n], relay);
                }
                Ok((n, _)) = outer.recv_from(&mut down) => {
                    later(&inner, &down[..n], client.unwrap());
                }
            }
        }
    });
    address
}

#[test]
fn a_link_whose_answers_take_five_seconds_is_used_beside_a_near_one() {
    run(async {
        let relay = RunningRelay::start(RelayOptions::default());
        let way = far(relay.address, Duration::from_millis(2_500)).await;
        let mut config = client_config(&relay);
        config.links[1].relay_addrs = Some(vec![vec![way]]);
        let client = Client::connect(config).await.unwrap();
        eventually("the far link carries data", || is_active(&client, "b")).await;
        client.close().await;
        relay.stop();
    });
}
