//! What the benches of single figures have measured: by row, judged, as a table and as JSON.
//!
//! Owns the shape; which figures there are and what bounds them is each bench's.

use std::fmt;

use serde::Serialize;

use super::ends::Done;
use super::machine::Conditions;
use super::record::told;
use super::summary::{Spread, percentile};
use super::table::{markdown_table, plain_table};

/// Where a row has no contender.
const NOBODY: &str = "–";

/// One bench's results.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sheet {
    pub(super) bench: &'static str,
    pub(super) conditions: Conditions,
    pub(super) rows: Vec<Row>,
}

/// One network's.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    name: String,
    findings: Vec<Finding>,
    errands: Vec<Record>,
}

/// One job, done once.
#[derive(Debug, Clone, Serialize)]
struct Record {
    contender: String,
    job: String,
    /// From 1.
    repeat: u64,
    done: Option<Done>,
    error: Option<String>,
}

/// One figure of one contender; peers' are not judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Finding {
    contender: String,
    what: String,
    value: Option<f64>,
    unit: &'static str,
    bound: Option<Bound>,
}

/// What a figure is to reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// By how much `value` misses it; none if it does not.
    fn missed_by(self, value: f64) -> Option<f64> {
        let by = match self {
            Self::AtLeast(bound) => bound - value,
            Self::AtMost(bound) => value - bound,
        };
        (by > 0.0).then_some(by)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, "≥ {}", number(*bound)),
            Self::AtMost(bound) => write!(f, "≤ {}", number(*bound)),
        }
    }
}

impl Row {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            findings: Vec::new(),
            errands: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Keeps what came of a job, and tells whoever watches if it failed.
    pub(super) fn add(
        &mut self,
        contender: &str,
        job: &str,
        repeat: u64,
        done: anyhow::Result<Done>,
    ) {
        let (done, error) = match done {
            Ok(done) => (Some(done), None),
            Err(error) => (None, Some(told(&error))),
        };
        if let Some(error) = &error {
            eprintln!("bench: {}: {contender}, {job}: {error}", self.name);
        }
        self.errands.push(Record {
            contender: contender.to_owned(),
            job: job.to_owned(),
            repeat,
            done,
            error,
        });
    }

    /// Nothing could be measured at all.
    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        self.add(NOBODY, NOBODY, 1, Err(anyhow::anyhow!(told(error))));
        self.find(NOBODY, NOBODY, (None, ""), Some(Bound::AtLeast(0.0)));
    }

    /// What `contender` has done of `job`, in the order in which it was done.
    pub(super) fn done(&self, contender: &str, job: &str) -> impl Iterator<Item = &Done> {
        let is_it = move |record: &&Record| record.contender == contender && record.job == job;
        let records = self.errands.iter().filter(is_it);
        records.filter_map(|record| record.done.as_ref())
    }

    /// The median over the repeats of what `read` makes of each; none if there was none.
    pub(super) fn median(
        &self,
        contender: &str,
        job: &str,
        read: impl Fn(&Done) -> Option<f64>,
    ) -> Option<f64> {
        let values = self.done(contender, job).filter_map(read).collect();
        Spread::of(values).map(|spread| spread.median)
    }

    /// All fetches of all repeats, in seconds.
    pub(super) fn fetches_s(&self, contender: &str, job: &str) -> Vec<f64> {
        let fetches = self.done(contender, job).flat_map(|done| &done.fetched_s);
        fetches.copied().collect()
    }

    /// Puts a figure into the table; without a value it is one that could not be measured.
    pub(super) fn find(
        &mut self,
        contender: &str,
        what: impl Into<String>,
        (value, unit): (Option<f64>, &'static str),
        bound: Option<Bound>,
    ) {
        self.findings.push(Finding {
            contender: contender.to_owned(),
            what: what.into(),
            value,
            unit,
            bound,
        });
    }

    fn first_error(&self, contender: &str) -> Option<&str> {
        let mut records = self.errands.iter().filter(|r| r.contender == contender);
        records.find_map(|record| record.error.as_deref())
    }
}

impl Finding {
    fn is_reached(&self) -> Option<bool> {
        let bound = self.bound?;
        Some(self.value.is_some_and(|v| bound.missed_by(v).is_none()))
    }

    fn measured(&self) -> String {
        self.value.map_or_else(
            || "–".to_owned(),
            |value| {
                format!("{} {}", number(value), self.unit)
                    .trim_end()
                    .to_owned()
            },
        )
    }

    fn verdict(&self, row: &Row) -> String {
        let Some(value) = self.value else {
            let error = row.first_error(&self.contender);
            return format!("failed: {}", error.unwrap_or("not measured"));
        };
        match self.bound.map(|bound| bound.missed_by(value)) {
            None => "–".to_owned(),
            Some(None) => "reached".to_owned(),
            Some(Some(by)) => format!("missed by {} {}", number(by), self.unit)
                .trim_end()
                .to_owned(),
        }
    }
}

