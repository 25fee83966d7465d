//! `cargo xtask bench`, without a further word: one download (or upload) of one TCP connection.
//!
//! Owns the order of what is measured: per scenario every contender in turn, again and again, so
//! that drift of the machine hits all alike.

use std::path::Path;

use anyhow::Result;
use tabane_netem::Scenario;

use super::bench::Bench;
use super::contender::{self, Contender, Direction};
use super::machine;
use super::options::Options;
use super::record::{Measurement, Record, ScenarioRecord};

/// Measures every row; `keep` is called after each.
pub(super) fn run(
    root: &Path,
    binary: &Path,
    options: &Options,
    mut keep: impl FnMut(&Record) -> Result<()>,
) -> Result<Record> {
    let rows = options.rows(&options.scenarios(root)?);
    announce(&rows, options);
    let mut record = Record {
        conditions: machine::conditions(root, binary, options),
        scenarios: Vec::new(),
    };
    for (scenario, direction) in &rows {
        let measured = measure(scenario, *direction, binary, options);
        record.scenarios.push(measured);
        keep(&record)?;
    }
    Ok(record)
}

/// Between two measurements, for programs to start and queues to drain, in seconds; estimated.
const BETWEEN_S: u64 = 2;

fn announce(rows: &[(Scenario, Direction)], options: &Options) {
    let runs = |(scenario, _): &(Scenario, Direction)| {
        contender::contenders(scenario, &options.groups).len() as u64
    };
    let each = options.seconds + BETWEEN_S;
    let seconds = rows.iter().map(runs).sum::<u64>() * options.repeats * each;
    eprintln!(
        "bench: {} rows, about {} min",
        rows.len(),
        seconds.div_ceil(60)
    );
}

/// All repeats of all contenders on one scenario.
fn measure(
    scenario: &Scenario,
    direction: Direction,
    binary: &Path,
    options: &Options,
) -> ScenarioRecord {
    let mut record = ScenarioRecord::new(scenario, direction);
    let contenders = contender::contenders(scenario, &options.groups);
    let bench = match Bench::set_up(scenario, direction, binary, options) {
        Ok(bench) => bench,
        Err(error) => {
            let failed = |contender| Measurement::failed(contender, 1, &error);
            record.measurements = contenders.iter().map(failed).collect();
            eprintln!("bench: {}: {error}", record.title());
            return record;
        }
    };
    for repeat in 1..=options.repeats {
        for contender in &contenders {
            let measured = bench
                .measure(contender, repeat)
                .unwrap_or_else(|error| Measurement::failed(contender, repeat, &error));
            progress(
                &record.title(),
                contender,
                repeat,
                options.repeats,
                &measured,
            );
            record.measurements.push(measured);
        }
    }
    record
}

fn progress(row: &str, contender: &Contender, repeat: u64, repeats: u64, measured: &Measurement) {
    let result = match &measured.error {
        Some(error) => format!("failed: {error}"),
        None => measured.to_string(),
    };
    eprintln!("bench: {row} {repeat}/{repeats} {contender}: {result}");
}
