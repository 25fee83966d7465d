//! `tabane doctor`: what this machine lacks, and the command that mends it.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use crate::output;
use tabane_client::doctor::{Finding, Grade, Machine, Mode, Network, judge, works};
#[cfg(feature = "sctp")]
use tabane_sctp::shell::UDP_PORT as SCTP_PORT;
use tabane_store::{DEFAULT_PORT, Store};

/// Looked at, though nothing is said of it in a build without SCTP.
#[cfg(not(feature = "sctp"))]
const SCTP_PORT: u16 = 9899;

/// Look for what is missing on this machine, and say what mends it
///
/// Tries what each mode needs (socket hooks, TUN, namespaces, …) and takes it down again; asks the
/// relays over every link, with a session that carries nothing. With a MODE, looks at what that
/// mode needs and ends with status 1 where it cannot work.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Only what this needs
    #[arg(value_parser = modes())]
    mode: Option<Mode>,
    /// Do not ask the relays
    #[arg(long)]
    offline: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    modes: Vec<ModeReport>,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct ModeReport {
    mode: Mode,
    works: bool,
}

/// A mode by its name, for the command line.
fn modes() -> impl TypedValueParser<Value = Mode> {
    let names = built().map(|mode| PossibleValue::new(mode.name()).help(usage(mode)));
    PossibleValuesParser::new(names).try_map(|name| {
        let named = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        named.ok_or("no such mode")
    })
}

/// The modes that this build has.
fn built() -> impl Iterator<Item = Mode> {
    Mode::ALL.into_iter().filter(|mode| match mode {
        Mode::Sctp => cfg!(feature = "sctp"),
        Mode::Lab => cfg!(feature = "lab"),
        Mode::Run | Mode::Proxy | Mode::Up | Mode::Relay | Mode::Gateway => true,
    })
}

fn usage(mode: Mode) -> &'static str {
    match mode {
        Mode::Run => "`tabane run -- CMD`",
        Mode::Proxy => "`tabane proxy`, `tabane run --proxy`",
        Mode::Up => "`tabane up`, for the whole machine",
        Mode::Relay => "`tabane relay`",
        Mode::Sctp => "`tabane sctp`",
        Mode::Gateway => "`tabane gateway`",
        Mode::Lab => "`tabane lab`, and `tabane demo` with namespaces",
    }
}

pub(crate) fn run(args: &DoctorArgs, store: &Store) -> Result<ExitCode> {
    let machine = Machine::look(DEFAULT_PORT, SCTP_PORT);
    let network = tabane_tunnel::block_on(Network::look(store, args.offline))
        .context("cannot set up the event loop")?;
    let mut findings = judge(&machine, &network);
    let modes = match args.mode {
        Some(mode) => vec![mode],
        None => built().collect(),
    };
    findings.retain(|finding| finding.modes.iter().any(|mode| modes.contains(mode)));
    let report = Report {
        modes: modes
            .iter()
            .map(|mode| ModeReport {
                mode: *mode,
                works: works(*mode, &findings),
            })
            .collect(),
        findings,
    };
    match args.json {
        true => output::json(&report)?,
        false => output::line(&text(&report))?,
    }
    let is_broken = report.modes.iter().any(|mode| !mode.works);
    Ok(match args.mode.is_some() && is_broken {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn text(report: &Report) -> String {
    let mut rows = Vec::new();
    for finding in &report.findings {
        let grade = match finding.grade {
            Grade::Good => "ok",
            Grade::Poor => "poor",
            Grade::Missing => "MISSING",
        };
        rows.push(vec![
            grade.to_owned(),
            finding.check.to_owned(),
            finding.what.clone(),
        ]);
        if let Some(remedy) = &finding.remedy {
            rows.push(vec![String::new(), String::new(), format!("→ {remedy}")]);
        }
    }
    let table = output::table(&["", "check", "found"], &rows);
    let modes: Vec<String> = report
        .modes
        .iter()
        .map(|mode| mode_line(mode, report))
        .collect();
    format!("{table}\n\n{}", modes.join("\n"))
}

fn mode_line(mode: &ModeReport, report: &Report) -> String {
    let stops =
        |finding: &&Finding| finding.grade == Grade::Missing && finding.modes.contains(&mode.mode);
    let missing: Vec<&str> = report
        .findings
        .iter()
        .filter(stops)
        .map(|finding| finding.check)
        .collect();
    let name = mode.mode.name();
    match mode.works {
        true => format!("{name:<7} works"),
        false => format!("{name:<7} cannot work: {}", missing.join(", ")),
    }
}
