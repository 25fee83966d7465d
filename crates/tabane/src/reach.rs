//! How the relay is reached over each link: a look at a session that carries nothing.

use tabane_base::Duration;
use tabane_tunnel::{Client, ClientSnapshot, LinkSnapshot};
use tokio::time::{Instant, sleep};

/// How long paths may take to come up beside the first one, and to be measured: a path that is
/// slower than this is hardly a link.
const MEASURE_TIME: Duration = Duration::from_secs(3);
/// Between looks at the paths.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until every link is measured or has failed, at most for [`MEASURE_TIME`].
pub(crate) async fn measure(client: &Client) -> ClientSnapshot {
    let deadline = Instant::now() + MEASURE_TIME;
    loop {
        let snapshot = client.snapshot();
        let is_settled = |link: &LinkSnapshot| {
            link.problem.is_some() || link.path.as_ref().is_some_and(|path| path.rtt_measured)
        };
        if snapshot.links.iter().all(is_settled) || Instant::now() >= deadline {
            return snapshot;
        }
        sleep(LOOK_INTERVAL).await;
    }
}
