//! Asking the relay to lead others here, for as long as that is wished for.
//!
//! Owns that what is lost is asked for again: in another session, of another relay, of one that was
//! started again, and after a while of one that has refused.

use tabane_base::Duration;
use tabane_tunnel::{Client, Exposure, OpenError, Status};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long until what was refused is asked for once more: grants and other clients change, seldom
/// within seconds.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Where an exposure stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExposureState {
    /// The relay has not answered yet, or there is none.
    Asked,
    /// The relay leads visitors here.
    Open,
    /// It does not, for this reason; it is asked again.
    Refused(String),
}

/// Asks for ever, and serves what is given. A refusal is told in the words of `why`.
pub(crate) async fn keep_asking(
    relay: &Client,
    state: &watch::Sender<ExposureState>,
    ask: impl AsyncFn() -> Result<Exposure, OpenError>,
    why: impl Fn(Status) -> String,
    serve: impl AsyncFn(Exposure),
) {
    let mut retry = FIRST_RETRY;
    loop {
        relay.until_reachable(true).await;
        match ask().await {
            Ok(exposure) => {
                state.send_replace(ExposureState::Open);
                retry = FIRST_RETRY;
                serve(exposure).await;
                state.send_replace(ExposureState::Asked);
            }
            // A relay that goes down; the next may say otherwise.
            Err(OpenError::Refused(Status::TimedOut)) => sleep(FIRST_RETRY).await,
            Err(OpenError::Refused(status)) => {
                let why = why(status);
                let refused = ExposureState::Refused(why.clone());
                if state.send_replace(refused.clone()) != refused {
                    tracing::info!("{why}");
                }
                // Another session may be another relay's, which says otherwise.
                let _ = timeout(retry, relay.until_reachable(false)).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
            Err(error) => {
                tracing::debug!(%error, "not asked for");
                sleep(FIRST_RETRY).await;
            }
        }
    }
}
