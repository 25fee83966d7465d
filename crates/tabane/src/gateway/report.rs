//! What a gateway does, as JSON, as a table, and as metrics.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use tabane_gateway::{Bypass, FlowSnapshot, Snapshot, Stance};

use crate::output;

/// A gateway at one moment.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Report {
    /// The interface with mobile hosts behind it.
    pub(crate) radio: String,
    /// observe, assist or split.
    pub(crate) mode: String,
    /// Waits for owed bytes before it ends.
    pub(crate) draining: bool,
    /// Flows known.
    pub(crate) flows: Vec<FlowReport>,
    /// The last that have ended, the oldest first.
    #[serde(default)]
    pub(crate) ended: Vec<FlowReport>,
    /// Since the start, flows that have ended with them.
    pub(crate) totals: Totals,
    /// Flows left alone since the start, by reason.
    pub(crate) bypassed: Vec<(String, u64)>,
}

/// One flow.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct FlowReport {
    pub(crate) mobile: String,
    pub(crate) server: String,
    /// watching, assisting or draining.
    pub(crate) stance: String,
    pub(crate) radio_rtt_ms: Option<f64>,
    pub(crate) wired_rtt_ms: Option<f64>,
    pub(crate) bytes: u64,
    pub(crate) repeated_bytes: u64,
    pub(crate) needless_bytes: u64,
    pub(crate) silences: u64,
    pub(crate) silent_ms: f64,
    pub(crate) spurious_timeouts: u64,
    pub(crate) avoided_timeouts: u64,
    pub(crate) held_bytes: u64,
    pub(crate) owed_bytes: u64,
    /// The server was told to wait.
    pub(crate) shut: bool,
    /// Its sender can undo spurious timeouts by itself.
    pub(crate) undoes: bool,
}

/// Sums.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Totals {
    pub(crate) packets: u64,
    pub(crate) malformed: u64,
    pub(crate) opened: u64,
    pub(crate) fabricated: u64,
    pub(crate) swallowed: u64,
    pub(crate) probes_answered: u64,
    pub(crate) resent: u64,
    pub(crate) reset: u64,
    pub(crate) orphans_reset: u64,
    pub(crate) uncopied: u64,
    pub(crate) held_bytes: u64,
    pub(crate) owed_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) needless_bytes: u64,
    pub(crate) silences: u64,
    pub(crate) spurious_timeouts: u64,
    pub(crate) avoided_timeouts: u64,
    /// Connections joined (split).
    pub(crate) joined: u64,
    /// Bytes carried (split).
    pub(crate) carried_bytes: u64,
}

