//! The hidden command that makes a network for `tabane run`: see `linux::private_net`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tabane_linux::private_net::make_for_parent;

/// Make a network for one command, and hand it over on standard input
#[derive(Debug, Args)]
pub(crate) struct PrivateNetworkArgs {
    /// The name of its device
    device: String,
    /// Its IPv4 address
    v4: Ipv4Addr,
    /// How many leading bits of that its neighbours share
    #[arg(value_parser = clap::value_parser!(u8).range(..=32))]
    bits: u8,
    /// Its IPv6 address
    v6: Ipv6Addr,
}

pub(crate) fn run(args: &PrivateNetworkArgs) -> Result<ExitCode> {
    make_for_parent(&args.device, args.v4, args.bits, args.v6)
        .context("only `tabane run` calls this: standard input is not its socket")?;
    Ok(ExitCode::SUCCESS)
}
