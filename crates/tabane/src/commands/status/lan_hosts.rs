//! Hosts behind this machine, as a table.

use tabane_control::LanHost;

use super::{MAX_ROWS, megabytes};
use crate::output;

/// What each of them has had carried, the busiest first.
pub(super) fn table(hosts: &[LanHost]) -> Option<String> {
    let headings = ["host", "card", "now", "so far", "MB in", "MB out"];
    let row = |it: &LanHost| {
        let address = it.address.map(|address| address.to_string());
        vec![
            address.unwrap_or_else(|| "others".to_owned()),
            it.hardware.clone().unwrap_or_default(),
            it.connections.to_string(),
            it.connections_so_far.to_string(),
            megabytes(it.received_bytes),
            megabytes(it.sent_bytes),
        ]
    };
    let rows: Vec<_> = hosts.iter().take(MAX_ROWS).map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let mut table = output::table(&headings, &rows);
    if hosts.len() > MAX_ROWS {
        table.push_str(&format!("\nand {} more", hosts.len() - MAX_ROWS));
    }
    Some(table)
}
