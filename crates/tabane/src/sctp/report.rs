//! What a transfer tells: while it goes on, and at its end.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Instant;

use serde::Serialize;
use tabane_base::{Bytes, Duration, Rate};

/// How often the line on the terminal changes.
const PROGRESS: Duration = Duration::from_millis(500);

/// A path at the end of a transfer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathReport {
    pub(crate) link: String,
    pub(crate) remote: String,
    pub(crate) state: &'static str,
    pub(crate) cwnd_bytes: u64,
    /// Sent and not known to have arrived.
    pub(crate) outstanding_bytes: u64,
    pub(crate) srtt_ms: u64,
    pub(crate) rto_ms: u64,
    pub(crate) mtu_bytes: u32,
}

/// A link at the end of a transfer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkReport {
    pub(crate) link: String,
    /// User data it carried away, repetitions included.
    pub(crate) sent_bytes: u64,
}

/// A transfer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) bytes: u64,
    /// From the first message to the end, without the set-up.
    pub(crate) seconds: f64,
    pub(crate) mbit_per_s: f64,
    /// The longest time in which nothing came, after the first bytes; of a receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) longest_silence_ms: Option<u64>,
    pub(crate) sha256: String,
    /// The other end has compared length and digest.
    pub(crate) confirmed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) links: Vec<LinkReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<PathReport>,
}

impl Report {
    pub(crate) fn new(bytes: u64, begun_at: Instant, sha256: String, confirmed: bool) -> Self {
        let elapsed = begun_at.elapsed();
        Self {
            bytes,
            seconds: elapsed.as_secs_f64(),
            mbit_per_s: Rate::of(Bytes::new(bytes), elapsed).as_mbps_f64(),
            longest_silence_ms: None,
            sha256,
            confirmed,
            links: Vec::new(),
            paths: Vec::new(),
        }
    }
}

/// A line on stderr that is written over, where stderr is a terminal.
pub(crate) struct Progress {
    shown_at: Option<Instant>,
    since: Instant,
    last: BTreeMap<String, u64>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            shown_at: None,
            since: Instant::now(),
            last: BTreeMap::new(),
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Shows how far it is, if it is time to. `carried`: bytes by link, up to now.
    pub(crate) fn show(
        &mut self,
        done: u64,
        whole: Option<u64>,
        carried: impl FnOnce() -> Vec<(String, u64)>,
    ) {
        let is_due = self.shown_at.is_none_or(|at| at.elapsed() >= PROGRESS);
        if !self.is_terminal || !is_due {
            return;
        }
        let span = self.since.elapsed();
        let mut line = match whole {
            Some(whole) => format!("{} of {}", megabytes(done), megabytes(whole)),
            None => megabytes(done),
        };
        for (link, bytes) in carried() {
            let before = self.last.insert(link.clone(), bytes).unwrap_or(0);
            let rate = Rate::of(Bytes::new(bytes.saturating_sub(before)), span);
            line += &format!("  {link} {:.1} Mbit/s", rate.as_mbps_f64());
        }
        self.since = Instant::now();
        self.shown_at = Some(self.since);
        let mut err = std::io::stderr().lock();
        // A terminal that has gone away misses nothing.
        let _ = write!(err, "\r\x1b[K{line}");
        let _ = err.flush();
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if self.is_terminal && self.shown_at.take().is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

/// For people.
pub(crate) fn megabytes(bytes: u64) -> String {
    match bytes {
        0..100_000 => format!("{bytes} B"),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
