//! `tabane policy check`: what is wrong with a policy file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::output;
use tabane_store::PolicyReport;

/// Check a policy file and change nothing
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The file [default: the one in use]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Looks at the file that was named, or at the one in use, which is at `used`.
pub(super) fn run(args: CheckArgs, used: PathBuf) -> Result<ExitCode> {
    let is_named = args.file.is_some();
    let report = PolicyReport::of(args.file.unwrap_or(used), is_named)?;
    match args.json {
        true => output::json(&report)?,
        false => tell(&report)?,
    }
    Ok(ExitCode::from(u8::from(!report.faults.is_empty())))
}

/// Every fault in a line of its own, to stderr.
fn tell(report: &PolicyReport) -> Result<()> {
    let path = report.file.display();
    if !report.exists {
        return output::line(&format!(
            "no policy is set: {path} is not there; `tabane policy set` makes it"
        ));
    }
    for fault in &report.faults {
        output::note(format_args!("{path}:{}: {}", fault.line, fault.what));
    }
    for note in &report.notes {
        output::line(&format!("{path}:{}: note: {}", note.line, note.what))?;
    }
    match report.faults.is_empty() {
        true => output::line(&format!("{path}: no fault")),
        false => Ok(()),
    }
}
