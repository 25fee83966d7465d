//! `cargo xtask bench`: the product against its peers, on emulated links and real programs.
//!
//! Owns which bench runs on which rows, and where its results go. Each bench has a file that owns
//! its figures; every row has a lab of its own. What a contender fails at becomes a cell that says
//! so; the run goes on.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tabane_netem::Scenario;

mod arms;
mod bench;
mod bond;
mod carriers;
mod contender;
mod cost;
pub(crate) mod ends;
mod expose;
mod fetch;
mod figure;
mod flood;
mod gateway;
mod goodput;
mod iperf;
mod lan;
mod latency;
mod load;
mod machine;
mod options;
mod process;
mod record;
mod relay;
mod scratch;
mod selftest;
mod share;
mod sheet;
mod sites;
mod soak;
mod sockets;
mod stage;
mod startup;
pub(crate) mod stream;
mod summary;
mod table;
mod udp;
mod visitors;
mod web;
mod workers;

use contender::Direction;
use options::{Kind, Options};
use record::Record;
use sheet::{Row, Sheet};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["end", end @ ..] => ends::run(end),
        ["stream", end @ ..] => stream::run(end),
        arguments => run(&repository_root(), arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Two above this crate's directory, wherever the command was called from.
fn repository_root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors()
        .nth(2)
        .expect("a crate stands two levels below the root")
        .to_path_buf()
}

/// Runs a bench that has options and networks of its own; `None` where `arguments` name none.
fn with_own_options(root: &Path, arguments: &[&str]) -> Option<Result<bool>> {
    let (&name, rest) = arguments.split_first()?;
    // Whether anything grows in a soak does not depend on how fast the emulator is.
    let is_slow = cfg!(debug_assertions) && !matches!(name, "relay" | "flood" | "workers");
    let has_binary = rest.contains(&"--binary");
    if ![
        "relay", "flood", "workers", "arms", "gateway", "web", "soak",
    ]
    .contains(&name)
    {
        return None;
    }
    if is_slow && !(name == "soak" && has_binary) {
        return Some(as_release(root, arguments, !has_binary).and_then(Err));
    }
    Some(own_directory().and_then(|own| match name {
        "relay" => relay::run(root, rest),
        "workers" => workers::run(root, rest),
        "flood" => flood::run(root, rest),
        "arms" => arms::run(&own, rest),
        "gateway" => gateway::run(root, &own, rest),
        "web" => web::run(&own, rest),
        _ => soak::run(&own, rest),
    }))
}

/// Parses `arguments`, measures, and prints the tables. `false` when nothing could be measured.
fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    if let Some(done) = with_own_options(root, arguments) {
        return done;
    }
    let options = Options::parse(arguments)?;
    let Some(options) = options else {
        println!("{}", options::USAGE);
        return Ok(true);
    };
    // Names that are wrong are told before anything else is done, or built.
    scenarios(root, &options)?;
    if cfg!(debug_assertions) {
        let needs_product =
            options.binary.is_none() && options.groups.contains(&contender::Group::Tabane);
        return Err(as_release(root, arguments, needs_product)?);
    }
    let binary = product(&options)?;
    need_root(arguments)?;
    let _load = options.busy.then(load::Load::on_every_core).transpose()?;
    match options.kind {
        Kind::Share => share::run(&binary, &options),
        Kind::Lan => lan::run(root, &binary, &options),
        Kind::Figures => figures(root, &binary, &options),
        Kind::Goodput => {
            let record = goodput::run(root, &binary, &options, |record| keep(&options, record))?;
            print!("{}", table::print(&record, options.markdown));
            Ok(record.has_values())
        }
        Kind::Latency
        | Kind::Fetch
        | Kind::Udp
        | Kind::Selftest
        | Kind::Sockets
        | Kind::Cost
        | Kind::Startup
        | Kind::Carriers
        | Kind::Expose
        | Kind::Sites => {
            let sheet = sheet(root, &binary, &options, |sheet| keep(&options, sheet))?;
            if let (Kind::Startup, Some(path)) = (options.kind, &options.svg) {
                startup::draw(&sheet, path)?;
            }
            print!("{}", sheet.print(options.markdown));
            Ok(sheet.has_values())
        }
    }
}

fn need_root(arguments: &[&str]) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "networks to measure on need root: sudo {} {}",
        std::env::current_exe().unwrap_or_default().display(),
        arguments.join(" ")
    );
    Ok(())
}

