//! `tabane relay token`: the tokens that admit new clients.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::output;
use tabane_relay::{RelayState, TokenUses, UserName};
use tabane_store::quantity::Lifetime;

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
        /// How many clients it admits: one, many or a number
        #[arg(long, value_name = "USES", default_value = "one")]
        uses: TokenUses,
        /// How long it admits them: 30min, 1h, 7d, never; clients it has admitted stay admitted
        #[arg(long = "for", value_name = "SPAN", default_value = "24h")]
        lasts: Lifetime,
        /// The user whose devices it admits; without one, a client's only limit is 8 sessions
        #[arg(long, value_name = "NAME")]
        user: Option<UserName>,
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
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        label: String,
    },
}

#[derive(Serialize)]
struct Row {
    token: String,
    user: Option<String>,
    uses: String,
    age_s: u64,
    expires_in_s: Option<u64>,
}

pub(super) fn run(args: TokenArgs, state: &RelayState) -> Result<ExitCode> {
    match args.command {
        TokenCommand::New { uses, lasts, user } => {
            let addresses = state.announced()?;
            let token = state.new_token(uses, lasts, user)?;
            output::line(&state.join_string(addresses, token)?.to_string())?;
        }
        TokenCommand::List { json } => list(state, json)?,
        TokenCommand::Revoke { label } => {
            if !state.update_access(|list| list.revoke_token(&label))? {
                bail!("not exactly one token begins with '{label}'; `tabane relay token list`");
            }
            output::line("revoked")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(state: &RelayState, json: bool) -> Result<()> {
    let now = state.now()?;
    let list = state.access()?;
    let admitting = list.tokens().iter().filter(|entry| !entry.is_expired(now));
    let rows = admitting.map(|entry| Row {
        token: entry.token.label().to_owned(),
        user: entry.user.as_ref().map(ToString::to_string),
        uses: entry.uses.to_string(),
        age_s: now.saturating_sub(entry.created_at),
        expires_in_s: entry.expires_at.map(|at| at.saturating_sub(now)),
    });
    let rows: Vec<Row> = rows.collect();
    if json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        return output::line("no token; `tabane relay token new` makes one");
    }
    let never = || "never".to_owned();
    output::line(&output::items(
        &rows,
        &[
            ("token", &|it| format!("{}…", it.token)),
            ("user", &|it| it.user.clone().unwrap_or_default()),
            ("admits", &|it| it.uses.clone()),
            ("made", &|it| output::age(it.age_s)),
            ("expires", &|it| {
                it.expires_in_s.map_or_else(never, output::ahead)
            }),
        ],
    ))
}
