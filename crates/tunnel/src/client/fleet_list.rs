//! The list of a fleet's relays, and how much each has to do, asked of the relay that the session
//! is with [P-T.10, P-T.12].
//!
//! Owns asking, once a session and now and then. Whether the list is believed is for whoever has
//! the fleet's key; how much relays have to do is believed of the relay that one has a session
//! with, which could send its clients elsewhere anyhow.

use std::future::poll_fn;

use tabane_base::Duration;
use tabane_core::PublicKey;
use tokio::time::timeout;

use super::{Client, OpenError};
use crate::fleet_loads;
use crate::request::{Status, Transport};
use crate::stream::StreamEnd;
use crate::target::Target;

/// How long an answer counts: relays come and go rarely, and one that goes says so itself.
const LASTS: Duration = Duration::from_secs(60);
/// The longest answer that is taken.
const MAX_LIST: usize = 512 * 1024;
/// The relay has the list at hand.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

impl Client {
    /// Gives `tell` what the relay says is the list, whenever that is newer than the epoch that
    /// `known` says, and `tell_loads` how much each relay has to do.
    pub async fn follow_fleet_list(
        &self,
        known: impl Fn() -> u64,
        mut tell: impl FnMut(Vec<u8>),
        mut tell_loads: impl FnMut(Vec<(PublicKey, u16)>),
    ) {
        loop {
            self.until_reachable(true).await;
            match timeout(ANSWER_WAIT, self.ask_fleet_list(known())).await {
                Ok(Ok(list)) if !list.is_empty() => tell(list),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "no list of the fleet's relays"),
                Err(_) => tracing::debug!("no list of the fleet's relays in time"),
            }
            match timeout(ANSWER_WAIT, self.ask_loads()).await {
                Ok(Ok(loads)) => tell_loads(loads),
                // Older relays do not know.
                Ok(Err(error)) => tracing::debug!(%error, "no loads of the fleet's relays"),
                Err(_) => tracing::debug!("no loads of the fleet's relays in time"),
            }
            // Another session may be another relay's, which has heard of a newer one.
            let _ = timeout(LASTS, self.until_reachable(false)).await;
        }
    }

    async fn ask_fleet_list(&self, known: u64) -> Result<Vec<u8>, OpenError> {
        self.ask_relay(Transport::Relays(known), MAX_LIST).await
    }

    async fn ask_loads(&self) -> Result<Vec<(PublicKey, u16)>, OpenError> {
        let most = fleet_loads::MAX_LOADS;
        let bytes = self.ask_relay(Transport::Loads, most).await?;
        fleet_loads::parse(&bytes).ok_or(OpenError::Refused(Status::Malformed))
    }

    /// All that the relay says behind its status.
    async fn ask_relay(&self, transport: Transport, most: usize) -> Result<Vec<u8>, OpenError> {
        let mut stream = self.open(transport, Target::Anywhere).await?;
        let status = poll_fn(|cx| stream.poll_status(cx)).await;
        match status {
            Ok(Status::Open) => {}
            Ok(status) => return Err(OpenError::Refused(status)),
            Err(StreamEnd::SessionLost) => return Err(OpenError::SessionLost),
            Err(_) => return Err(OpenError::Refused(Status::Malformed)),
        }
        let said = stream.read_all(most).await;
        stream.finish();
        said.map_err(|_| OpenError::SessionLost)
    }
}
