//! `tabane lab`: emulated links between two network namespaces, to play in by hand.
//!
//! Owns the flags and what is printed about a lab; building and removing it is the lab crate's.

mod background;
mod command;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use tabane_netem::Scenario;

use crate::scenarios;

/// Emulated links between two namespaces of this machine, to try anything on (needs root)
///
/// The client has one interface per link of the scenario; the server is reached at 10.78.0.1 (and
/// fd78::1) over each of them.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    Up(background::UpArgs),
    Down(background::DownArgs),
    List(background::ListArgs),
    Set(background::SetArgs),
    Run(command::RunArgs),
    /// Holds a lab; what `up` leaves in the background
    #[command(hide = true)]
    Hold(background::UpArgs),
}

/// Which links there are.
#[derive(Debug, Clone, Args)]
struct ScenarioArgs {
    /// A scenario file, or a name as `tabane demo` takes it
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Which variant of the scenario, where it has several
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
}

impl ScenarioArgs {
    fn load(&self) -> Result<Scenario> {
        scenarios::load(&self.scenario, self.variant.as_deref())
    }
}

pub(crate) fn run(args: LabArgs) -> Result<ExitCode> {
    match args.command {
        LabCommand::Up(args) => background::up(&args),
        LabCommand::Down(args) => background::down(&args),
        LabCommand::List(args) => background::list(&args),
        LabCommand::Set(args) => background::set(&args),
        LabCommand::Run(args) => command::run(args),
        LabCommand::Hold(args) => background::hold(&args),
    }
}
