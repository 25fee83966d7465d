//! Whether a link still leads anywhere, asked while an answer is waited for.
//!
//! A neighbour that sleeps or walks away says nothing, and the kernel takes seconds to be sure of
//! it. An origin that thinks says nothing either, and must not be asked twice for that. What tells
//! them apart is whether anything else comes by this link, and whether it connects to the origin.

use std::time::Duration;

use tabane_fetch::{Client, Link, Origin};
use tokio::time::{sleep, timeout};

/// Silence on a connection that has been idle is looked into after so long. Most answers begin
/// sooner.
const KEPT_PAUSE: Duration = Duration::from_millis(500);
/// On one that was just made: that its link leads to the origin is known.
const FRESH_PAUSE: Duration = Duration::from_secs(5);
/// After a look that found all well the next one comes twice as late, and at most so.
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// How long a link may take to connect until another one is asked beside it. One that takes longer
/// costs a request that is not needed.
const KNOCK_TIME: Duration = Duration::from_millis(500);

/// Comes back when this link, which is to bring an answer of this origin, seems to lead nowhere.
pub(crate) async fn dead(client: &Client, link: &Link, origin: &Origin, is_kept: bool) {
    let mut pause = if is_kept { KEPT_PAUSE } else { FRESH_PAUSE };
    let mut received = link.received();
    loop {
        sleep(pause).await;
        let knock = async {
            match timeout(KNOCK_TIME, client.knock(link, origin)).await {
                Ok(Ok(())) => true,
                Ok(Err(_)) | Err(_) => false,
            }
        };
        let is_alive = link.received() > received || knock.await || link.received() > received;
        if !is_alive {
            return;
        }
        received = link.received();
        pause = (pause * 2).clamp(FRESH_PAUSE, LAST_PAUSE);
    }
}
