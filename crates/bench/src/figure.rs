//! The figures to reach, and whether a row reaches them.
//!
//! Owns the bounds (issue 3, "Figures"); what was measured is [`Summary`]'s and the records'.

use super::contender::measures_stream;
use super::record::ScenarioRecord;
use super::summary::{Cell, Spread, Summary, of};

/// One link through us, of plain TCP on it.
const ONE_LINK: f64 = 0.98;

/// The longest silence of a stream of which a link goes silent, in milliseconds.
const SILENCE_MS: f64 = 250.0;

/// What a row comes to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Judgement {
    /// Nothing was measured that a figure speaks of.
    Unjudged,
    Reached,
    /// What falls short, in words.
    Missed(Vec<String>),
}

/// The share of the single links' sum that a bulk is to reach; none where no figure is set.
/// Variants have their scenario's.
fn share_bound(scenario: &str) -> Option<f64> {
    match scenario.split('/').next()? {
        "twin" | "unequal" | "lossy" | "bloat" | "four" | "sbam-a" | "sbam-b" | "sbam-c" => {
            Some(0.98)
        }
        "drag" | "far" | "wide" => Some(0.97),
        "rtt-skew" | "eight" | "lte" | "leo" | "arms" => Some(0.95),
        _ => None,
    }
}

impl Judgement {
    pub(super) fn of(record: &ScenarioRecord) -> Self {
        let summary = Summary::new(record);
        let mut checks = Vec::new();
        match &summary.tabane {
            Cell::Absent => return Self::Unjudged,
            Cell::Failed(_) => return Self::Missed(vec!["tabane failed".to_owned()]),
            Cell::Measured(_) if measures_stream(&record.name) => checks.extend(stream(record)),
            // On wires the processor's cost counts, which has no bound in one run.
            Cell::Measured(_) if record.rate_bps.is_none() => {}
            Cell::Measured(_) => checks.extend(bulk(record, &summary)),
        }
        let is_judged = !checks.is_empty();
        let missed: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
        match (is_judged, missed.is_empty()) {
            (false, _) => Self::Unjudged,
            (true, true) => Self::Reached,
            (true, false) => Self::Missed(missed),
        }
    }

    /// For a cell.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Unjudged => "–".to_owned(),
            Self::Reached => "reached".to_owned(),
            Self::Missed(what) => format!("missed: {}", what.join(", ")),
        }
    }
}

/// How many rows reach their figures, and which do not.
pub(super) fn total(records: &[ScenarioRecord]) -> String {
    let verdicts = records.iter().map(|record| (record, Judgement::of(record)));
    let judged: Vec<_> = verdicts
        .filter(|(_, verdict)| *verdict != Judgement::Unjudged)
        .collect();
    let missed: Vec<String> = judged
        .iter()
        .filter(|(_, verdict)| *verdict != Judgement::Reached)
        .map(|(record, _)| record.title())
        .collect();
    let reached = judged.len() - missed.len();
    let mut text = format!("{reached} of {} rows reach their figures", judged.len());
    if !missed.is_empty() {
        text = format!("{text}; missed: {}", missed.join("; "));
    }
    text
}

/// One thing that was measured against its bound: what falls short if it does.
type Check = Result<(), String>;

fn at_least(what: &str, value: Option<f64>, bound: f64) -> Option<Check> {
    let is_short = value? < bound;
    Some(if is_short {
        Err(format!("{what} {:.3} < {bound}", value?))
    } else {
        Ok(())
    })
}

