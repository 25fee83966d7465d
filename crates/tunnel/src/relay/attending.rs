//! What a client has asked the relay to lead to it, as long as its stream is open.
//!
//! Owns when that ends: with the stream, with the grant, or because the client asks for the same in
//! another session and shows no sign of life in this one.

use std::future::poll_fn;

use tabane_base::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::request::Status;
use crate::stream::Stream;

/// How long a client has to show that it is there, when it asks for the same in another session.
const SIGN_WAIT: Duration = Duration::from_millis(1_500);

/// Who leads to a client what comes for it.
pub(super) trait Attendant {
    /// What it is told.
    type Errand;

    /// The client's stream that asked.
    fn stream(&mut self) -> &mut Stream;

    /// Whether this says that another client has asked for the same, or the same once more; gives
    /// back what else it says.
    fn asked(errand: Self::Errand) -> Result<bool, Self::Errand>;

    /// Does what else it is told.
    fn serve(&self, errand: Self::Errand);
}

/// Why a client is attended no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It has ended that, or may have it no longer.
    Over,
    /// It asks in another session and shows no sign of life in this one.
    Vanished,
}

/// Serves errands until the client or those who send them have enough, it is not granted any more,
/// or the client has vanished.
pub(super) async fn attend<A: Attendant>(
    attendant: &mut A,
    errands: &mut mpsc::Receiver<A::Errand>,
    is_granted: impl Fn() -> bool,
) -> Ending {
    /// Whoever does not show itself meanwhile is gone.
    async fn at(deadline: Option<Instant>) {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }
    let mut sign_until: Option<Instant> = None;
    loop {
        let errand = tokio::select! {
            errand = errands.recv() => errand,
            _ = poll_fn(|cx| attendant.stream().poll_end(cx)) => return Ending::Over,
            () = at(sign_until) => {
                sign_until = None;
                let silent_for = attendant.stream().silent_for();
                if silent_for.is_none_or(|silent_for| silent_for >= SIGN_WAIT) {
                    return Ending::Vanished;
                }
                continue;
            }
        };
        // What was granted may be so no longer.
        let Some(errand) = errand.filter(|_| is_granted()) else {
            return Ending::Over;
        };
        match A::asked(errand) {
            Ok(by_the_same) => {
                // It answers this, if only by acknowledging it.
                attendant.stream().write_some(&[Status::PortTaken.emit()]);
                if by_the_same && sign_until.is_none() {
                    sign_until = Some(Instant::now() + SIGN_WAIT);
                }
            }
            Err(errand) => attendant.serve(errand),
        }
    }
}
