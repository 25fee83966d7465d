//! `tabane relay clients`: the clients a relay has admitted.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use tabane_core::PublicKey;

use crate::access::unix_seconds;
use crate::output;
use crate::relay_state::RelayState;

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
    /// Turn a client away from its next session on, whatever token it shows
    Revoke {
        /// The client's key, as the list shows it
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: PublicKey,
    },
}

#[derive(Serialize)]
struct Row {
    key: String,
    token: String,
    enrolled_s_ago: u64,
    revoked: bool,
}

pub(super) fn run(args: ClientsArgs, state: &RelayState) -> Result<ExitCode> {
    match args.command {
        Some(ClientsCommand::Revoke { key }) => {
            if !state.access().update(|list| list.revoke_client(key))? {
                bail!("no client has this key; `tabane relay clients` lists them");
            }
            output::line("revoked")?;
        }
        None => list(state, args.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(state: &RelayState, json: bool) -> Result<()> {
    let now = unix_seconds();
    let list = state.access().read()?;
    let rows = list.clients().iter().map(|entry| Row {
        key: entry.key.to_string(),
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
    let cells: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| {
            let state = if row.revoked { "revoked" } else { "" };
            vec![
                row.key,
                row.token + "…",
                output::age(row.enrolled_s_ago),
                state.to_owned(),
            ]
        })
        .collect();
    output::line(&output::table(&["key", "token", "admitted", ""], &cells))
}
