//! Everything that was measured, as it goes into the JSON.

use std::fmt;

use serde::Serialize;
use tabane_netem::Scenario;

use super::contender::{Contender, Direction};
use super::iperf::Goodput;
use super::machine::Conditions;
use super::stream::StreamReport;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Record {
    pub(super) conditions: Conditions,
    pub(super) scenarios: Vec<ScenarioRecord>,
}

/// One scenario's measurements, in the order in which they were made.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ScenarioRecord {
    pub(super) name: String,
    pub(super) direction: Direction,
    /// What the scenario calls its links, in their order.
    pub(super) links: Vec<String>,
    /// The sum of the links' mean rates towards the client, counted at IP level; none for wires.
    pub(super) rate_bps: Option<u64>,
    pub(super) measurements: Vec<Measurement>,
}

/// One contender's job, done once.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measurement {
    pub(super) contender: String,
    /// From 1.
    pub(super) repeat: u64,
    /// What the receiving application got, from the beginning to the end.
    pub(super) goodput_bps: Option<f64>,
    /// Why it failed.
    pub(super) error: Option<String>,
    /// Per second.
    pub(super) intervals_bps: Vec<f64>,
    pub(super) stream: Option<StreamReport>,
    /// Processor time of tabane at both ends.
    pub(super) cpu_s: Option<f64>,
    pub(super) carried: Option<Carried>,
    /// What `tabane run --json` tells.
    pub(super) tabane: Option<serde_json::Value>,
}

/// What the network did meanwhile.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Carried {
    /// Per link, both directions, with all headers.
    pub(super) link_bytes: Vec<u64>,
    pub(super) emulator: EmulatorHealth,
}

/// Signs that the machine was too slow for the scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct EmulatorHealth {
    /// Packets that left more than 1 ms late.
    pub(super) late: u64,
    pub(super) late_us_max: u64,
    /// Packets the kernel dropped before the emulator read them.
    pub(super) receive_drops: u64,
    /// Packets the kernel refused from the emulator.
    pub(super) send_drops: u64,
}

impl Record {
    /// Whether anything was measured.
    pub(super) fn has_values(&self) -> bool {
        let mut measurements = self.scenarios.iter().flat_map(|s| &s.measurements);
        measurements.any(|m| m.error.is_none())
    }
}

impl ScenarioRecord {
    pub(super) fn new(scenario: &Scenario, direction: Direction) -> Self {
        let is_wire = scenario.links.iter().any(tabane_netem::LinkSpec::is_wire);
        Self {
            name: scenario.name.clone(),
            direction,
            links: scenario
                .links
                .iter()
                .map(|link| link.name.clone())
                .collect(),
            rate_bps: (!is_wire).then(|| scenario.rate_down().as_bps()),
            measurements: Vec::new(),
        }
    }

    /// The row's name in tables.
    pub(super) fn title(&self) -> String {
        title(&self.name, self.direction)
    }
}

/// What tables call a scenario measured in one direction.
pub(super) fn title(scenario: &str, direction: Direction) -> String {
    match direction {
        Direction::Download => scenario.to_owned(),
        Direction::Upload => format!("{scenario}, upload"),
    }
}

/// A link that carried less than this share of the bytes was not really used: handshakes, probes
/// and acknowledgements cross unused ones too.
const USED: f64 = 0.01;

impl Carried {
    /// How many links carried the job.
    pub(super) fn links_used(&self) -> usize {
        let sum: u64 = self.link_bytes.iter().sum();
        let is_used = |bytes: &&u64| **bytes as f64 > sum as f64 * USED;
        self.link_bytes.iter().filter(is_used).count()
    }
}

impl EmulatorHealth {
    /// Whether the emulator dropped what the scenario would not have.
    pub(super) fn has_dropped(&self) -> bool {
        self.receive_drops + self.send_drops > 0
    }
}

