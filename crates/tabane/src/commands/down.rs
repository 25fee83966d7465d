//! `tabane down`: the machine as it was before `tabane up`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::commands::up::END_PATIENCE;
use crate::event_loop;
use crate::failure::Failure;
use crate::output;
use tabane_client::machine::{Running, clear_leftovers};

/// End `tabane up`, and leave the machine as it was before
///
/// Connections that are carried end; everything new goes as usual. Clears away what a daemon that
/// was killed has left, too. Needs root.
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Report {
    /// A daemon was ended.
    stopped: bool,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
}

pub(crate) fn run(args: &DownArgs) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::usage("`tabane down` needs root, as `tabane up` did").into());
    }
    let running = Running::find()?;
    let report = Report {
        stopped: running.is_some(),
        pid: running.as_ref().map(|running| running.pid),
    };
    if let Some(running) = running {
        running.end(END_PATIENCE)?;
    }
    // What one that was killed has left does nothing; it goes all the same.
    event_loop::carry(clear_leftovers())?;
    if args.json {
        output::line(&serde_json::to_string(&report)?)?;
    } else if let Some(pid) = report.pid {
        output::line(&format!("down (process {pid} has ended)"))?;
    } else {
        output::line("tabane was not up")?;
    }
    Ok(ExitCode::SUCCESS)
}
