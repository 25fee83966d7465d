//! A client as its control socket shows it.

use std::collections::BTreeMap;

use tabane_base::Duration;
use tabane_control::{Link, LinkChange, LinkState, Path, Session, SessionState, State, Traffic};
use tabane_core::{Drops, PathSnapshot, PathStatus, SessionSnapshot, SessionStatus};
use tabane_tunnel::{Client, LinkSnapshot, LinkWish, SessionTrace};

use super::ledger::{Ledger, add, traffic};

/// Why a session is not recorded.
pub(super) const NO_TRACE: &str = "there is no such session, or it is being recorded already";

/// A client with what its links carried.
pub(super) struct ClientView {
    client: Client,
    /// By name; links that are gone keep theirs.
    ledgers: BTreeMap<String, Ledger>,
}

impl ClientView {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            ledgers: BTreeMap::new(),
        }
    }

    /// Fills in what is known of it.
    pub(super) fn look(&mut self, state: &mut State, relays: &[(String, String)]) {
        let snapshot = self.client.snapshot();
        let relay = relays.get(snapshot.relay.unwrap_or(0));
        state.instance.relay = relay.map(|(name, _)| name.clone());
        state.links = snapshot
            .links
            .iter()
            .map(|link| self.link(snapshot.sessions, link))
            .collect();
        let totals = &mut state.totals;
        for ledger in self.ledgers.values() {
            add(&mut totals.traffic, &ledger.traffic());
        }
        totals.sessions_so_far = snapshot.sessions;
        totals.drops = drops(&snapshot.counters.drops);
        if let Some(session) = &snapshot.session {
            totals.sessions = 1;
            totals.streams = session.streams as u64;
            for (reason, count) in drops(&session.drops) {
                *totals.drops.entry(reason).or_default() += count;
            }
            let mut seen = self::session(snapshot.sessions, session);
            seen.peer = relay.map(|(_, key)| key.clone());
            seen.paths
                .iter()
                .for_each(|path| add(&mut seen.traffic, &path.traffic));
            state.sessions.push(seen);
        }
    }

    fn link(&mut self, session: u64, link: &LinkSnapshot) -> Link {
        let ledger = self.ledgers.entry(link.name.clone()).or_default();
        let counted = |path: &PathSnapshot| ((session, path.id.get()), traffic(path));
        ledger.count(link.path.iter().map(counted));
        let path = link.path.as_ref().map(path);
        Link {
            name: link.name.clone(),
            state: match &path {
                _ if link.paused => LinkState::Paused,
                Some(path) => path.state,
                None => LinkState::Down,
            },
            problem: link.problem.clone(),
            weight: link.policy.weight,
            paused: link.paused,
            share: 0.0,
            share_now: None,
            traffic: ledger.traffic(),
            path,
        }
    }

    /// Has the session recorded.
    pub(super) fn trace(&self, session: Option<u64>) -> Result<SessionTrace, String> {
        let number = self.client.snapshot().sessions;
        match session {
            Some(wanted) if wanted != number => Err(format!("there is session {number} only")),
            _ => self.client.trace().ok_or_else(|| NO_TRACE.to_owned()),
        }
    }

    /// Carries out a change, of which the parts that are left out stay.
    pub(super) fn change_link(&self, name: &str, change: LinkChange) -> Result<(), String> {
        let wish = LinkWish {
            weight: change.weight,
            paused: change.paused,
        };
        let changed = self.client.wish_link(name, wish);
        changed.map_err(|error| error.to_string())
    }
}

/// Packets that were not used, by reason.
pub(super) fn drops(drops: &Drops) -> BTreeMap<String, u64> {
    let named = drops
        .iter()
        .map(|(reason, n)| (reason.name().to_owned(), n));
    named.filter(|(_, count)| *count > 0).collect()
}

/// A session, but for who and how old it is, and what it carried.
pub(super) fn session(number: u64, session: &SessionSnapshot) -> Session {
    Session {
        number,
        peer: None,
        state: match session.status {
            SessionStatus::Connecting => SessionState::Connecting,
            SessionStatus::Connected => SessionState::Connected,
            SessionStatus::Closed => SessionState::Closed,
        },
        age_s: None,
        streams: session.streams as u64,
        receive_memory_bytes: session.receive_memory.get(),
        datagrams_queued_bytes: session.datagrams_queued.get(),
        traffic: Traffic::default(),
        paths: session.paths.iter().map(path).collect(),
    }
}

fn path(path: &PathSnapshot) -> Path {
    let millis = |span: Duration| path.rtt_measured.then_some(span.as_secs_f64() * 1e3);
    Path {
        id: path.id.get(),
        state: match path.status {
            PathStatus::Opening => LinkState::Opening,
            PathStatus::Active => LinkState::Active,
            PathStatus::Silent => LinkState::Silent,
        },
        remote: path.tuple.remote.to_string(),
        rtt_ms: millis(path.rtt_smoothed),
        rtt_min_ms: millis(path.rtt_min),
        queue_ms: millis(path.rtt_smoothed.saturating_sub(path.rtt_min)),
        in_flight_bytes: path.in_flight.get(),
        cwnd_bytes: path.cwnd.get(),
        bandwidth_bps: path.delivery_rate.as_bps(),
        mtu_bytes: path.mtu.into(),
        weight: path.weight,
        backup: path.backup,
        reinjected_bytes: path.reinjected.get(),
        traffic: traffic(path),
    }
}
