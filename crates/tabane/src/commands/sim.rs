//! `tabane sim`: the shipped engine in virtual time.
//!
//! Owns the flags and the words; the worlds are the sim crate's. Nothing here touches a network.

mod paper;
mod run;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use tabane_store::atomic_file;

/// Simulate bonds in virtual time: scenario files, and the experiments of the papers
///
/// The same engine that carries traffic runs on both ends of modelled links; a minute passes in
/// seconds, and the same seed gives the same result to the last digit.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    Run(run::RunArgs),
    Paper(paper::PaperArgs),
}

pub(crate) fn run(args: SimArgs) -> Result<ExitCode> {
    match args.command {
        SimCommand::Run(args) => run::run(&args),
        SimCommand::Paper(args) => paper::run(&args),
    }
}

fn write_picture(path: &Path, svg: &str) -> Result<()> {
    atomic_file::replace(path, svg.as_bytes(), atomic_file::PUBLIC)
}
