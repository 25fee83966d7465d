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