fn bulk(record: &ScenarioRecord, summary: &Summary) -> Vec<Check> {
    let share = share_bound(&record.name);
    [
        share.and_then(|bound| at_least("η", summary.eta(), bound)),
        at_least("of MPTCP", summary.against_mptcp(), 1.0),
        at_least("of the best link", summary.against_best_link(), 1.0),
        at_least("one link", summary.one_link_ratio(), ONE_LINK),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn stream(record: &ScenarioRecord) -> Vec<Check> {
    let reports = || of(record, "tabane").filter_map(|m| m.stream.as_ref());
    let all = of(record, "tabane").count();
    let intact = reports().filter(|report| report.intact).count();
    let silence = Spread::of(reports().map(|report| report.silence_ms_max).collect());
    let mut checks = vec![if intact == all {
        Ok(())
    } else {
        Err(format!("intact {intact} of {all}"))
    }];
    checks.extend(silence.map(|silence| {
        if silence.median <= SILENCE_MS {
            Ok(())
        } else {
            Err(format!("silence {:.0} ms > {SILENCE_MS}", silence.median))
        }
    }));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Contender;
    use crate::contender::Direction;
    use crate::iperf::Goodput;
    use crate::record::Measurement;
    use crate::stream::StreamReport;

    const LIMITED: &str = ", rate = \"50mbit\", queue = \"200kB\"";

    fn record(name: &str, rate: &str, bulks: &[(Contender, f64)]) -> ScenarioRecord {
        let link = |link| format!("{{ name = \"{link}\"{rate} }}");
        let links = [link("a"), link("b")].join(", ");
        let text = format!("name = \"{name}\"\nwhy = \"test\"\nlink = [{links}]");
        let scenario =
            tabane_netem::Scenario::parse(&text, None, &mut |_| Err(String::new())).unwrap();
        let mut record = ScenarioRecord::new(&scenario, Direction::Upload);
        for (contender, mbps) in bulks {
            let goodput = Goodput {
                bps: mbps * 1e6,
                bytes: 1,
                intervals_bps: Vec::new(),
            };
            let measured = Measurement::bulk(contender, 1, goodput);
            record.measurements.push(measured);
        }
        record
    }

    fn limited(name: &str, tabane_mbps: f64, mptcp_mbps: f64) -> ScenarioRecord {
        let bulks = [
            (Contender::Tcp { link: 0 }, 40.0),
            (Contender::Tcp { link: 1 }, 10.0),
            (Contender::Mptcp { congestion: "bbr" }, mptcp_mbps),
            (Contender::Tabane, tabane_mbps),
        ];
        record(name, LIMITED, &bulks)
    }

    #[test]
    fn each_bound_can_be_missed_by_itself() {
        let told = |name, tabane, mptcp| Judgement::of(&limited(name, tabane, mptcp)).told();
        assert_eq!(told("twin", 49.0, 49.0), "reached");
        assert_eq!(told("twin", 48.0, 45.0), "missed: η 0.960 < 0.98");
        assert_eq!(told("eight", 48.0, 45.0), "reached");
        assert_eq!(told("eight", 48.0, 50.0), "missed: of MPTCP 0.960 < 1");
        assert_eq!(told("nameless", 48.0, 45.0), "reached");
        assert_eq!(
            told("nameless", 38.0, 20.0),
            "missed: of the best link 0.950 < 1"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_judged_and_failure_is_a_miss() {
        let alone = record("twin", LIMITED, &[(Contender::Tabane, 9.0)]);
        assert_eq!(Judgement::of(&alone), Judgement::Unjudged);
        let bulks = [
            (Contender::Mptcp { congestion: "bbr" }, 900.0),
            (Contender::Tabane, 100.0),
        ];
        assert_eq!(
            Judgement::of(&record("wire", "", &bulks)),
            Judgement::Unjudged
        );
        let mut failed = record("twin", LIMITED, &[]);
        assert_eq!(Judgement::of(&failed), Judgement::Unjudged);
        let late = anyhow::anyhow!("late");
        let measured = Measurement::failed(&Contender::Tabane, 1, &late);
        failed.measurements.push(measured);
        assert_eq!(Judgement::of(&failed).told(), "missed: tabane failed");
        let all = [limited("eight", 48.0, 45.0), failed, alone];
        let said = "1 of 2 rows reach their figures; missed: twin, upload";
        assert_eq!(total(&all), said);
    }

    #[test]
    fn streams_are_judged_by_silence_and_bytes() {
        let mut cut = record("cut", LIMITED, &[]);
        let mut add = |intact, silence_ms_max| {
            let report = StreamReport {
                intact,
                sent_bytes: 1,
                verified_bytes: 1,
                seconds: 1.0,
                silence_ms_max,
                silences: Vec::new(),
                fault: None,
            };
            let repeat = cut.measurements.len() as u64 + 1;
            let measured = Measurement::stream(&Contender::Tabane, repeat, report);
            cut.measurements.push(measured);
            Judgement::of(&cut).told()
        };
        assert_eq!(add(true, 250.0), "reached");
        assert_eq!(add(true, 350.0), "missed: silence 300 ms > 250");
        let said = "missed: intact 2 of 3, silence 350 ms > 250";
        assert_eq!(add(false, 450.0), said);
    }
}
