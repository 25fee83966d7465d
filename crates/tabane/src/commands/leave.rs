//! `tabane leave NAME`: forget a relay.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::output;
use tabane_store::{RelayName, Store};

/// Forget a relay
#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// The relay's name; `tabane relays` lists them
    #[arg(value_name = "NAME")]
    name: RelayName,
}

pub(crate) fn run(args: &LeaveArgs, store: &Store) -> Result<ExitCode> {
    if !store.remove_relay(&args.name)? {
        bail!(
            "no relay is called '{}'; `tabane relays` lists them",
            args.name
        );
    }
    output::line(&format!("left {}", args.name))?;
    Ok(ExitCode::SUCCESS)
}
