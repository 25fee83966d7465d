//! Which families of addresses the relay reaches others by [P-T.6].
//!
//! Owns asking, once a session and now and then. What follows for programs is left to others.

use std::future::poll_fn;

use tabane_base::Duration;
use tabane_linux::interfaces::Families;
use tokio::time::timeout;

use super::{Client, OpenError};
use crate::request::{Status, Transport, families_of};
use crate::stream::StreamEnd;
use crate::target::Target;

/// How long an answer counts: a relay rarely gains a family while it runs.
const LASTS: Duration = Duration::from_secs(300);

impl Client {
    /// Tells `tell` what the relay says, whenever it says something new, as long as there is one.
    pub async fn follow_families(&self, tell: impl Fn(Families)) {
        loop {
            self.until_reachable(true).await;
            match self.ask_families().await {
                Ok(families) => tell(families),
                // An older relay: one is told when a destination is asked for.
                Err(OpenError::Refused(_)) => tell(Families::BOTH),
                Err(error) => tracing::debug!(%error, "families not told"),
            }
            // Another session may be another relay's.
            let _ = timeout(LASTS, self.until_reachable(false)).await;
        }
    }

    async fn ask_families(&self) -> Result<Families, OpenError> {
        let mut stream = self.open(Transport::Families, Target::Anywhere).await?;
        let ended = |end| match end {
            StreamEnd::SessionLost => OpenError::SessionLost,
            StreamEnd::Reset | StreamEnd::Finished => OpenError::Refused(Status::Malformed),
        };
        let status = poll_fn(|cx| stream.poll_status(cx)).await.map_err(ended)?;
        if status != Status::Open {
            return Err(OpenError::Refused(status));
        }
        let byte = poll_fn(|cx| stream.poll_byte(cx)).await.map_err(ended)?;
        stream.finish();
        Ok(families_of(byte))
    }
}