impl Sheet {
    /// Whether anything was measured.
    pub(super) fn has_values(&self) -> bool {
        let mut findings = self.rows.iter().flat_map(|row| &row.findings);
        findings.any(|finding| finding.value.is_some())
    }

    pub(super) fn print(&self, markdown: bool) -> String {
        let heads = ["row", "contender", "what", "measured", "figure", "verdict"];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        for row in &self.rows {
            for finding in &row.findings {
                lines.push(vec![
                    row.name.clone(),
                    finding.contender.clone(),
                    finding.what.clone(),
                    finding.measured(),
                    finding
                        .bound
                        .map_or_else(|| "–".to_owned(), |bound| bound.to_string()),
                    finding.verdict(row),
                ]);
            }
        }
        let layout = if markdown {
            markdown_table
        } else {
            plain_table
        };
        let (conditions, total) = (&self.conditions, self.total());
        let (cpus, cpu, load) = (conditions.cpus, &conditions.cpu, &conditions.load);
        format!(
            "{}: {} repeats; {cpus} × {cpu}, load {load}, Linux {}, {}\n\n{}\n{total}\n",
            self.bench,
            conditions.repeats,
            conditions.kernel,
            conditions.tabane,
            layout(&lines)
        )
    }

    /// How many figures are reached, and which are not.
    pub(super) fn total(&self) -> String {
        let rows = self.rows.iter();
        let findings = rows.flat_map(|row| row.findings.iter().map(move |f| (row, f)));
        let judged: Vec<_> = findings.filter(|(_, f)| f.bound.is_some()).collect();
        let missed: Vec<String> = judged
            .iter()
            .filter(|(_, finding)| finding.is_reached() == Some(false))
            .map(|(row, f)| {
                format!(
                    "{} ({}, {}: {})",
                    row.name,
                    f.contender,
                    f.what,
                    f.measured()
                )
            })
            .collect();
        let reached = judged.len() - missed.len();
        let mut text = format!("{reached} of {} figures are reached", judged.len());
        if !missed.is_empty() {
            text = format!("{text}; missed: {}", missed.join("; "));
        }
        text
    }
}

/// Three digits that matter, or all before the point.
fn number(value: f64) -> String {
    match value.abs() {
        _ if value == value.trunc() => format!("{value}"),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// What all but one of twenty stay below.
pub(super) fn p95(values: &[f64]) -> Option<f64> {
    percentile(values, 0.95)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_missed_by_what_lacks() {
        assert_eq!(Bound::AtLeast(1.0).missed_by(1.0), None);
        assert_eq!(Bound::AtLeast(1.0).missed_by(0.75), Some(0.25));
        assert_eq!(Bound::AtMost(25.0).missed_by(25.0), None);
        assert_eq!(Bound::AtMost(25.0).missed_by(30.0), Some(5.0));
    }

    #[test]
    fn verdicts_tell_what_and_by_how_much() {
        let mut row = Row::new("far");
        let failed = Err(anyhow::anyhow!("no relay"));
        row.add("tabane", "beside", 1, failed);
        let at_most = |bound| Some(Bound::AtMost(bound));
        row.find("mptcp", "queue", (Some(90.0), "ms"), None);
        row.find("tabane", "queue", (Some(24.5), "ms"), at_most(25.0));
        row.find("tabane", "ping", (Some(31.5), "ms"), at_most(25.0));
        row.find("tabane", "fetch", (None, "ms"), at_most(1.5));
        let verdicts: Vec<_> = row.findings.iter().map(|f| f.verdict(&row)).collect();
        let expected = ["–", "reached", "missed by 6.50 ms", "failed: no relay"];
        assert_eq!(verdicts, expected);
        let reached: Vec<_> = row.findings.iter().map(Finding::is_reached).collect();
        assert_eq!(reached, [None, Some(true), Some(false), Some(false)]);
    }

    #[test]
    fn medians_are_over_repeats_and_fetches_are_pooled() {
        let mut row = Row::new("far");
        for (repeat, seconds) in [(1, 1.0), (2, 3.0), (3, 8.0)] {
            let fetched_s = vec![seconds, seconds];
            let done = Done {
                fetched_s,
                ..Done::default()
            };
            row.add("tabane", "1 MB", repeat, Ok(done));
        }
        let first = |done: &Done| done.fetched_s.first().copied();
        assert_eq!(row.median("tabane", "1 MB", first), Some(3.0));
        assert_eq!(row.median("tabane", "2 MB", first), None);
        assert_eq!(row.fetches_s("tabane", "1 MB").len(), 6);
    }
}