impl Report {
    pub(super) fn of(radio: &str, mode: &str, draining: bool, snapshot: &Snapshot) -> Self {
        let counters = &snapshot.counters;
        let flows: Vec<FlowReport> = snapshot.flows.iter().map(FlowReport::of).collect();
        let reasons = Bypass::ALL.map(|why| (why.name().to_owned(), counters.bypassed_for(why)));
        Self {
            radio: radio.to_owned(),
            mode: mode.to_owned(),
            draining,
            totals: Totals {
                packets: counters.packets,
                malformed: counters.malformed,
                opened: counters.opened,
                fabricated: counters.fabricated,
                swallowed: counters.swallowed,
                probes_answered: counters.probes_answered,
                resent: counters.resent,
                reset: counters.reset,
                orphans_reset: counters.orphans_reset,
                uncopied: counters.uncopied,
                held_bytes: snapshot.held,
                owed_bytes: flows.iter().map(|flow| flow.owed_bytes).sum(),
                bytes: snapshot.figures.forwarded,
                needless_bytes: snapshot.figures.needless,
                silences: snapshot.figures.silences,
                spurious_timeouts: snapshot.figures.spurious_timeouts,
                avoided_timeouts: snapshot.figures.avoided,
                ..Totals::default()
            },
            flows,
            ended: snapshot.ended.iter().map(FlowReport::of).collect(),
            bypassed: reasons
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}

impl FlowReport {
    fn of(flow: &FlowSnapshot) -> Self {
        let ms = |span: tabane_base::Duration| span.as_secs_f64() * 1e3;
        let figures = &flow.figures;
        let stance = match flow.stance {
            Stance::Watching => "watching",
            Stance::Assisting => "assisting",
            Stance::Draining => "draining",
        };
        Self {
            mobile: flow.key.mobile.to_string(),
            server: flow.key.server.to_string(),
            stance: stance.to_owned(),
            radio_rtt_ms: flow.radio.map(ms),
            wired_rtt_ms: flow.wired.map(ms),
            bytes: figures.forwarded,
            repeated_bytes: figures.repeated,
            needless_bytes: figures.needless,
            silences: figures.silences,
            silent_ms: ms(figures.silent),
            spurious_timeouts: figures.spurious_timeouts,
            avoided_timeouts: figures.avoided,
            held_bytes: flow.held,
            owed_bytes: u64::from(flow.owed),
            shut: flow.shut,
            undoes: flow.undoes,
        }
    }
}

/// Lines for flows that have ended.
const ENDED_SHOWN: usize = 10;

/// For a terminal: what it means first, then the flows, the busiest on top, then the last that have
/// ended.
pub(crate) fn screen(report: &Report) -> String {
    let mut text = format!(
        "gateway on {}, mode {}{}: {} flows now, {} since the start\n{}\n",
        report.radio,
        report.mode,
        if report.draining { ", draining" } else { "" },
        report.flows.len(),
        report.totals.opened.max(report.totals.joined),
        meaning(report)
    );
    if !report.bypassed.is_empty() {
        let reasons = report
            .bypassed
            .iter()
            .map(|(why, count)| format!("{count} {why}"));
        text += &format!("left alone: {}\n", reasons.collect::<Vec<_>>().join(", "));
    }
    let mut flows: Vec<&FlowReport> = report.flows.iter().collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes));
    let ended = report.ended.iter().rev().take(ENDED_SHOWN);
    let mut rows: Vec<Vec<String>> = flows.iter().take(40).map(|flow| row(flow, None)).collect();
    rows.extend(ended.map(|flow| row(flow, Some("ended"))));
    if !rows.is_empty() {
        let headings = [
            "mobile",
            "server",
            "state",
            "radio ms",
            "wired ms",
            "MB",
            "needless %",
            "silences",
            "spurious",
            "avoided",
            "held kB",
        ];
        text += &format!("\n{}", output::table(&headings, &rows));
    }
    text
}

fn row(flow: &FlowReport, state: Option<&str>) -> Vec<String> {
    let trip = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
    let state = match (state, flow.shut) {
        (Some(state), _) => state,
        (None, true) => "shut",
        (None, false) => &flow.stance,
    };
    vec![
        flow.mobile.clone(),
        flow.server.clone(),
        state.to_owned(),
        trip(flow.radio_rtt_ms),
        trip(flow.wired_rtt_ms),
        format!("{:.1}", flow.bytes as f64 / 1e6),
        format!("{:.2}", share(flow.needless_bytes, flow.bytes)),
        format!("{}", flow.silences),
        format!("{}", flow.spurious_timeouts),
        format!("{}", flow.avoided_timeouts),
        format!("{}", flow.held_bytes / 1_000),
    ]
}

