//! A fleet as its records say it is: for its owner, and for whoever looks at one of its relays.

use tabane_control::{Fleet, FleetRelay, FleetRelayState};
use tabane_core::PublicKey;
use tabane_fleet::ListEntry;

use super::records::{ALIVE, ASKS, Alive, Asking, Records};

/// At `now` by the fleet's clock; `version` is etcd's.
pub(super) fn report(records: &Records, key: PublicKey, now: u64, version: &str) -> Fleet {
    let access = records.access();
    let list = records.relays(key);
    let entries = list.as_ref().map_or(&[][..], |list| list.entries());
    let of_list = entries.iter().map(|entry| listed(records, entry, now));
    let asking = records.all::<Asking>(ASKS).into_iter();
    let relays = of_list.chain(asking.map(|(_, it)| asks(it))).collect();
    Fleet {
        key: key.to_string(),
        own: None,
        epoch: list.as_ref().map_or(0, |list| list.epoch()),
        etcd: format!("{version}, revision {}", records.revision),
        away: None,
        users: access.users().len() as u64,
        tokens: access.tokens().len() as u64,
        clients: access.clients().len() as u64,
        relays,
        odd: records.odd.keys().cloned().collect(),
    }
}

/// How much every relay has to do that runs and says what it is meant for, in thousandths of that.
pub(super) fn loads(records: &Records, key: PublicKey) -> Vec<(PublicKey, u16)> {
    let Some(list) = records.relays(key) else {
        return Vec::new();
    };
    let entries = list.entries().iter().filter(|entry| entry.capacity > 0);
    let loads = entries.filter_map(|entry| {
        let name = &entry.certificate.name;
        let alive: Alive = records.value(&format!("{ALIVE}{name}"))?;
        let thousandths = alive.sessions.saturating_mul(1_000) / u64::from(entry.capacity);
        Some((
            entry.certificate.key,
            u16::try_from(thousandths).unwrap_or(u16::MAX),
        ))
    });
    loads.collect()
}

fn listed(records: &Records, entry: &ListEntry, now: u64) -> FleetRelay {
    let name = &entry.certificate.name;
    let alive: Option<Alive> = records.value(&format!("{ALIVE}{name}"));
    let state = match (&alive, entry.draining) {
        (_, true) => FleetRelayState::Draining,
        (Some(_), false) => FleetRelayState::Up,
        (None, false) => FleetRelayState::Down,
    };
    // By its own clock, and how far that is behind.
    let since = |it: &Alive| it.since.saturating_add_signed(it.clock_behind_s);
    let up_s = alive.as_ref().map(|it| now.saturating_sub(since(it)));
    let alive = alive.unwrap_or_default();
    FleetRelay {
        name: name.clone(),
        state,
        region: entry.region.clone(),
        addresses: entry.addresses.iter().map(ToString::to_string).collect(),
        key: entry.certificate.key.to_string(),
        sessions: alive.sessions,
        capacity: entry.capacity,
        carried_bytes: alive.carried_bytes,
        up_s,
        version: alive.version,
        clock_behind_s: alive.clock_behind_s,
    }
}

fn asks(asking: Asking) -> FleetRelay {
    FleetRelay {
        name: asking.name,
        state: FleetRelayState::Asks,
        region: asking.region,
        addresses: asking.addresses,
        key: asking.key,
        sessions: 0,
        capacity: 0,
        carried_bytes: 0,
        up_s: None,
        version: String::new(),
        clock_behind_s: 0,
    }
}
