//! A relay as its control socket shows it.

use std::collections::BTreeMap;

use tabane_control::{Exposure, ExposureState, Packets, State};
use tabane_core::SessionStatus;
use tabane_tunnel::{
    ExposureSnapshot, PacketsSnapshot, RelayMonitor, SessionTrace,
    shown::{Ledger, NO_TRACE, Source, drops, of_path, of_volume, session},
};

/// A relay with what its sessions carried.
pub struct RelayView {
    monitor: RelayMonitor,
    ledgers: BTreeMap<u64, Ledger>,
    /// Of sessions that are gone, packets.
    lost: u64,
}

impl RelayView {
    /// Of a relay that runs.
    pub fn new(monitor: RelayMonitor) -> Self {
        Self {
            monitor,
            ledgers: BTreeMap::new(),
            lost: 0,
        }
    }

    /// Has a session recorded.
    pub fn trace(&self, session: Option<u64>) -> Result<SessionTrace, String> {
        let number = match (
            session,
            self.ledgers.keys().copied().collect::<Vec<_>>().as_slice(),
        ) {
            (Some(number), _) => number,
            (None, [only]) => *only,
            (None, []) => return Err("there is no session at present".to_owned()),
            (None, numbers) => {
                let many = numbers.len();
                return Err(format!("there are {many} sessions: which one? (--session)"));
            }
        };
        self.monitor
            .trace(number)
            .ok_or_else(|| NO_TRACE.to_owned())
    }

    /// Fills in what is known of it.
    pub fn look(&mut self, state: &mut State) {
        let mut before = std::mem::take(&mut self.ledgers);
        let totals = &mut state.totals;
        totals.drops = drops(&self.monitor.counters().drops);
        totals.traffic = of_volume(&self.monitor.volume());
        totals.sessions_so_far = self.monitor.served();
        totals.visitors_turned_away = self.monitor.turned_away();
        state.exposures = self.monitor.exposures().iter().map(exposure).collect();
        for guest in self.monitor.guests() {
            let number = guest.number;
            let mut ledger = before.remove(&number).unwrap_or_default();
            let paths = guest.session.paths.iter();
            ledger.count(paths.map(|path| (Source::Path(number, path.id.get()), of_path(path))));
            let mut seen = session(number, &guest.session);
            seen.peer = guest.client.map(|client| client.to_string());
            seen.age_s = Some(guest.age.as_secs());
            seen.traffic = ledger.traffic();
            seen.packets = guest.packets.map(packets);
            self.ledgers.insert(number, ledger);
            // Strangers in mid-handshake are no sessions yet.
            if guest.session.status == SessionStatus::Connected {
                totals.sessions += 1;
            }
            totals.streams += seen.streams;
            totals.traffic.lost_packets += seen.traffic.lost_packets;
            state.sessions.push(seen);
        }
        let gone = before.values();
        self.lost += gone.map(|gone| gone.traffic().lost_packets).sum::<u64>();
        totals.traffic.lost_packets += self.lost;
    }
}

fn exposure(of: &ExposureSnapshot) -> Exposure {
    Exposure {
        place: format!("{}:{}", of.claim.protocol, of.claim.ports),
        host: of.name.as_ref().map(ToString::to_string),
        target: None,
        address: None,
        client: Some(of.client.to_string()),
        state: ExposureState::Open,
        problem: None,
        visitors: Vec::new(),
        visitors_now: of.visitors,
        visitors_so_far: of.visitors_so_far,
        in_vain: 0,
    }
}

fn packets(of: PacketsSnapshot) -> Packets {
    let refused = of.refused.into_iter();
    Packets {
        addresses: of.addresses,
        sent: of.sent,
        received: of.received,
        refused: refused.map(|(why, n)| (why.to_owned(), n)).collect(),
    }
}
