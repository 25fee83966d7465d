//! `tabane top`: a running instance on the whole screen.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::status::InstanceArgs;
use crate::top;

/// Watch a running tabane: rates, delay, loss and queue of every link, as it goes
///
/// Keys: arrows choose a link, p pauses it or uses it again, + and - change its weight, s sorts,
/// ? helps, q ends. Waits for the next instance when this one ends.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    instance: InstanceArgs,
}

pub(crate) fn run(args: TopArgs) -> Result<ExitCode> {
    top::show(args.instance)?;
    Ok(ExitCode::SUCCESS)
}
