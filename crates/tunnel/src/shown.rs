//! Sessions in the words of the control API: what any instance that has some shows of them.
//!
//! Owns how snapshots, records and what was carried become its plain values; what an instance says
//! beside that is its own. Pure but for [`follow_record`].

mod happened;
mod ledger;
mod record;

use std::collections::BTreeMap;

use tabane_base::{Duration, Instant};
use tabane_control::{LinkState, Path, Session, SessionState, Traffic};
use tabane_core::{Drops, PathSnapshot, PathStatus, SessionSnapshot, SessionStatus};

pub use happened::happened;
pub use ledger::{Ledger, Source, add, of_path, of_session, of_volume};
pub use record::follow_record;

/// Why a session is not recorded.
pub const NO_TRACE: &str = "there is no such session, or it is being recorded already";

/// Packets that were not used, by reason.
pub fn drops(drops: &Drops) -> BTreeMap<String, u64> {
    let named = drops
        .iter()
        .map(|(reason, n)| (reason.name().to_owned(), n));
    named.filter(|(_, count)| *count > 0).collect()
}

/// A session, but for who and how old it is, and what it carried.
pub fn session(number: u64, session: &SessionSnapshot) -> Session {
    Session {
        number,
        peer: None,
        straight_to: None,
        worker: None,
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
        packets: None,
        exit: None,
        paths: session
            .paths
            .iter()
            .map(|it| path(it, session.at))
            .collect(),
    }
}

/// As it was `at` this time.
pub fn path(path: &PathSnapshot, at: Instant) -> Path {
    let of = |span: Duration| span.as_secs_f64() * 1e3;
    let millis = |span: Duration| path.rtt_measured.then_some(of(span));
    let round_trip = path.link_round_trip();
    Path {
        id: path.id.get(),
        state: match path.status {
            PathStatus::Opening => LinkState::Opening,
            PathStatus::Active => LinkState::Active,
            PathStatus::Silent => LinkState::Silent,
        },
        remote: path.tuple.remote.to_string(),
        rtt_ms: round_trip.map(|(latest, _)| of(latest)),
        rtt_min_ms: round_trip.map(|(_, least)| of(least)),
        queue_ms: millis(path.rtt_smoothed.saturating_sub(path.rtt_min)),
        in_flight_bytes: path.in_flight.get(),
        cwnd_bytes: path.cwnd.get(),
        bandwidth_bps: path.delivery_rate.as_bps(),
        silent_ms: Some(whole_millis(at.since(path.last_received_at))),
        mtu_bytes: path.mtu.into(),
        weight: path.weight,
        backup: path.backup,
        reinjected_bytes: path.reinjected.get(),
        traffic: of_path(path),
    }
}

/// In whole milliseconds.
pub fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
