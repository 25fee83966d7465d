//! Under which conditions it was measured: machine, versions, settings.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::contender::Direction;
use super::options::Options;

/// What a reader of the figures needs in order to compare.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Conditions {
    pub(super) date: Option<String>,
    pub(super) seconds: u64,
    pub(super) repeats: u64,
    /// Each was measured so.
    pub(super) directions: Vec<Direction>,
    pub(super) cpu: String,
    pub(super) cpus: usize,
    /// Other work at the beginning: processes that wanted to run, over the last minute.
    pub(super) load: String,
    pub(super) kernel: String,
    pub(super) tabane: String,
    pub(super) commit: String,
    pub(super) iperf3: String,
    pub(super) mptcpize: String,
    pub(super) mptcp_scheduler: String,
}

pub(super) fn conditions(root: &Path, binary: &Path, options: &Options) -> Conditions {
    let git = Command::new("git")
        .current_dir(root)
        .args(["describe", "--always", "--dirty"])
        .output();
    let first_word = |path: &str| first(&read(path), ' ');
    Conditions {
        date: options.date.clone(),
        seconds: options.seconds,
        repeats: options.repeats,
        directions: options.directions.clone(),
        cpu: cpu(&read("/proc/cpuinfo")),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        load: first_word("/proc/loadavg"),
        kernel: first_word("/proc/sys/kernel/osrelease"),
        tabane: version(Command::new(binary).arg("--version").output()),
        commit: version(git),
        iperf3: version(Command::new("iperf3").arg("--version").output()),
        mptcpize: version(Command::new("mptcpize").arg("--version").output()),
        mptcp_scheduler: first_word("/proc/sys/net/mptcp/scheduler"),
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn first(text: &str, end: char) -> String {
    text.split(end).next().unwrap_or_default().trim().to_owned()
}

fn version(output: std::io::Result<std::process::Output>) -> String {
    match output {
        Ok(output) => first(&String::from_utf8_lossy(&output.stdout), '\n'),
        Err(error) => error.to_string(),
    }
}

fn cpu(cpuinfo: &str) -> String {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let model = lines.find(|(key, _)| key.trim() == "model name");
    model.map_or_else(
        || "unknown".to_owned(),
        |(_, value)| value.trim().to_owned(),
    )
}
