//! `tabane lab run`: a lab as long as one command runs in it.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nix::sys::signal::Signal;
use tabane_lab::{Lab, LabOptions, SERVICE, SERVICE6};
use tabane_linux::child;

use super::ScenarioArgs;
use crate::event_loop;
use crate::program::Program;
use crate::signals;

/// Run a command on the client of a lab that lasts as long as the command
///
/// The command finds in its environment: TABANE_LAB_SERVER and TABANE_LAB_SERVER6 (the server's
/// addresses), TABANE_LAB_LINKS (interfaces of the client), TABANE_LAB_CLIENT_NETNS and
/// TABANE_LAB_SERVER_NETNS (for `ip netns exec`). Ends with the command's exit status.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(args: RunArgs) -> Result<ExitCode> {
    let program = Program::find(&args.command)?;
    let scenario = args.scenario.load()?;
    let playing = async {
        // Before there are threads, so that none of them gets the signals.
        let signals = signals::catch()?;
        let lab = Lab::up(&scenario, &LabOptions::default())?;
        let command = command(&lab, &program, &args.command);
        program.run_to_its_end(command, &signals).await
    };
    event_loop::carry(playing)
}

fn command(lab: &Lab, program: &Program, words: &[OsString]) -> std::process::Command {
    let [name, arguments @ ..] = words else {
        return program.command();
    };
    let links: Vec<_> = lab
        .links()
        .iter()
        .map(|link| link.interface.as_str())
        .collect();
    let mut command = lab.client().command(&name.to_string_lossy());
    command
        .args(arguments)
        .env("TABANE_LAB_SERVER", SERVICE.to_string())
        .env("TABANE_LAB_SERVER6", SERVICE6.to_string())
        .env("TABANE_LAB_LINKS", links.join(" "))
        .env("TABANE_LAB_CLIENT_NETNS", lab.client().name())
        .env("TABANE_LAB_SERVER_NETNS", lab.server().name());
    child::prepare(&mut command, Signal::SIGHUP, None);
    command
}