impl Measurement {
    pub(super) fn bulk(contender: &Contender, repeat: u64, goodput: Goodput) -> Self {
        Self {
            goodput_bps: Some(goodput.bps),
            intervals_bps: goodput.intervals_bps,
            // A connection that carried nothing is no result to compare with.
            error: (goodput.bytes == 0).then(|| "not a byte arrived".to_owned()),
            ..Self::empty(contender, repeat)
        }
    }

    pub(super) fn stream(contender: &Contender, repeat: u64, report: StreamReport) -> Self {
        let goodput_bps = report.verified_bytes as f64 * 8.0 / report.seconds.max(f64::EPSILON);
        Self {
            goodput_bps: Some(goodput_bps),
            error: report.fault.clone(),
            stream: Some(report),
            ..Self::empty(contender, repeat)
        }
    }

    pub(super) fn failed(contender: &Contender, repeat: u64, error: &anyhow::Error) -> Self {
        Self {
            error: Some(told(error)),
            ..Self::empty(contender, repeat)
        }
    }

    fn empty(contender: &Contender, repeat: u64) -> Self {
        Self {
            contender: contender.to_string(),
            repeat,
            goodput_bps: None,
            error: None,
            intervals_bps: Vec::new(),
            stream: None,
            cpu_s: None,
            carried: None,
            tabane: None,
        }
    }

    /// Seconds of processor time per 10⁹ bits delivered.
    pub(super) fn cpu_s_per_gbit(&self, seconds: u64) -> Option<f64> {
        let bits = self.goodput_bps? * seconds as f64;
        (bits > 0.0).then_some(self.cpu_s? / (bits / 1e9))
    }
}

/// An error with its causes, each once: some tell theirs themselves.
pub(super) fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Packets that leave so late are worth a word: it is what other programs on the machine cost.
const LATE_MS: f64 = 10.0;

/// One line for whoever watches.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} Mbit/s",
            self.goodput_bps.unwrap_or_default() / 1e6
        )?;
        if let Some(stream) = &self.stream {
            let state = if stream.intact {
                "intact"
            } else {
                "NOT INTACT"
            };
            write!(
                f,
                ", {state}, longest silence {:.0} ms",
                stream.silence_ms_max
            )?;
        }
        if let Some(carried) = &self.carried {
            let links = carried.link_bytes.len();
            if links > 1 {
                let shares: Vec<_> = carried
                    .link_bytes
                    .iter()
                    .map(|b| format!("{:.1}", *b as f64 / 1e6))
                    .collect();
                write!(f, " (MB per link: {})", shares.join(" + "))?;
            }
            let emulator = carried.emulator;
            if emulator.has_dropped() {
                let drops = emulator.receive_drops + emulator.send_drops;
                write!(f, ", the emulator dropped {drops} packets")?;
            }
            let worst_ms = emulator.late_us_max as f64 / 1e3;
            if worst_ms > LATE_MS {
                write!(f, ", emulator {worst_ms:.0} ms late at worst")?;
            }
        }
        if let Some(cpu) = self.cpu_s {
            write!(f, ", CPU {cpu:.1} s")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let cause = || std::io::Error::other("no disk");
        let error = anyhow::Error::new(cause()).context("cannot write");
        assert_eq!(told(&error), "cannot write: no disk");
        let error = anyhow::Error::new(cause()).context("cannot write: no disk");
        assert_eq!(told(&error), "cannot write: no disk");
    }

    #[test]
    fn a_link_that_only_probes_is_not_used() {
        let used = |bytes: &[u64]| {
            let link_bytes = bytes.to_vec();
            let carried = Carried {
                link_bytes,
                ..Carried::default()
            };
            carried.links_used()
        };
        assert_eq!(used(&[1_000_000, 900_000]), 2);
        assert_eq!(used(&[1_000_000, 5_000]), 1);
        assert_eq!(used(&[0, 0]), 0);
    }
}
