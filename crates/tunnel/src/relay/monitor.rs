//! A relay seen and steered from outside while it runs.

use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{CloseReason, EndpointCounters, PublicKey, SessionSnapshot};

use super::Shared;
use super::exit::PacketsSnapshot;
use super::front_doors::ExposureSnapshot;
use crate::engine::{Engine, SessionId, Volume};
use crate::journal::Journal;
use crate::trace::SessionTrace;

/// One session at a relay at one moment.
#[derive(Clone, Debug)]
pub struct GuestSnapshot {
    /// Counts the relay's sessions.
    pub number: u64,
    /// The client's key, once proved.
    pub client: Option<PublicKey>,
    /// Since its first packet.
    pub age: Duration,
    /// What it is doing.
    pub session: SessionSnapshot,
    /// What its packets have come to, where it has addresses for them.
    pub packets: Option<PacketsSnapshot>,
}

/// What a running relay is doing.
#[derive(Clone)]
pub struct RelayMonitor {
    pub(super) engine: Engine,
    pub(super) shared: Rc<Shared>,
}

impl RelayMonitor {
    /// The sessions there are.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionSnapshot> {
        let sessions = self.engine.sessions();
        let snapshot = |session: SessionId| self.engine.snapshot(session);
        sessions.into_iter().filter_map(snapshot).collect()
    }

    /// What has been carried, sessions that have ended included.
    #[must_use]
    pub fn volume(&self) -> Volume {
        self.engine.whole_volume()
    }

    /// Ends the sessions of keys that `leave` gives a reason for, and tells their clients.
    pub fn turn_out(&self, mut leave: impl FnMut(PublicKey) -> Option<CloseReason>) {
        for session in self.engine.sessions() {
            self.engine.visit(session, |visit| {
                let session = &visit.session;
                if let Some(key) = session.peer_key()
                    && session.is_connected()
                    && let Some(reason) = leave(key)
                {
                    visit.session.close(visit.now, reason);
                    visit.touch();
                }
            });
        }
    }

    /// The sessions there are, with whose they are.
    #[must_use]
    pub fn guests(&self) -> Vec<GuestSnapshot> {
        let guest = |id: SessionId| {
            let (client, age) = self.engine.guest(id)?;
            Some(GuestSnapshot {
                number: id.serial(),
                client,
                age,
                session: self.engine.snapshot(id)?,
                packets: self
                    .shared
                    .exit
                    .as_ref()
                    .and_then(|exit| exit.tally(id.serial())),
            })
        };
        self.engine
            .sessions()
            .into_iter()
            .filter_map(guest)
            .collect()
    }

    /// Has a session recorded, by its number, until the result is dropped. `None` when there is no
    /// such session, or somebody has it recorded already.
    #[must_use]
    pub fn trace(&self, number: u64) -> Option<SessionTrace> {
        let sessions = self.engine.sessions();
        let session = sessions.into_iter().find(|id| id.serial() == number)?;
        SessionTrace::start(&self.engine, session)
    }

    /// Which ports lead to which clients.
    #[must_use]
    pub fn exposures(&self) -> Vec<ExposureSnapshot> {
        self.shared.front_doors.snapshot()
    }

    /// Visitors of such ports so far whom nobody was asked about: too many, or for nobody.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.shared.front_doors.turned_away()
    }

    /// What happened lately.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.clone()
    }

    /// Sessions let in so far.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.shared.served.get()
    }

    /// Counters over all sessions, drops by reason among them.
    #[must_use]
    pub fn counters(&self) -> EndpointCounters {
        self.engine.counters()
    }
}
