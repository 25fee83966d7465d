//! A fleet's metrics, each with the relay as label: the same from a relay of the fleet, which is
//! scraped, and from its owner's `tabane fleet status --prometheus`.

use super::{Family, head, sample, single};
use crate::state::{Fleet, FleetRelay, FleetRelayState};

/// A relay's value.
type OfRelay = fn(&FleetRelay) -> f64;

const FAMILIES: [(Family, OfRelay); 7] = [
    (
        ("fleet_relay_up", "gauge", "1 while the relay serves."),
        |relay| is(relay, FleetRelayState::Up),
    ),
    (
        (
            "fleet_relay_draining",
            "gauge",
            "1 while the relay takes nobody new.",
        ),
        |relay| is(relay, FleetRelayState::Draining),
    ),
    (
        (
            "fleet_relay_asking",
            "gauge",
            "1 while the relay asks to be let in.",
        ),
        |relay| is(relay, FleetRelayState::Asks),
    ),
    (
        ("fleet_relay_sessions", "gauge", "Sessions at the relay."),
        |relay| relay.sessions as f64,
    ),
    (
        (
            "fleet_relay_capacity",
            "gauge",
            "Sessions it is meant for; 0: nobody has said.",
        ),
        |relay| f64::from(relay.capacity),
    ),
    (
        (
            "fleet_relay_carried_bytes_total",
            "counter",
            "Bytes carried since its start.",
        ),
        |relay| relay.carried_bytes as f64,
    ),
    (
        (
            "fleet_relay_clock_behind_seconds",
            "gauge",
            "Its clock against etcd's.",
        ),
        |relay| relay.clock_behind_s as f64,
    ),
];

pub(super) fn render(text: &mut String, fleet: &Fleet) {
    for (family, value) in &FAMILIES {
        head(text, family);
        for relay in &fleet.relays {
            let labels = [("relay", &relay.name[..]), ("region", &relay.region)];
            sample(text, family.0, &labels, Some(value(relay)));
        }
    }
    for (name, help, value) in [
        (
            "fleet_list_epoch",
            "Counts the lists of relays.",
            fleet.epoch as f64,
        ),
        (
            "fleet_etcd_away",
            "1 while etcd does not answer who is asked here.",
            f64::from(u8::from(fleet.away.is_some())),
        ),
        ("fleet_users", "Users of the fleet.", fleet.users as f64),
        (
            "fleet_tokens",
            "Tokens that still admit.",
            fleet.tokens as f64,
        ),
        (
            "fleet_clients",
            "Clients that were admitted.",
            fleet.clients as f64,
        ),
        (
            "fleet_odd_values",
            "Values in etcd that nobody understands.",
            fleet.odd.len() as f64,
        ),
    ] {
        single(text, (name, "gauge", help), value);
    }
}

fn is(relay: &FleetRelay, state: FleetRelayState) -> f64 {
    f64::from(u8::from(relay.state == state))
}
