//! iperf3: one TCP connection, and what the receiving application got of it.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What the receiving end has read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Goodput {
    /// Over the whole run, its beginning included.
    pub(super) bps: f64,
    pub(super) bytes: u64,
    /// Per second of the run, as the client sees it.
    pub(super) intervals_bps: Vec<f64>,
}

/// Adds the arguments of a server for one test to `command`.
pub(super) fn server(command: &mut Command) {
    command.args(["--server", "--one-off", "--forceflush"]);
}

/// What the server prints when it can be reached.
pub(super) const LISTENING: &str = "Server listening";

/// Adds the arguments of a client to `command`.
pub(super) fn client(command: &mut Command, server: Ipv4Addr, seconds: u64, upload: bool) {
    let (server, seconds) = (server.to_string(), seconds.to_string());
    command.args(["--client", &server, "--time", &seconds, "--json"]);
    command.args(["--connect-timeout", "5000"]);
    if !upload {
        command.arg("--reverse");
    }
}

/// How long the client may take beyond its seconds: connecting, and the exchange of results
/// behind what is queued on slow links.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Reads a client's report.
pub(super) fn parse(report: &str) -> Result<Goodput> {
    let report: Value = serde_json::from_str(report).context("iperf3 gave no report")?;
    if let Some(error) = report.get("error").and_then(Value::as_str) {
        bail!("iperf3: {error}");
    }
    let sum = report.pointer("/end/sum_received");
    let number = |key| sum.and_then(|sum| sum.get(key)?.as_f64());
    let bytes = number("bytes").context("iperf3 reports no received bytes")?;
    let seconds = number("seconds").context("iperf3 reports no time")?;
    let intervals = report.get("intervals").and_then(Value::as_array);
    let intervals_bps = intervals
        .into_iter()
        .flatten()
        .filter_map(|interval| interval.pointer("/sum/bits_per_second")?.as_f64())
        .collect();
    Ok(Goodput {
        bps: bytes * 8.0 / seconds,
        bytes: bytes as u64,
        intervals_bps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_sum_counts() {
        let report = r#"{
            "intervals": [{"sum": {"bits_per_second": 7.0}}, {"sum": {"bits_per_second": 9.0}}],
            "end": {
                "sum_sent": {"bytes": 9000, "seconds": 2.0},
                "sum_received": {"bytes": 1000, "seconds": 2.0}
            }
        }"#;
        let goodput = parse(report).unwrap();
        assert_eq!((goodput.bps, goodput.bytes), (4000.0, 1000));
        assert_eq!(goodput.intervals_bps, [7.0, 9.0]);
    }

    #[test]
    fn its_complaints_are_passed_on() {
        let error = parse(r#"{"error": "unable to connect"}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("unable to connect"), "{error}");
        assert!(parse("").is_err());
        assert!(parse("{}").is_err());
    }
}