fn share(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Whether assistance would help, or does, in figures.
fn meaning(report: &Report) -> String {
    let Totals {
        silences,
        spurious_timeouts: spurious,
        needless_bytes: needless,
        bytes,
        ..
    } = report.totals;
    let flows = report.flows.iter().chain(&report.ended);
    let helpless = flows
        .filter(|f| f.spurious_timeouts > 0 && !f.undoes)
        .count();
    match report.mode.as_str() {
        "split" => format!(
            "{} connections joined, {:.1} MB carried",
            report.totals.joined,
            report.totals.carried_bytes as f64 / 1e6
        ),
        "assist" => format!(
            "{silences} silences longer than a sender's timer, {} timeouts avoided; {} kB held, \
             {} sent again",
            report.totals.avoided_timeouts,
            report.totals.held_bytes / 1_000,
            report.totals.resent
        ),
        _ => {
            let verdict = if helpless > 0 {
                format!("assist would help: {helpless} flows cannot undo such timeouts themselves")
            } else if spurious > 0 || share(needless, bytes) > 0.5 {
                "assist would save the repetitions; these senders undo the rest themselves".into()
            } else {
                "nothing yet that assist would mend".to_owned()
            };
            format!(
                "{silences} silences longer than a sender's timer, {spurious} timeouts for \
                 nothing, {:.2} % sent needlessly: {verdict}",
                share(needless, bytes)
            )
        }
    }
}

/// In Prometheus' text format.
pub(crate) fn metrics(report: &Report) -> String {
    let mut text = String::new();
    let totals = &report.totals;
    let values = [
        ("flows", "gauge", report.flows.len() as u64),
        ("held_bytes", "gauge", totals.held_bytes),
        ("owed_bytes", "gauge", totals.owed_bytes),
        ("silences_total", "counter", totals.silences),
        (
            "spurious_timeouts_total",
            "counter",
            totals.spurious_timeouts,
        ),
        ("avoided_timeouts_total", "counter", totals.avoided_timeouts),
        ("bytes_total", "counter", totals.bytes),
        ("needless_bytes_total", "counter", totals.needless_bytes),
        ("packets_total", "counter", totals.packets),
        ("malformed_total", "counter", totals.malformed),
        ("flows_opened_total", "counter", totals.opened),
        ("acks_fabricated_total", "counter", totals.fabricated),
        ("acks_swallowed_total", "counter", totals.swallowed),
        ("probes_answered_total", "counter", totals.probes_answered),
        ("copies_resent_total", "counter", totals.resent),
        ("flows_reset_total", "counter", totals.reset),
        ("orphans_reset_total", "counter", totals.orphans_reset),
        ("connections_joined_total", "counter", totals.joined),
        ("carried_bytes_total", "counter", totals.carried_bytes),
    ];
    let radio = &report.radio;
    for (name, kind, value) in values {
        // Writing into a `String` cannot fail.
        let _ = writeln!(
            text,
            "# TYPE tabane_gateway_{name} {kind}\n\
             tabane_gateway_{name}{{radio=\"{radio}\"}} {value}"
        );
    }
    if !report.bypassed.is_empty() {
        text += "# TYPE tabane_gateway_flows_bypassed_total counter\n";
    }
    for (why, count) in &report.bypassed {
        let _ = writeln!(
            text,
            "tabane_gateway_flows_bypassed_total{{radio=\"{radio}\",reason=\"{why}\"}} {count}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(undoes: bool, spurious: u64) -> Report {
        Report {
            radio: "wwan0".to_owned(),
            mode: "observe".to_owned(),
            totals: Totals {
                spurious_timeouts: spurious,
                ..Totals::default()
            },
            ended: vec![FlowReport {
                mobile: "10.0.0.2:40000".to_owned(),
                spurious_timeouts: spurious,
                undoes,
                ..FlowReport::default()
            }],
            bypassed: vec![("mid-flow".to_owned(), 3)],
            ..Report::default()
        }
    }

    #[test]
    fn observing_says_whether_assistance_would_help() {
        assert!(screen(&report(false, 2)).contains("assist would help: 1 flows"));
        assert!(screen(&report(true, 2)).contains("senders undo the rest"));
        assert!(screen(&report(true, 0)).contains("nothing yet"));
        assert!(screen(&report(true, 0)).contains("left alone: 3 mid-flow"));
        let text = screen(&report(true, 2));
        let line = text.lines().find(|line| line.contains("10.0.0.2:40000"));
        assert!(line.unwrap().contains("ended"), "{text}");
    }

    #[test]
    fn metrics_have_a_line_for_each_reason() {
        let text = metrics(&report(true, 0));
        assert!(text.contains("tabane_gateway_flows{radio=\"wwan0\"} 0\n"));
        assert!(text.contains("bypassed_total{radio=\"wwan0\",reason=\"mid-flow\"} 3\n"));
    }
}
