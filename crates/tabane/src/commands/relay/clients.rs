//! `tabane relay clients`: the clients a relay has admitted.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use tabane_core::PublicKey;

use crate::output;
use tabane_relay::RelayState;

/// List the clients that were admitted, or turn one away
#[derive(Debug, Args)]
pub(crate) struct ClientsArgs {
    #[command(subcommand)]
    command: Option<ClientsCommand>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ClientsCommand {
    /// Turn a client away, whatever token it shows; its running sessions end at once
    Revoke {
        /// The client's key, as the list shows it
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: PublicKey,
    },
    /// Let a client in again that was turned away
    Restore {
        /// The client's key, as the list shows it
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: PublicKey,
    },
}

#[derive(Serialize)]
struct Row {
    key: String,
    user: Option<String>,
    token: String,
    enrolled_s_ago: u64,
    revoked: bool,
}

pub(super) fn run(args: ClientsArgs, state: &RelayState) -> Result<ExitCode> {
    match args.command {
        Some(ClientsCommand::Revoke { key }) => {
            set_revoked(state, key, true)?;
            output::line("revoked")?;
        }
        Some(ClientsCommand::Restore { key }) => {
            set_revoked(state, key, false)?;
            output::line("restored")?;
        }
        None => list(state, args.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn set_revoked(state: &RelayState, key: PublicKey, revoked: bool) -> Result<()> {
    if !state.update_access(|list| list.set_revoked(key, revoked))?? {
        bail!("no client has this key; `tabane relay clients` lists them");
    }
    Ok(())
}

fn list(state: &RelayState, json: bool) -> Result<()> {
    let now = state.now()?;
    let list = state.access()?;
    let rows = list.clients().iter().map(|entry| Row {
        key: entry.key.to_string(),
        user: entry.user.as_ref().map(ToString::to_string),
        token: entry.token_label.clone(),
        enrolled_s_ago: now.saturating_sub(entry.enrolled_at),
        revoked: entry.revoked,
    });
    let rows: Vec<Row> = rows.collect();
    if json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        return output::line("no client has been admitted yet");
    }
    let state = |it: &Row| if it.revoked { "revoked" } else { "" };
    output::line(&output::items(
        &rows,
        &[
            ("key", &|it| it.key.clone()),
            ("user", &|it| it.user.clone().unwrap_or_default()),
            ("token", &|it| format!("{}…", it.token)),
            ("admitted", &|it| output::age(it.enrolled_s_ago)),
            ("", &|it| state(it).to_owned()),
        ],
    ))
}
