//! Packets outside of streams, as `tabane status` shows them.

use std::net::IpAddr;

use tabane_control::{Session, State};

use super::MAX_ROWS;

/// What is neither TCP nor UDP, by the addresses that it bears at the relay.
pub(super) fn lines(state: &State) -> Option<String> {
    let line = |session: &Session| {
        let packets = session.packets.as_ref()?;
        let addresses = match &packets.addresses[..] {
            [] => "pings".to_owned(),
            given => given
                .iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        };
        let refused = packets
            .refused
            .iter()
            .map(|(why, n)| format!(", {n} {why}"));
        Some(format!(
            "packets  session {}, {addresses}: {} out, {} back{}",
            session.number,
            packets.sent,
            packets.received,
            refused.collect::<String>(),
        ))
    };
    let lines: Vec<String> = state
        .sessions
        .iter()
        .filter_map(line)
        .take(MAX_ROWS)
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
