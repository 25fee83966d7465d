//! `tabane relays`: the relays that were joined, and which is preferred.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use tabane_control::{State, running};

use crate::{event_loop, output};
use tabane_client::{SessionOrder, SessionPlan};
use tabane_store::{FleetMember, RelayName, Store};
use tabane_tunnel::RelayMerit;

/// List the relays that were joined, the preferred first
///
/// A client uses the first that answers, and goes over to the next while that one does not. The
/// relays of a fleet are asked how far they are, and the nearest is first; a session goes over to a
/// nearer one only while it carries nothing.
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
    /// Put a relay before all others, for clients that start from now on
    Prefer {
        /// The relay's name
        #[arg(value_name = "NAME")]
        name: RelayName,
    },
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
    /// Of a fleet's relay: the least round trip to it over any link, if it answered.
    rtt_ms: Option<f64>,
    region: Option<String>,
    /// Why it has its place.
    why: &'static str,
}

pub(crate) fn run(args: &RelaysArgs, store: &Store) -> Result<ExitCode> {
    match &args.command {
        None => list(args.json, store),
        Some(RelaysCommand::Prefer { name }) => prefer(name, store),
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
    let weighing = async {
        let running = running().await;
        if store.relays_in_order()?.is_empty() {
            return Ok((running, Vec::new()));
        }
        let plan = SessionPlan::new(SessionOrder::default(), store)?;
        Ok::<_, anyhow::Error>((running, plan.weigh(store).await?))
    };
    let (running, relays) = event_loop::carry(weighing)?;
    let rows: Vec<Row> = relays
        .iter()
        .enumerate()
        .map(|(place, (member, merit))| Row {
            name: member.name.to_string(),
            addresses: member
                .entry
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            key: member.entry.key.to_string(),
            default: place == 0,
            used_by: users(&running, &member.entry.key.to_string()),
            rtt_ms: merit.distance.map(|distance| distance.as_secs_f64() * 1e3),
            region: (!member.region.is_empty()).then(|| member.region.clone()),
            why: why(&relays, place, merit),
        })
        .collect();
    if json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line("no relay yet; run `tabane join STRING` with the line `tabane relay` prints")?;
    } else {
        print(rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a relay has its place among all.
fn why(relays: &[(FleetMember, RelayMerit)], place: usize, merit: &RelayMerit) -> &'static str {
    let of_fleet = |other: &&(FleetMember, RelayMerit)| other.1.preference == merit.preference;
    if relays.iter().filter(of_fleet).nth(1).is_none() {
        return if place == 0 { "preferred" } else { "" };
    }
    let is_first = relays.iter().position(|it| of_fleet(&it)) == Some(place);
    match (merit.is_draining, merit.distance) {
        (true, _) => "drains",
        (false, None) => "no answer",
        (false, Some(_)) if is_first => "nearest",
        (false, Some(_)) => "farther",
    }
}

fn print(rows: Vec<Row>) -> Result<()> {
    // Where there is no fleet, nothing was measured.
    let is_weighed = rows.iter().any(|row| !["", "preferred"].contains(&row.why));
    let cells: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| {
            let mark = if row.default { "*" } else { "" };
            let mut cells = vec![row.name, mark.to_owned(), row.used_by.join(" ")];
            if is_weighed {
                let rtt = row.rtt_ms.map(|rtt| format!("{rtt:.2} ms"));
                cells.extend([rtt.unwrap_or_default(), row.why.to_owned()]);
                cells.push(row.region.unwrap_or_default());
            }
            cells.extend([row.addresses.join(" "), row.key]);
            cells
        })
        .collect();
    let weighed = ["round trip", "why", "region"];
    let weighed = weighed.iter().filter(|_| is_weighed);
    let headings = ["name", "", "used by"].iter().chain(weighed);
    let headings: Vec<&str> = headings.chain(&["addresses", "key"]).copied().collect();
    output::line(&output::table(&headings, &cells))
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
