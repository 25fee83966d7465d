//! A gateway's metrics, each with the interface as a label, because one machine may have several.

use super::{Family, head, sample};
use crate::gateway::Gateway;

/// A gateway's value.
type OfGateway = fn(&Gateway) -> u64;

const FAMILIES: [(Family, OfGateway); 20] = [
    (
        ("gateway_flows", "gauge", "Connections there are."),
        Gateway::flow_count,
    ),
    (
        ("gateway_held_bytes", "gauge", "Bytes of copies."),
        |gateway| gateway.totals.held_bytes,
    ),
    (
        (
            "gateway_owed_bytes",
            "gauge",
            "Acknowledged to servers, and not by mobile hosts.",
        ),
        |gateway| gateway.totals.owed_bytes,
    ),
    (
        (
            "gateway_silences_total",
            "counter",
            "Silences of the radio link longer than a sender's timer.",
        ),
        |gateway| gateway.totals.silences,
    ),
    (
        (
            "gateway_spurious_timeouts_total",
            "counter",
            "Servers' timeouts for nothing.",
        ),
        |gateway| gateway.totals.spurious_timeouts,
    ),
    (
        (
            "gateway_avoided_timeouts_total",
            "counter",
            "Silences that would have been such a timeout.",
        ),
        |gateway| gateway.totals.avoided_timeouts,
    ),
    (
        (
            "gateway_bytes_total",
            "counter",
            "New data that went on to mobile hosts.",
        ),
        |gateway| gateway.totals.bytes,
    ),
    (
        (
            "gateway_needless_bytes_total",
            "counter",
            "Sent again by servers though it had arrived or was arriving.",
        ),
        |gateway| gateway.totals.needless_bytes,
    ),
    (
        ("gateway_packets_total", "counter", "Packets seen."),
        |gateway| gateway.totals.packets,
    ),
    (
        (
            "gateway_malformed_total",
            "counter",
            "Packets not understood; they passed.",
        ),
        |gateway| gateway.totals.malformed,
    ),
    (
        (
            "gateway_flows_opened_total",
            "counter",
            "Connections whose handshake was seen.",
        ),
        |gateway| gateway.totals.opened,
    ),
    (
        (
            "gateway_acks_fabricated_total",
            "counter",
            "Acknowledgements written in mobile hosts' name.",
        ),
        |gateway| gateway.totals.fabricated,
    ),
    (
        (
            "gateway_acks_swallowed_total",
            "counter",
            "Mobile hosts' own that went no further.",
        ),
        |gateway| gateway.totals.swallowed,
    ),
    (
        (
            "gateway_probes_answered_total",
            "counter",
            "Servers' window probes answered.",
        ),
        |gateway| gateway.totals.probes_answered,
    ),
    (
        (
            "gateway_copies_resent_total",
            "counter",
            "Copies sent again.",
        ),
        |gateway| gateway.totals.resent,
    ),
    (
        (
            "gateway_uncopied_total",
            "counter",
            "Segments that went on without a copy, for want of room.",
        ),
        |gateway| gateway.totals.uncopied,
    ),
    (
        (
            "gateway_flows_reset_total",
            "counter",
            "Connections reset because the mobile host was gone.",
        ),
        |gateway| gateway.totals.reset,
    ),
    (
        (
            "gateway_orphans_reset_total",
            "counter",
            "Connections reset that an earlier gateway owed bytes to.",
        ),
        |gateway| gateway.totals.orphans_reset,
    ),
    (
        (
            "gateway_connections_joined_total",
            "counter",
            "Connections joined (split).",
        ),
        |gateway| gateway.totals.joined,
    ),
    (
        (
            "gateway_carried_bytes_total",
            "counter",
            "Bytes carried in both directions (split).",
        ),
        |gateway| gateway.totals.carried_bytes,
    ),
];

const BYPASSED: Family = (
    "gateway_flows_bypassed_total",
    "counter",
    "Connections left alone, by reason.",
);

pub(super) fn render(text: &mut String, gateway: &Gateway) {
    let radio = &gateway.radio[..];
    for (family, value) in &FAMILIES {
        head(text, family);
        let value = value(gateway) as f64;
        sample(text, family.0, &[("radio", radio)], Some(value));
    }
    head(text, &BYPASSED);
    for (reason, count) in &gateway.bypassed {
        let labels = [("radio", radio), ("reason", &reason[..])];
        sample(text, BYPASSED.0, &labels, Some(*count as f64));
    }
}
