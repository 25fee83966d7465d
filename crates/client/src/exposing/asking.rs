//! Asking the relay to lead others here, for as long as that is wished for.
//!
//! Owns that what is lost is asked for again: in another session, of another relay, of one that was
//! started again, and after a while of one that has refused.

use tabane_base::Duration;
use tabane_tunnel::{OpenError, Status};
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

/// Asks for ever, while the relay is reachable, and serves what is given. A refusal is told in the
/// words of `why`.
pub(crate) async fn keep_asking<E>(
    until_reachable: impl AsyncFn(bool),
    state: &watch::Sender<ExposureState>,
    ask: impl AsyncFn() -> Result<E, OpenError>,
    why: impl Fn(Status) -> String,
    serve: impl AsyncFn(E),
) {
    let mut retry = FIRST_RETRY;
    loop {
        until_reachable(true).await;
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
                let _ = timeout(retry, until_reachable(false)).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
            Err(error) => {
                tracing::debug!(%error, "not asked for");
                sleep(FIRST_RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use tokio::time::Instant;

    /// What the relay says to each question, and that it is open for a second.
    type Says = fn(usize) -> Result<(), OpenError>;

    /// When it is asked, in seconds from the beginning on, by somebody who ends half a second after
    /// the last; the relay is away at first, and for an instant at this second.
    async fn asked(says: Says, away_at: Option<u64>, seconds: u64) -> Vec<u64> {
        let (begin, asked) = (Instant::now(), RefCell::new(Vec::new()));
        let (is_there, state) = (
            watch::Sender::new(false),
            watch::Sender::new(ExposureState::Asked),
        );
        let times = Cell::new(0);
        let until_reachable = async |reachable| {
            let _ = is_there.subscribe().wait_for(|it| *it == reachable).await;
        };
        let ask = async || {
            asked.borrow_mut().push(begin.elapsed().as_secs());
            times.set(times.get() + 1);
            says(times.get())
        };
        let why = |status: Status| status.to_string();
        let serve = async |()| {
            assert_eq!(*state.borrow(), ExposureState::Open);
            sleep(Duration::from_secs(1)).await;
        };
        let coming = async {
            sleep(Duration::from_secs(10)).await;
            is_there.send_replace(true);
            if let Some(at) = away_at {
                sleep(Duration::from_secs(at - 10)).await;
                is_there.send_replace(false);
                sleep(Duration::from_millis(1)).await;
                is_there.send_replace(true);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = keep_asking(until_reachable, &state, ask, why, serve) => {}
            () = coming => {}
            () = sleep(Duration::from_millis(seconds * 1_000 + 500)) => {}
        }
        asked.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_asked_for_ever_more_rarely_and_at_once_of_another_session() {
        let denied = |_| Err(OpenError::Refused(Status::Denied));
        let rarely = [10, 11, 13, 17, 25, 41, 73, 133, 193, 253];
        assert_eq!(asked(denied, None, 300).await, rarely);
        let anew = [10, 11, 13, 17, 25, 41, 73, 90, 150, 210, 270];
        assert_eq!(asked(denied, Some(90), 300).await, anew);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_open_and_a_relay_that_goes_down_are_asked_each_second() {
        let opens = |times| match times {
            5 => Ok(()),
            _ => Err(OpenError::Refused(Status::Denied)),
        };
        let restarted = [10, 11, 13, 17, 25, 26, 27, 29, 33];
        assert_eq!(asked(opens, None, 40).await, restarted);
        for fault in [
            |_| Err(OpenError::Refused(Status::TimedOut)),
            |_| Err(OpenError::SessionLost),
        ] {
            assert_eq!(asked(fault, None, 15).await, [10, 11, 12, 13, 14, 15]);
        }
    }
}
