//! `tabane open LINK -- CMD`: a command with all its traffic over one link, past the relay.
//!
//! A session of nobody's: captured as `run` captures it, and carried plainly by the link, which is
//! all that a login page's network lets pass.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use tabane_linux::{child::Account, interfaces::Interface};

use crate::commands::run::{RunArgs, run_program};
use crate::event_loop;
use crate::failure::Failure;
use crate::program::{self, Program};
use tabane_client::SessionPlan;
use tabane_store::Store;
use tabane_uplinks::{LinkPolicy, gateways, resolvers_of};

/// Run a command over one link alone and past the relay: a browser, to log in at a captive portal
///
/// TCP, UDP and DNS of the command go by that link, whatever the routing table says; other programs
/// go on as before. `tabane status` and `links` say which links are behind a login page, and where
/// that page is. A browser that is open already hands the page over to itself: let it start anew,
/// e.g. `tabane open wlan0 -- firefox --no-remote --profile "$(mktemp -d)" http://10.0.0.1/login`.
///
/// Captures as `tabane run` does, with root and without. Names are asked of the link's own
/// resolvers as systemd-resolved, NetworkManager or the network's routers know them, else of the
/// servers in /etc/resolv.conf, over that link: a portal's name often means something there alone.
#[derive(Debug, Args)]
pub(crate) struct OpenArgs {
    /// The interface, or the link of one gateway behind it
    #[arg(value_name = "LINK")]
    link: String,
    /// The command and its arguments; put -- before it if it begins with a dash
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
    /// Run the command as this user: browsers want no root
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

pub(crate) fn run(args: OpenArgs, store: &Store) -> Result<ExitCode> {
    let program = Program::find(&args.command)?;
    let account = args.user.as_deref().map(Account::find).transpose();
    let account = account.map_err(|error| Failure::usage(error.to_string()))?;
    let link = args.link;
    let run = RunArgs::plainly(args.command);
    let ended = event_loop::carry(async move {
        let resolvers = resolvers_of(&find(&link, store).await?).await;
        let plan = SessionPlan::over_link(&link, resolvers);
        run_program(run, &plan, store, &program, account).await
    })?;
    Ok(program::end_like(ended))
}

/// The link, if it can be used at all.
async fn find(link: &str, store: &Store) -> Result<Interface> {
    let policy = LinkPolicy::load(store)?;
    let interfaces = gateways::list(policy.policy()).await;
    let interfaces = interfaces.context("cannot list the interfaces")?;
    let why = match interfaces.into_iter().find(|it| it.name == link) {
        Some(interface) => match interface.usable() {
            Ok(()) => return Ok(interface),
            Err(why) => why.to_string(),
        },
        None => "there is no such interface".to_owned(),
    };
    Err(Failure::usage(format!(
        "{link} is no link: {why}; `tabane links` shows all"
    ))
    .into())
}
