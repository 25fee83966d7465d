//! Ports of a relay that lead to a client.

use serde::{Deserialize, Serialize};

/// Ports of a relay that lead to a client, as the one or the other sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Exposure {
    /// Protocol and ports: tcp:443, udp:27015-27020.
    pub place: String,
    /// The only name of which visitors are led there. None: whoever comes.
    pub host: Option<String>,
    /// At a client: who serves the first port.
    pub target: Option<String>,
    /// At a client: where visitors find it, HOST:PORT of the relay.
    pub address: Option<String>,
    /// At a relay: the client's key.
    pub client: Option<String>,
    /// Where it stands.
    pub state: ExposureState,
    /// Why it is refused, and what to do; or that somebody else wants it, too.
    pub problem: Option<String>,
    /// At a client: who is connected; of very many some.
    pub visitors: Vec<Visitor>,
    /// At a client: how many are connected.
    pub visitors_now: u64,
    /// At a client: how many came so far.
    pub visitors_so_far: u64,
    /// Those of them for whom the target was not there.
    pub in_vain: u64,
}

/// Somebody who came to an exposed port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Visitor {
    /// Address and port.
    pub from: String,
    /// The relay's port.
    pub port: u16,
    /// Since when: seconds since 1970.
    pub since: u64,
}

/// Where an exposure stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExposureState {
    /// The relay has not answered yet, or there is none.
    Asked,
    /// The relay leads visitors to the client.
    Open,
    /// It does not; it is asked again.
    Refused,
    /// The client is away; what goes there is refused.
    Away,
}

impl ExposureState {
    /// A word for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Open => "open",
            Self::Refused => "refused",
            Self::Away => "away",
        }
    }
}
