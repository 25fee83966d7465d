//! States as other modules' tests want them.

use super::*;
use crate::clock_instant::ClockInstant;
use crate::gateway::{Flow, GatewayMode, GatewayTotals, Stance};

pub(crate) fn session(number: u64) -> Session {
    Session {
        number,
        straight_to: None,
        peer: Some("AQEBAQEB".to_owned()),
        worker: None,
        state: SessionState::Connected,
        age_s: Some(12),
        streams: 3,
        receive_memory_bytes: 1_000,
        datagrams_queued_bytes: 0,
        traffic: Traffic::default(),
        packets: None,
        exit: None,
        paths: vec![path()],
    }
}

fn path() -> Path {
    Path {
        id: 1,
        state: LinkState::Active,
        remote: "192.0.2.1:4510".to_owned(),
        rtt_ms: Some(20.0),
        rtt_min_ms: Some(15.0),
        queue_ms: Some(5.0),
        in_flight_bytes: 10_000,
        cwnd_bytes: 40_000,
        bandwidth_bps: 20_000_000,
        silent_ms: Some(5),
        mtu_bytes: 1_452,
        weight: 1.0,
        backup: false,
        reinjected_bytes: 0,
        traffic: Traffic::default(),
    }
}

fn link(name: &str) -> Link {
    Link {
        share: 0.5,
        traffic: Traffic {
            received_bytes: 1_000_000,
            ..Traffic::default()
        },
        path: Some(path()),
        ..Link::new(name, LinkState::Active)
    }
}

/// As one of its three relays sees it.
pub(crate) fn fleet() -> Fleet {
    let relay = |name: &str, state, region: &str| FleetRelay {
        name: name.to_owned(),
        state,
        region: region.to_owned(),
        addresses: vec!["192.0.2.1:4510".to_owned()],
        key: "AQEBAQEB".to_owned(),
        sessions: 7,
        capacity: 100,
        carried_bytes: 5_000_000,
        up_s: Some(60),
        version: "0.1.0".to_owned(),
        clock_behind_s: -60,
    };
    Fleet {
        key: "AgICAgIC".to_owned(),
        own: Some("oslo".to_owned()),
        epoch: 3,
        etcd: "3.5.4, revision 9".to_owned(),
        away: None,
        users: 1,
        tokens: 0,
        clients: 2,
        relays: vec![
            relay("oslo", FleetRelayState::Up, "no\"rth"),
            relay("rome", FleetRelayState::Draining, ""),
            relay("lima", FleetRelayState::Asks, ""),
        ],
        odd: vec!["user/ann".to_owned()],
    }
}

/// A client with two links and one session.
pub(crate) fn example() -> State {
    State {
        api: API_VERSION,
        at_unix_ms: 1_700_000_000_000,
        instance: Instance {
            name: "run-7".to_owned(),
            kind: Kind::Run,
            pid: 7,
            version: "0.1.0".to_owned(),
            started_at_unix_ms: 1_699_999_990_000,
            started_at: ClockInstant::default(),
            about: "curl".to_owned(),
            relay: Some("home".to_owned()),
            http: None,
        },
        condition: Condition::Up,
        problems: Vec::new(),
        totals: Totals {
            drops: [("replayed".to_owned(), 2)].into(),
            ..Totals::default()
        },
        silent_ms: Some(5),
        policy_fault: None,
        limit: None,
        multipath: Multipath::default(),
        exposures: Vec::new(),
        fleet: None,
        lan_hosts: Vec::new(),
        routes: Vec::new(),
        links: vec![link("wlan0"), link("usb0")],
        sessions: vec![session(1)],
        sessions_omitted: 0,
        rules: vec![RuleUse {
            rule: Some("calls".to_owned()),
            text: "redundant".to_owned(),
            connections: 1,
            connections_so_far: 3,
            sent_bytes: 4_000,
            received_bytes: 5_000,
        }],
        gateway: None,
        events: vec![Event {
            number: 1,
            at_unix_ms: 1_699_999_990_100,
            kind: EventKind::SessionUp,
            link: None,
            session: Some(1),
            text: "session up".to_owned(),
        }],
        process: Process::default(),
    }
}

/// One flow is listed, and 41 are not.
pub(crate) fn gateway() -> Gateway {
    let ends = ["10.0.0.2:40000", "192.0.2.1:443"].map(|end| end.parse().unwrap());
    Gateway {
        radio: "wwan0".to_owned(),
        mode: GatewayMode::Assist,
        draining: false,
        totals: GatewayTotals::default(),
        bypassed: [("mid-flow".to_owned(), 3)].into(),
        flows: vec![Flow::between(ends[0], ends[1], Stance::Assisting)],
        flows_omitted: 41,
        ended: Vec::new(),
    }
}
