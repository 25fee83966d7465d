//! `tabane dashboard`: a running instance in a browser.
//!
//! Owns the door for the browser; the page is the control crate's, what it shows the instance's.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;
use clap::Args;
use tabane_control::Bridge;
use tokio::task::LocalSet;

use super::status::InstanceArgs;
use crate::event_loop;
use crate::output;
use tabane_store::secret;

/// Watch and steer a running tabane in a browser: live charts, links, sessions, events, policy
///
/// Prints an address to open; it holds a token, so others on this machine get nothing. Serves
/// until stopped: when the instance has ended, the page goes over to the next one of its kind.
/// From elsewhere: `ssh -L PORT:127.0.0.1:PORT`.
/// An instance that was started with `--http` serves the same page itself.
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    /// The loopback address to serve at [default: 127.0.0.1 and a free port]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Open it in this desktop's browser
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &DashboardArgs) -> Result<ExitCode> {
    let instance = args.instance.find()?;
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let token = secret::token();
    let bridge = Bridge::open(args.listen.unwrap_or(any), token.clone(), &instance.socket)?;
    let url = format!("http://{}/#{token}", bridge.address());
    output::line(&url)?;
    if args.open {
        open(&url);
    }
    event_loop::ask(LocalSet::new().run_until(bridge.serve()))??;
    Ok(ExitCode::SUCCESS)
}

fn open(url: &str) {
    let opened = Command::new("xdg-open")
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opened {
        tracing::warn!("cannot open a browser ({error}): open the address yourself");
    }
}
