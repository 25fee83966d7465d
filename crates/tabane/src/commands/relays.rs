//! `tabane relays`: the relays that were joined, and which is preferred.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use tabane_base::Duration;
use tabane_control::{Client, Directory, State};
use tokio::time::timeout;

use crate::output;
use tabane_store::{RelayName, Store};

/// List the relays that were joined, the preferred first
///
/// A client uses the first that answers, and goes over to the next while that one does not.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RelaysArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<RelaysCommand>,
}

#[derive(Debug, Subcommand)]
enum RelaysCommand {
    Prefer(PreferArgs),
}

/// Put a relay before all others, for clients that start from now on
#[derive(Debug, Args)]
struct PreferArgs {
    /// The relay's name
    #[arg(value_name = "NAME")]
    name: RelayName,
}

#[derive(Serialize)]
struct Row {
    name: String,
    addresses: Vec<String>,
    key: String,
    /// Used first when no other is named.
    default: bool,
    /// The instances of this user that have a session with it now.
    used_by: Vec<String>,
}

/// Who does not say by then what it does is left out.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &RelaysArgs, store: &Store) -> Result<ExitCode> {
    match &args.command {
        None => list(args.json, store),
        Some(RelaysCommand::Prefer(args)) => prefer(&args.name, store),
    }
}

fn prefer(name: &RelayName, store: &Store) -> Result<ExitCode> {
    let text = match store.prefer_relay(name)? {
        Some(before) if before != *name => {
            format!("{name} is preferred now; undo with `tabane relays prefer {before}`")
        }
        _ => format!("{name} is preferred"),
    };
    output::line(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool, store: &Store) -> Result<ExitCode> {
    let relays = store.relays_in_order()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot set up the event loop")?;
    let running = runtime.block_on(running());
    let rows: Vec<Row> = relays
        .iter()
        .enumerate()
        .map(|(place, (name, relay))| Row {
            name: name.to_string(),
            addresses: relay.addresses.iter().map(ToString::to_string).collect(),
            key: relay.key.to_string(),
            default: place == 0,
            used_by: users(&running, &relay.key.to_string()),
        })
        .collect();
    if json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line("no relay yet; run `tabane join STRING` with the line `tabane relay` prints")?;
    } else {
        let cells: Vec<Vec<String>> = rows
            .into_iter()
            .map(|row| {
                let mark = if row.default { "*" } else { "" };
                vec![
                    row.name,
                    mark.to_owned(),
                    row.used_by.join(" "),
                    row.addresses.join(" "),
                    row.key,
                ]
            })
            .collect();
        output::line(&output::table(
            &["name", "", "used by", "addresses", "key"],
            &cells,
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What this user's instances say of themselves.
pub(super) async fn running() -> Vec<State> {
    let mut states = Vec::new();
    for instance in Directory::of_user().running() {
        let client = Client::new(&instance.socket);
        if let Ok(Ok(state)) = timeout(PATIENCE, client.state()).await {
            states.push(state);
        }
    }
    states
}

/// The names of the clients among them that have a session with the relay of this key.
fn users(running: &[State], key: &str) -> Vec<String> {
    let uses = |state: &&State| {
        let mut sessions = state.sessions.iter();
        state.instance.relay.is_some()
            && sessions.any(|it| it.straight_to.is_none() && it.peer.as_deref() == Some(key))
    };
    let users = running.iter().filter(uses);
    users.map(|state| state.instance.name.clone()).collect()
}