/// Writes the JSON, if one was asked for. Done after every row: what is measured is kept if the
/// rest is interrupted.
fn keep(options: &Options, results: &impl Serialize) -> Result<()> {
    let Some(path) = &options.json else {
        return Ok(());
    };
    let text = serde_json::to_string_pretty(results)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Every bench that has figures, one after the other.
#[derive(Debug, Default, Serialize)]
struct Figures {
    sheets: Vec<Sheet>,
    goodput: Option<Record>,
}

/// Measures all there are figures for; `false` when one of the relay's is missed.
fn figures(root: &Path, binary: &Path, options: &Options) -> Result<bool> {
    let mut all = Figures::default();
    let mut totals = Vec::new();
    for kind in [
        Kind::Selftest,
        Kind::Sockets,
        Kind::Latency,
        Kind::Fetch,
        Kind::Udp,
        Kind::Carriers,
    ] {
        let sheet = sheet(root, binary, &options.with(kind), |_| Ok(()))?;
        println!("{}", sheet.print(options.markdown));
        totals.push(format!("{}: {}", sheet.bench, sheet.total()));
        all.sheets.push(sheet);
        keep(options, &all)?;
    }
    let record = goodput::run(root, binary, &options.with(Kind::Goodput), |record| {
        all.goodput = Some(record.clone());
        keep(options, &all)
    })?;
    println!("{}", table::print(&record, options.markdown));
    totals.push(format!("goodput: {}", figure::total(&record.scenarios)));
    let is_small = relay::run(root, &[])?;
    let told = if is_small { "reached" } else { "missed" };
    totals.push(format!("relay: memory of an idle session is {told}"));
    println!("\n{}", totals.join("\n"));
    Ok(is_small)
}

/// The networks of a bench.
fn scenarios(root: &Path, options: &Options) -> Result<Vec<Scenario>> {
    match options.kind {
        Kind::Selftest => selftest::scenarios(),
        Kind::Sockets => sockets::scenarios(),
        Kind::Carriers => carriers::scenarios(&options.names),
        Kind::Expose => expose::scenarios(),
        Kind::Sites => sites::scenarios(),
        _ => options.scenarios(root),
    }
}

/// One bench of single figures on all its rows.
fn sheet(
    root: &Path,
    binary: &Path,
    options: &Options,
    mut keep: impl FnMut(&Sheet) -> Result<()>,
) -> Result<Sheet> {
    let scenarios = scenarios(root, options)?;
    let rows = options.rows(&scenarios);
    let name = options.kind.name();
    eprintln!("bench {name}: {} rows of {}", rows.len(), scenarios.len());
    let mut sheet = Sheet {
        bench: name,
        conditions: machine::conditions(root, binary, options),
        rows: Vec::new(),
    };
    for (scenario, direction) in &rows {
        let row = row(scenario, *direction, binary, options).unwrap_or_else(|error| {
            let mut row = Row::new(&record::title(&scenario.name, *direction));
            row.fail(&error);
            row
        });
        sheet.rows.push(row);
        keep(&sheet)?;
    }
    Ok(sheet)
}

fn row(scenario: &Scenario, direction: Direction, binary: &Path, options: &Options) -> Result<Row> {
    match options.kind {
        Kind::Latency => latency::measure(scenario, direction, binary, options),
        Kind::Fetch => fetch::measure(scenario, direction, binary, options),
        Kind::Udp => udp::measure(scenario, direction, binary, options),
        Kind::Selftest => selftest::measure(scenario, binary, options),
        Kind::Sockets => sockets::measure(scenario, binary, options),
        Kind::Cost => cost::measure(scenario, direction, binary, options),
        Kind::Startup => startup::measure(scenario, binary, options),
        Kind::Carriers => carriers::measure(scenario, binary, options),
        Kind::Expose => expose::measure(scenario, binary, options),
        Kind::Sites => sites::measure(scenario, binary, options),
        Kind::Goodput | Kind::Share | Kind::Lan | Kind::Figures => {
            unreachable!("they have no sheet")
        }
    }
}

/// Goes on as the release build of this program: the emulator shares the machine with what it
/// measures, and must not be what limits it. Returns only if that fails.
fn as_release(root: &Path, arguments: &[&str], with_product: bool) -> Result<anyhow::Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--release", "--package", "tabane-bench"])
        .current_dir(root);
    if with_product {
        build.args(["--package", "tabane"]);
    }
    let built = build.status().context("cannot start cargo")?;
    ensure!(built.success(), "the release build failed");
    let release = own_directory()?.with_file_name("release");
    let release = release.join("tabane-bench");
    let failed = Command::new(&release).args(arguments).exec();
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
