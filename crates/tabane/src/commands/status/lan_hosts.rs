//! Hosts behind this machine, as a table.

use tabane_control::LanHost;

use super::{MAX_ROWS, megabytes};
use crate::output;

/// What each of them has had carried, the busiest first.
pub(super) fn table(hosts: &[LanHost]) -> Option<String> {
    if hosts.is_empty() {
        return None;
    }
    let address = |it: &LanHost| it.address.map(|address| address.to_string());
    let mut table = output::items(
        &hosts[..hosts.len().min(MAX_ROWS)],
        &[
            ("host", &|it| {
                address(it).unwrap_or_else(|| "others".to_owned())
            }),
            ("card", &|it| it.hardware.clone().unwrap_or_default()),
            ("now", &|it| it.connections.to_string()),
            ("so far", &|it| it.connections_so_far.to_string()),
            ("MB in", &|it| megabytes(it.received_bytes)),
            ("MB out", &|it| megabytes(it.sent_bytes)),
        ],
    );
    if hosts.len() > MAX_ROWS {
        table.push_str(&format!("\nand {} more", hosts.len() - MAX_ROWS));
    }
    Some(table)
}
