//! What the last run measured, for `tabane links` to show. A note, not a record: that it is missing
//! or damaged is no error.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::statistics::RunReport;
use tabane_store::{atomic_file, wall_clock::unix_seconds, xdg_directory};

/// The note.
#[derive(Debug, Serialize, Deserialize)]
pub struct LastRun {
    /// Seconds since 1970.
    pub ended_at: u64,
    /// What it came to.
    pub report: RunReport,
}

/// Runs that carried less say nothing about rates.
const MIN_BYTES: u64 = 1_000_000;

/// Replaces the note, if the run is worth it.
pub fn remember(report: &RunReport) {
    let carried: u64 = report
        .links
        .iter()
        .map(|l| l.sent_bytes + l.received_bytes)
        .sum();
    if carried < MIN_BYTES {
        return;
    }
    let Some(path) = path() else { return };
    let note = LastRun {
        ended_at: unix_seconds(),
        report: report.clone(),
    };
    let written = serde_json::to_vec(&note).map_err(anyhow::Error::from);
    let written = written.and_then(|text| atomic_file::replace(&path, &text, atomic_file::PUBLIC));
    if let Err(error) = written {
        tracing::debug!("the run is not remembered: {error:#}");
    }
}

/// The note, if there is a good one.
pub fn recall() -> Option<LastRun> {
    let text = atomic_file::read(&path()?).ok()??;
    serde_json::from_str(&text).ok()
}

fn path() -> Option<PathBuf> {
    Some(xdg_directory("XDG_STATE_HOME", ".local/state")?.join("last-run.json"))
}
