//! `tabane relays`: the relays that were joined.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::output;
use crate::store::Store;

/// List the relays that were joined
#[derive(Debug, Args)]
pub(crate) struct RelaysArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    addresses: Vec<String>,
    key: String,
    /// Used when no other is named.
    default: bool,
}

pub(crate) fn run(args: &RelaysArgs, store: &Store) -> Result<ExitCode> {
    let relays = store.relays()?;
    let configured = store.settings()?.relay;
    let rows: Vec<Row> = relays
        .iter()
        .map(|(name, relay)| Row {
            name: name.to_string(),
            addresses: relay.addresses.iter().map(ToString::to_string).collect(),
            key: relay.key.to_string(),
            default: configured.as_deref() == Some(name.as_str()) || relays.len() == 1,
        })
        .collect();
    if args.json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line("no relay yet; run `tabane join STRING` with the line `tabane relay` prints")?;
    } else {
        let cells: Vec<Vec<String>> = rows
            .into_iter()
            .map(|row| {
                let mark = if row.default { "*" } else { "" };
                vec![row.name, mark.to_owned(), row.addresses.join(" "), row.key]
            })
            .collect();
        output::line(&output::table(&["name", "", "addresses", "key"], &cells))?;
    }
    Ok(ExitCode::SUCCESS)
}
