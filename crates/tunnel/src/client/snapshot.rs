//! A client at one moment, for whoever looks at it.

use tabane_base::Duration;
use tabane_core::{
    CloseReason, EndpointCounters, PathPolicy, PathSnapshot, PublicKey, SessionSnapshot,
    monitor::LinkEstimate,
};

use super::Client;
use super::carrier::{Carrier, CarrierMemory};
use super::packets::PacketsCarried;
use super::standing::Standing;
use crate::engine::Volume;

/// Where a client stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// There is no session; a new one is being set up. Holds why the last one ended.
    Connecting(CloseReason),
    /// There is a session.
    Connected,
    /// It is over; no session will follow.
    Closed(CloseReason),
}

/// A client at one moment.
#[derive(Clone, Debug)]
pub struct ClientSnapshot {
    /// Where it stands.
    pub state: ClientState,
    /// The place, in the list of relays, of the one in use, or used last.
    pub relay: Option<usize>,
    /// What it is called, and its key.
    pub relay_named: Option<(String, PublicKey)>,
    /// Its links, in the order they were added.
    pub links: Vec<LinkSnapshot>,
    /// The session, where there is one.
    pub session: Option<SessionSnapshot>,
    /// Sessions so far, the present one included; more than one says that it was lost.
    pub sessions: u64,
    /// The number of the present session, or the last.
    pub number: u64,
    /// Counters over all sessions.
    pub counters: EndpointCounters,
    /// What was carried beside TCP and UDP, where anything is.
    pub packets: Option<PacketsCarried>,
}

/// One link at one moment.
#[derive(Clone, Debug)]
pub struct LinkSnapshot {
    /// Its name.
    pub name: String,
    /// How it may be used.
    pub policy: PathPolicy,
    /// What carries its packets.
    pub carrier: Carrier,
    /// To which UDP port of the relay's, where that is not its own.
    pub carrier_port: Option<u16>,
    /// Why that, where it is not as usual.
    pub carrier_why: Option<String>,
    /// What its network has taught of carriers, once it has.
    pub memory: Option<CarrierMemory>,
    /// The path over it, where there is one.
    pub path: Option<PathSnapshot>,
    /// What this client has sent and received over it, by whatever session.
    pub volume: Volume,
    /// What the host's monitor believes of it, by way of whatever session.
    pub estimate: Option<LinkEstimate>,
    /// Why it cannot be used, in one line.
    pub problem: Option<String>,
    /// The user wishes it not to be used at all.
    pub paused: bool,
}

impl LinkSnapshot {
    /// What carries its packets, in a word: `udp`, `udp:443`, `tls`.
    #[must_use]
    pub fn carried_by(&self) -> String {
        match self.carrier_port {
            Some(port) => format!("{}:{port}", self.carrier),
            None => self.carrier.to_string(),
        }
    }

    /// There and back over this link, at the latest; `None` before anything is measured.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        let (latest, _) = self.path.as_ref()?.link_round_trip()?;
        Some(latest)
    }
}

impl Client {
    /// What has been sent and received over a link so far, be it gone.
    #[must_use]
    pub fn volume(&self, link: &str) -> Volume {
        self.shared.engine.volume(link)
    }

    /// What there is to know at this moment.
    #[must_use]
    pub fn snapshot(&self) -> ClientSnapshot {
        let shared = &self.shared;
        let session = shared
            .session()
            .and_then(|session| shared.engine.snapshot(session));
        let links = shared.links.borrow();
        ClientSnapshot {
            state: match &*shared.standing.borrow() {
                Standing::Connecting(reason) => ClientState::Connecting(reason.clone()),
                Standing::Connected(_) => ClientState::Connected,
                Standing::Closed(reason) => ClientState::Closed(reason.clone()),
            },
            relay: shared.relay.get(),
            relay_named: shared.relay.get().map(|relay| shared.called(relay)),
            links: links
                .iter()
                .map(|link| link.snapshot(session.as_ref(), &shared.engine, &shared.config.monitor))
                .collect(),
            session,
            sessions: shared.sessions.get(),
            number: shared.number.get(),
            counters: shared.engine.counters(),
            packets: shared
                .packets
                .borrow()
                .upgrade()
                .map(|it| it.borrow().clone()),
        }
    }
}
