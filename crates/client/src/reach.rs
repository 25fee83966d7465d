//! How the relay is reached over each link: a look at a session that carries nothing but probes.

use tabane_base::Duration;
use tabane_tunnel::{Client, ClientSnapshot, LinkEstimate, LinkSnapshot, PathEstimate};
use tokio::time::{Instant, sleep};

/// How long paths may take to come up beside the first one: a path that is slower than this is
/// hardly a link.
const COME_UP_TIME: Duration = Duration::from_secs(3);
/// How long the measuring of bandwidth may take: enough for all trains at 1 Mbit/s, some at less.
const MEASURE_TIME: Duration = Duration::from_secs(3);
/// Trains of packets sent over each link, and asked for from its other end.
const TRAINS: u32 = 16;
/// So many that arrived whole are enough; some get lost.
const ENOUGH: usize = 12;
/// Between looks at the paths.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until every link is up or has failed, those in `awaited` among them, at most for
/// [`COME_UP_TIME`].
pub async fn look(client: &Client, awaited: &[String]) -> ClientSnapshot {
    wait(client, COME_UP_TIME, awaited, |link| {
        link.problem.is_some() || is_up(link)
    })
    .await
}

/// The same; then measures every link's bandwidth, for at most [`MEASURE_TIME`].
pub(crate) async fn measure(client: &Client, awaited: &[String]) -> ClientSnapshot {
    look(client, awaited).await;
    client.measure(TRAINS);
    wait(client, MEASURE_TIME, &[], |link| {
        !is_up(link) || link.estimate.as_ref().is_some_and(is_measured)
    })
    .await
}

fn is_up(link: &LinkSnapshot) -> bool {
    link.path.as_ref().is_some_and(|path| path.rtt_measured)
}

fn is_measured(link: &LinkEstimate) -> bool {
    let enough = |path: &PathEstimate| path.trains_out >= ENOUGH && path.trains_in >= ENOUGH;
    link.metered || link.paths.iter().any(enough)
}

/// Looks again and again until the awaited links are there and all satisfy `is_settled`, at most
/// for `limit`.
async fn wait(
    client: &Client,
    limit: Duration,
    awaited: &[String],
    is_settled: impl Fn(&LinkSnapshot) -> bool,
) -> ClientSnapshot {
    let deadline = Instant::now() + limit;
    loop {
        let snapshot = client.snapshot();
        let is_there = |name: &String| snapshot.links.iter().any(|link| link.name == *name);
        let is_complete = awaited.iter().all(is_there);
        if is_complete && snapshot.links.iter().all(&is_settled) || Instant::now() >= deadline {
            return snapshot;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tabane_core::{DatagramOrder, Identity, SessionConfig};
    use tabane_tunnel::{ClientConfig, HostMonitor, LinkBind, RelayPeer, SessionNumbers};
    use tokio::net::UdpSocket;
    use tokio::task::LocalSet;

    /// A client with these links of a relay that listens there.
    pub(crate) fn config(addrs: Vec<SocketAddr>, links: Vec<LinkBind>) -> ClientConfig {
        ClientConfig {
            identity: Identity::from_seed([200; 32]),
            relays: vec![RelayPeer {
                name: "silent".to_owned(),
                key: Identity::from_seed([1; 32]).public_key(),
                addrs,
                token: None,
                udp_ports: Vec::new(),
                tls: None,
            }],
            merits: Vec::new(),
            links,
            session: SessionConfig::default(),
            monitor: HostMonitor::default(),
            udp_order: DatagramOrder::AtOnce,
            seed: [4; 32],
            numbers: SessionNumbers::default(),
            proxy: None,
            mark: None,
        }
    }

    /// A client without links, of a relay whose name nobody knows. Within a `LocalSet`.
    pub(crate) fn client_of_nobody() -> Client {
        Client::start(config(Vec::new(), Vec::new())).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn links_that_say_nothing_are_waited_for_three_seconds() {
        let there = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addrs = vec![there.local_addr().unwrap()];
        let body = async {
            let silent = Client::start(config(addrs, vec![LinkBind::unbound()])).unwrap();
            let nobody = client_of_nobody();
            for (client, awaited, expected) in [
                (&silent, &[][..], 3_000),
                (&nobody, &["usb0".to_owned()], 3_000),
                (&nobody, &[], 0),
            ] {
                let begin = Instant::now();
                look(client, awaited).await;
                assert_eq!(begin.elapsed().as_millis(), expected, "{awaited:?}");
            }
        };
        LocalSet::new().run_until(body).await;
    }
}
