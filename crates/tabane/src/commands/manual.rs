//! `tabane manual DIRECTORY`: manual pages out of the same definition as `--help`, for packages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};

/// Write a manual page for every command
#[derive(Debug, Args)]
pub(crate) struct ManualArgs {
    /// Where to: tabane.1, tabane-run.1 and so on
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(crate) fn run(args: &ManualArgs, tabane: Command) -> Result<ExitCode> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(tabane, directory))
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
