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
pub struct PathReport {
    /// The link of ours.
    pub link: String,
    /// The peer's address.
    pub remote: String,
    /// Whether it is used.
    pub state: &'static str,
    /// Its congestion window.
    pub cwnd_bytes: u64,
    /// Sent and not known to have arrived.
    pub outstanding_bytes: u64,
    /// Its smoothed round-trip time.
    pub srtt_ms: u64,
    /// Its retransmission timeout.
    pub rto_ms: u64,
    /// The largest packet it carries.
    pub mtu_bytes: u32,
}

/// A link at the end of a transfer.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    /// The link of ours.
    pub link: String,
    /// User data it carried away, repetitions included.
    pub sent_bytes: u64,
}

/// A transfer.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was transferred.
    pub bytes: u64,
    /// From the first message to the end, without the set-up.
    pub seconds: f64,
    /// The rate, of user data.
    pub mbit_per_s: f64,
    /// The longest time in which nothing came, after the first bytes; of a receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_silence_ms: Option<u64>,
    /// Its digest, in hexadecimal.
    pub sha256: String,
    /// The other end has compared length and digest.
    pub confirmed: bool,
    /// Of a sender: what each link carried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReport>,
    /// Of a sender: the paths as they were at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathReport>,
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
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// For people.
pub fn megabytes(bytes: u64) -> String {
    match bytes {
        0..100_000 => format!("{bytes} B"),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
