//! A relay as its control socket shows it.

use tabane_control::{
    Exposure, ExposureState, InstanceView, LinkChange, Pace, Packets, RuleAnswer, RuleQuestion,
    SessionExit, SiteRoute, State, TraceBatch,
};
use tabane_core::SessionStatus;
use tabane_tunnel::{
    ExitSnapshot, ExposureSnapshot, PacketsSnapshot, RelayMonitor, RouteSnapshot,
    shown::{NO_TRACE, drops, happened, of_session, of_volume, session},
};
use tokio::sync::mpsc;

#[cfg(feature = "fleet")]
use crate::fleet::FleetView;
use crate::gatekeeper::Gatekeeper;

/// What can be seen of a relay.
pub struct RelayView {
    monitor: RelayMonitor,
    #[cfg(feature = "fleet")]
    fleet: Option<FleetView>,
}

impl RelayView {
    /// Of a relay that runs.
    pub(crate) fn new(monitor: RelayMonitor, gatekeeper: &Gatekeeper) -> Self {
        #[cfg(not(feature = "fleet"))]
        let _ = gatekeeper;
        Self {
            #[cfg(feature = "fleet")]
            fleet: gatekeeper.fleet_view(),
            monitor,
        }
    }
}

impl InstanceView for RelayView {
    /// It has too many sessions for looks that nobody wants.
    const PACE: Pace = Pace::WhenAsked;

    async fn changed(&self) {
        self.monitor.journal().changed().await;
    }

    fn change_link(&mut self, _: &str, _: LinkChange) -> Result<(), String> {
        Err("a relay has no links to change".to_owned())
    }

    fn explain(&self, _: RuleQuestion) -> Result<RuleAnswer, String> {
        Err("a relay has no rules".to_owned())
    }

    async fn record(&self, session: Option<u64>) -> Result<mpsc::Receiver<TraceBatch>, String> {
        let number = match session {
            Some(number) => number,
            None => {
                let guests = self.monitor.count().await.guests;
                match guests.as_slice() {
                    [only] => only.number,
                    [] => return Err("there is no session at present".to_owned()),
                    many => {
                        let many = many.len();
                        return Err(format!("there are {many} sessions: which one? (--session)"));
                    }
                }
            }
        };
        let record = self.monitor.record(number).await;
        record.ok_or_else(|| NO_TRACE.to_owned())
    }

    async fn look(&mut self, state: &mut State) {
        state.events = happened(&self.monitor.journal());
        let seen = self.monitor.look().await;
        let totals = &mut state.totals;
        totals.drops = drops(&seen.counters.drops);
        totals.traffic = of_volume(&seen.volume);
        totals.traffic.lost_packets = seen.lost_packets;
        totals.sessions_so_far = self.monitor.served();
        totals.visitors_turned_away = self.monitor.turned_away();
        state.exposures = self.monitor.exposures().iter().map(exposure).collect();
        state.routes = self.monitor.routes().iter().map(route).collect();
        if seen.workers > 1 {
            totals.sessions_by_worker = vec![0; seen.workers];
        }
        for guest in seen.guests {
            let number = guest.number;
            let mut seen = session(number, &guest.session);
            seen.worker = Some(guest.worker);
            seen.peer = guest.client.map(|client| client.to_string());
            seen.age_s = Some(guest.age.as_secs());
            seen.traffic = of_session(&guest.session);
            seen.packets = guest.packets.map(packets);
            seen.exit = guest.exit.map(exit);
            // Strangers in mid-handshake are no sessions yet.
            if guest.session.status == SessionStatus::Connected {
                totals.sessions += 1;
                if let Some(sessions) = totals.sessions_by_worker.get_mut(guest.worker) {
                    *sessions += 1;
                }
            }
            totals.streams += seen.streams;
            totals.traffic.lost_packets += seen.traffic.lost_packets;
            state.sessions.push(seen);
        }
        #[cfg(feature = "fleet")]
        if let Some(fleet) = &mut self.fleet {
            state.fleet = fleet.look().await;
        }
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

fn route(of: &RouteSnapshot) -> SiteRoute {
    SiteRoute {
        prefix: of.what.clone(),
        is_own: false,
        user: Some(of.user.clone()),
        client: Some(of.client.to_string()),
        state: match of.is_here {
            true => ExposureState::Open,
            false => ExposureState::Away,
        },
        problem: None,
        now: of.calls,
        so_far: of.calls_so_far,
        in_vain: 0,
    }
}

fn exit(of: ExitSnapshot) -> SessionExit {
    SessionExit {
        user: of.user,
        addresses: of.addresses,
        missing: of.missing.iter().map(ToString::to_string).collect(),
        refused: of.refused,
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
