//! `tabane peer`: the machines whose services are reached straight, without a relay on the way.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use tabane_base::Prefix;
use tabane_control::{State, running};
use tabane_policy::UnixDay;

use super::join;
use crate::event_loop;
use crate::output;
use tabane_store::{Joined, PeerEntry, RelayName, Store};

/// Reach machines that run tabane themselves straight, without the relay
///
/// On the other machine, `tabane relay --peer` prints the line to add here. From then on
/// connections and UDP flows to its addresses go over all links straight to it; while it does not
/// answer, they go by the relay, or as they would without tabane. Commands that start from now on
/// know of it.
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    #[command(subcommand)]
    command: PeerCommand,
}

#[derive(Debug, Subcommand)]
enum PeerCommand {
    Add(AddArgs),
    /// List the peers, why their keys are trusted, and who reaches them straight now
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget a peer, and the key that was pinned for it
    Remove {
        /// The peer's name; `tabane peer list` lists them
        #[arg(value_name = "NAME")]
        name: RelayName,
    },
}

/// Remember a peer, by the line that `tabane relay --peer` printed there
///
/// Its key is pinned: whoever else answers at its addresses is not spoken with.
#[derive(Debug, Args)]
struct AddArgs {
    /// The whole line, in quotes: tabane://HOST:PORT?key=…&sum=…&token=…; - reads it from standard
    /// input, since a command's arguments are shown to all users of this machine
    #[arg(value_name = "STRING")]
    join: String,
    /// What to call the peer [default: its first address]
    #[arg(long, value_name = "NAME")]
    name: Option<RelayName>,
    /// Further addresses of it than those in the line, e.g. 198.51.100.0/28; repeatable
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    also: Vec<Prefix>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    addresses: Vec<String>,
    also: Vec<String>,
    key: String,
    /// When its key was seen first and trusted: seconds since 1970; none where the user added it.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_use: Option<u64>,
    /// The instances of this user that have a session with it now.
    used_by: Vec<String>,
}

pub(crate) fn run(args: PeerArgs, store: &Store) -> Result<ExitCode> {
    match args.command {
        PeerCommand::Add(args) => add(args, store),
        PeerCommand::List { json } => list(json, store),
        PeerCommand::Remove { name } => remove(&name, store),
    }
}

fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::parse(text).ok_or_else(|| format!("'{text}' is no address range"))
}

fn add(args: AddArgs, store: &Store) -> Result<ExitCode> {
    let join = join::read(&args.join)?;
    let host = &join.addresses[0].host;
    let name = args.name.unwrap_or_else(|| RelayName::from_host(host));
    let hosts: Vec<_> = join
        .addresses
        .iter()
        .map(|it| it.host.to_string())
        .collect();
    store.identity()?;
    let what = match store.put_peer(&name, &PeerEntry::new(join, args.also))? {
        Joined::Added => "added",
        Joined::Updated => "updated",
    };
    output::line(&format!(
        "{what} peer {name}; connections to {} go straight to it",
        hosts.join(", ")
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool, store: &Store) -> Result<ExitCode> {
    let running = event_loop::ask(running())?;
    let peers = store.peers()?;
    let rows: Vec<Row> = peers
        .into_iter()
        .map(|(name, peer)| Row {
            name: name.to_string(),
            addresses: peer.addresses.iter().map(ToString::to_string).collect(),
            also: peer.also.iter().map(ToString::to_string).collect(),
            key: peer.key.to_string(),
            first_use: peer.first_use,
            used_by: users(&running, &peer.key.to_string()),
        })
        .collect();
    if json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line(
            "no peer yet; run `tabane peer add STRING` with the line `tabane relay --peer` prints",
        )?;
    } else {
        let addresses = |it: &Row| [&it.addresses[..], &it.also].concat().join(" ");
        let trust = |it: &Row| match it.first_use {
            None => "added".to_owned(),
            Some(met_at) => {
                let day = UnixDay::at(i64::try_from(met_at).unwrap_or(i64::MAX));
                format!("first use {day}")
            }
        };
        output::line(&output::items(
            &rows,
            &[
                ("name", &|it| it.name.clone()),
                ("used by", &|it| it.used_by.join(" ")),
                ("addresses", &addresses),
                ("trust", &trust),
                ("key", &|it| it.key.clone()),
            ],
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The instances that have a session straight to the peer of this key.
fn users(running: &[State], key: &str) -> Vec<String> {
    let uses = |state: &&State| {
        let mut sessions = state.sessions.iter();
        sessions.any(|it| it.straight_to.is_some() && it.peer.as_deref() == Some(key))
    };
    let users = running.iter().filter(uses);
    users.map(|state| state.instance.name.clone()).collect()
}

fn remove(name: &RelayName, store: &Store) -> Result<ExitCode> {
    if !store.remove_peer(name)? {
        bail!("no peer is called '{name}'; `tabane peer list` lists them");
    }
    output::line(&format!("removed peer {name}"))?;
    Ok(ExitCode::SUCCESS)
}
