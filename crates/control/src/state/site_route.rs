//! Routes to networks behind clients of a relay.

use serde::{Deserialize, Serialize};

use super::ExposureState;

/// A network behind a client, as that client, another of its group or the relay sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteRoute {
    /// The addresses that lead there: 192.168.20.0/24.
    pub prefix: String,
    /// At a client: the network is behind this one.
    pub is_own: bool,
    /// Whose client it is behind; of an own one, none.
    pub user: Option<String>,
    /// At a relay: the client's key.
    pub client: Option<String>,
    /// Where it stands.
    pub state: ExposureState,
    /// Why it is refused, and what to do; or what else stands in its way.
    pub problem: Option<String>,
    /// Connections and flows that are led there; of others' routes, not known to a client.
    pub now: u64,
    /// The same so far.
    pub so_far: u64,
    /// Of an own one: those for whom nobody was there.
    pub in_vain: u64,
}
