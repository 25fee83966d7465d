//! Routes to the networks behind other clients of the same group, as the relay tells them
//! [P-T.11].
//!
//! Owns asking in every session and following what is said. What goes there, and by whom it is let
//! in, is left to others.

use std::future::poll_fn;

use tabane_base::Duration;
use tokio::time::timeout;

use super::{Client, OpenError};
use crate::request::{Status, Transport};
use crate::routes::{MAX_NAMED_LIST, SiteList, parse_list, parse_named_list};
use crate::stream::StreamEnd;
use crate::target::Target;

/// How long until a relay that has refused is asked once more: its owner may make a user of this
/// client.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// The same where a session has ended under way, or a relay goes down.
const RETRY: Duration = Duration::from_secs(1);

impl Client {
    /// Tells `tell` all routes that others have, whenever the relay says something new, as long as
    /// there is one, and whether that is its first word in a session. What was told stays so while
    /// there is no session.
    pub async fn follow_routes(&self, tell: impl Fn(SiteList, bool)) {
        loop {
            self.until_reachable(true).await;
            match self.hear_routes(&tell).await {
                Err(OpenError::Refused(status)) => {
                    tracing::debug!(%status, "the relay tells of no routes");
                    tell(SiteList::default(), true);
                    let _ = timeout(ASK_AGAIN, self.until_reachable(false)).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "routes are not told");
                    let _ = timeout(RETRY, self.until_reachable(false)).await;
                }
                Ok(()) => {}
            }
        }
    }

    /// Hears until the stream ends, as much as the relay knows to tell.
    async fn hear_routes(&self, tell: &impl Fn(SiteList, bool)) -> Result<(), OpenError> {
        match self.hear(Transport::NamedRoutes, tell).await {
            Err(OpenError::Refused(Status::Malformed)) => self.hear(Transport::Routes, tell).await,
            heard => heard,
        }
    }

    async fn hear(&self, kind: Transport, tell: &impl Fn(SiteList, bool)) -> Result<(), OpenError> {
        let mut stream = self.open(kind, Target::Anywhere).await?;
        let ended = |end| match end {
            StreamEnd::SessionLost => OpenError::SessionLost,
            StreamEnd::Reset | StreamEnd::Finished => OpenError::Refused(Status::Malformed),
        };
        let session = stream.session();
        let takes_sources = |takes| {
            self.shared
                .takes_sources
                .send_replace(Some((session, takes)))
        };
        let status = poll_fn(|cx| stream.poll_status(cx)).await.map_err(ended)?;
        if status != Status::Open {
            takes_sources(false);
            return Err(OpenError::Refused(status));
        }
        self.shared.told_on.set(Some(session));
        takes_sources(matches!(kind, Transport::NamedRoutes));
        let parse = match kind {
            Transport::NamedRoutes => parse_named_list,
            _ => |bytes: &[u8]| {
                let list = parse_list(bytes)?;
                Ok(list.map(|(routes, used)| {
                    let domains = Vec::new();
                    (SiteList { routes, domains }, used)
                }))
            },
        };
        let mut is_first = true;
        let ended = loop {
            match stream.read_preface(MAX_NAMED_LIST, parse).await {
                Ok(Ok(list)) => tell(list, std::mem::take(&mut is_first)),
                Ok(Err(_)) => break OpenError::Refused(Status::Malformed),
                // By a relay that goes down, too.
                Err(_) => break OpenError::SessionLost,
            }
        };
        self.shared.told_on.set(None);
        Err(ended)
    }
}
