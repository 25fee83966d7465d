//! What a gateway does, as values of the control API.

use std::collections::BTreeMap;

use tabane_control::{Flow, Gateway, GatewayMode, GatewayTotals, Stance};
use tabane_gateway::{Bypass, FlowSnapshot, Snapshot};

/// A gateway that has done nothing yet.
pub fn empty(radio: &str, mode: GatewayMode, draining: bool) -> Gateway {
    Gateway {
        radio: radio.to_owned(),
        mode,
        draining,
        totals: GatewayTotals::default(),
        bypassed: BTreeMap::new(),
        flows: Vec::new(),
        flows_omitted: 0,
        ended: Vec::new(),
    }
}

/// With what a gateway between packets knows, and the flows to be listed.
pub(super) fn fill(empty: Gateway, snapshot: &Snapshot, listed: &[FlowSnapshot]) -> Gateway {
    let counters = &snapshot.counters;
    let reasons = Bypass::ALL.map(|why| (why.name().to_owned(), counters.bypassed_for(why)));
    Gateway {
        totals: GatewayTotals {
            packets: counters.packets,
            malformed: counters.malformed,
            opened: counters.opened,
            fabricated: counters.fabricated,
            swallowed: counters.swallowed,
            probes_answered: counters.probes_answered,
            resent: counters.resent,
            reset: counters.reset,
            orphans_reset: counters.orphans_reset,
            uncopied: counters.uncopied,
            held_bytes: snapshot.held,
            owed_bytes: snapshot.owed,
            bytes: snapshot.figures.forwarded,
            needless_bytes: snapshot.figures.needless,
            silences: snapshot.figures.silences,
            spurious_timeouts: snapshot.figures.spurious_timeouts,
            avoided_timeouts: snapshot.figures.avoided,
            ..GatewayTotals::default()
        },
        bypassed: reasons
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect(),
        flows: listed.iter().map(flow).collect(),
        flows_omitted: snapshot.flows.saturating_sub(listed.len()) as u64,
        ended: snapshot.ended.iter().map(flow).collect(),
        ..empty
    }
}

fn flow(flow: &FlowSnapshot) -> Flow {
    let ms = |span: tabane_base::Duration| span.as_secs_f64() * 1e3;
    let figures = &flow.figures;
    let stance = match flow.stance {
        tabane_gateway::Stance::Watching => Stance::Watching,
        tabane_gateway::Stance::Assisting => Stance::Assisting,
        tabane_gateway::Stance::Draining => Stance::Draining,
    };
    Flow {
        radio_rtt_ms: flow.radio.map(ms),
        wired_rtt_ms: flow.wired.map(ms),
        bytes: figures.forwarded,
        repeated_bytes: figures.repeated,
        needless_bytes: figures.needless,
        silences: figures.silences,
        silent_ms: ms(figures.silent),
        spurious_timeouts: figures.spurious_timeouts,
        avoided_timeouts: figures.avoided,
        held_bytes: flow.held,
        owed_bytes: u64::from(flow.owed),
        shut: flow.shut,
        undoes: flow.undoes,
        ..Flow::between(flow.key.mobile, flow.key.server, stance)
    }
}
