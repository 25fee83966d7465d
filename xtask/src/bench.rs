//! `cargo xtask bench`: the product against its peers, on emulated links and real programs.
//!
//! Owns the order of what is measured: per scenario a lab of its own, and in it every contender in
//! turn, again and again, so that drift of the machine hits all alike. What a contender fails at
//! becomes a cell that says so; the run goes on.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tabane_netem::Scenario;

mod bond;
mod contender;
mod figure;
mod iperf;
mod machine;
mod options;
mod process;
mod record;
mod relay;
mod scratch;
mod share;
mod stage;
pub(crate) mod stream;
mod summary;
mod table;

use contender::{Bench, Contender};
use options::{Direction, Options};
use record::{Measurement, Record, ScenarioRecord};

/// Parses `arguments`, measures, and prints the tables. `false` when nothing could be measured.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    if let Some((&"relay", rest)) = arguments.split_first() {
        return relay::run(root, rest);
    }
    let options = Options::parse(arguments)?;
    let Some(options) = options else {
        println!("{}", options::USAGE);
        return Ok(true);
    };
    if cfg!(debug_assertions) {
        return Err(optimised(root, arguments, &options)?);
    }
    let scenarios = if options.is_sharing() {
        Vec::new()
    } else {
        options.scenarios(root)?
    };
    let binary = product(&options)?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "networks to measure on need root: sudo {} bench {}",
        std::env::current_exe().unwrap_or_default().display(),
        arguments.join(" ")
    );
    if options.is_sharing() {
        return share::run(&binary, &options);
    }
    let rows = options.rows(&scenarios);
    announce(&rows, &options);
    let mut record = Record {
        conditions: machine::conditions(root, &binary, &options),
        scenarios: Vec::new(),
    };
    for (scenario, direction) in &rows {
        let measured = measure(scenario, *direction, &binary, &options);
        record.scenarios.push(measured);
        // Rewritten each time: what is measured is kept if the rest is interrupted.
        if let Some(path) = &options.json {
            let text = serde_json::to_string_pretty(&record)? + "\n";
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    print!("{}", table::print(&record, options.markdown));
    Ok(record
        .scenarios
        .iter()
        .any(|s| s.measurements.iter().any(|m| m.error.is_none())))
}

/// Goes on as the release build of this program: the emulator shares the machine with what it
/// measures, and must not be what limits it. Returns only if that fails.
fn optimised(root: &Path, arguments: &[&str], options: &Options) -> Result<anyhow::Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--release", "--package", "xtask"])
        .current_dir(root);
    if options.binary.is_none() && options.groups.contains(&contender::Group::Tabane) {
        build.args(["--package", "tabane"]);
    }
    let built = build.status().context("cannot start cargo")?;
    ensure!(built.success(), "the release build failed");
    let release = own_directory()?.with_file_name("release").join("xtask");
    let failed = Command::new(&release).arg("bench").args(arguments).exec();
    Ok(anyhow::Error::new(failed).context(format!("cannot run {}", release.display())))
}

/// The binary to measure; it need not be there if it is not asked for.
fn product(options: &Options) -> Result<PathBuf> {
    let binary = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary)
            .with_context(|| format!("cannot find {}", binary.display()))?,
        None => own_directory()?.join("tabane"),
    };
    ensure!(
        binary.is_file() || !options.groups.contains(&contender::Group::Tabane),
        "{} is missing: run `cargo build --release -p tabane`",
        binary.display()
    );
    Ok(binary)
}

fn own_directory() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let directory = own.parent().context("this program has no directory")?;
    Ok(directory.to_path_buf())
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
