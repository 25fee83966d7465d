//! `tabane relay token`: the tokens that admit new clients.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::access::{TokenUses, unix_seconds};
use crate::output;
use crate::relay_state::RelayState;

/// Make, list and revoke tokens; a running relay notices at once
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print a join string with it
    New {
        /// How many clients it admits
        #[arg(long, value_name = "USES", default_value = "one")]
        uses: TokenUses,
    },
    /// List the tokens that still admit
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a token worthless; clients it has admitted stay admitted
    Revoke {
        /// The token's first letters, as `list` shows them
        #[arg(value_name = "TOKEN", allow_hyphen_values = true)]
        label: String,
    },
}

#[derive(Serialize)]
struct Row {
    token: String,
    uses: TokenUses,
    age_s: u64,
}

pub(super) fn run(args: TokenArgs, state: &RelayState) -> Result<ExitCode> {
    match args.command {
        TokenCommand::New { uses } => {
            let addresses = state.announced()?;
            let token = state.new_token(uses)?;
            output::line(&state.join_string(addresses, token)?.to_string())?;
        }
        TokenCommand::List { json } => list(state, json)?,
        TokenCommand::Revoke { label } => {
            if !state.access().update(|list| list.revoke_token(&label))? {
                bail!("not exactly one token begins with '{label}'; `tabane relay token list`");
            }
            output::line("revoked")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(state: &RelayState, json: bool) -> Result<()> {
    let now = unix_seconds();
    let list = state.access().read()?;
    let rows = list.tokens().iter().map(|entry| Row {
        token: entry.token.label().to_owned(),
        uses: entry.uses,
        age_s: now.saturating_sub(entry.created_at),
    });
    let rows: Vec<Row> = rows.collect();
    if json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        return output::line("no token; `tabane relay token new` makes one");
    }
    let cells: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| {
            let uses = match row.uses {
                TokenUses::One => "one client",
                TokenUses::Many => "any number",
            };
            vec![row.token + "…", uses.to_owned(), output::age(row.age_s)]
        })
        .collect();
    output::line(&output::table(&["token", "admits", "made"], &cells))
}
