//! `tabane fleet`: relays that share users, tokens and clients.
//!
//! Owns the flags and what is printed. What an owner does to a fleet is `tabane-relay`'s affair.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use tabane_control::{Fleet, FleetRelay, render_fleet};
use tabane_core::PublicKey;
use tabane_relay::{FleetAddress, FleetOwner, RelayState};

use super::relay::user;
use crate::output;

/// How often `top` looks.
const TOP_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// Found and look after a fleet: relays that share users, tokens and clients by etcd
///
/// A client joins a fleet once and knows all its relays, now and later. `tabane relay user`,
/// `token` and `clients` work on the fleet from any of its machines. What changes the list of
/// relays is signed by the fleet's key and needs it: it is in the directory in which `init` was
/// run.
#[derive(Debug, Args)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    command: FleetCommand,
    /// Directory of the fleet's key, or of a relay of the fleet [default: /var/lib/tabane for
    /// root, else ~/.local/state/tabane]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Make a fleet and its key
    Init {
        /// Where it is kept: etcd://HOST[:PORT][,HOST…][/NAME], as for `tabane relay --fleet`
        #[arg(value_name = "ETCD")]
        etcd: FleetAddress,
    },
    /// Let a relay in that runs and asks for it, or change its region and capacity
    Add {
        /// What the relay is called
        #[arg(value_name = "NAME")]
        name: String,
        /// Its key, where several ask under one name
        #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
        key: Option<PublicKey>,
        /// Where it stands [default: as it says itself]
        #[arg(long, value_name = "REGION")]
        region: Option<String>,
        /// How many sessions it is meant for, for clients that choose
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        capacity: Option<u32>,
    },
    /// Take a relay off the list: it ends, and clients forget it
    Remove {
        /// What the relay is called
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Have a relay take nobody new, let it finish what it carries, and end
    Drain {
        /// What the relay is called
        #[arg(value_name = "NAME")]
        name: String,
        /// Let it serve again when it is started next
        #[arg(long)]
        undo: bool,
    },
    /// Show every relay of the fleet
    Status {
        /// Print JSON
        #[arg(long, conflicts_with = "prometheus")]
        json: bool,
        /// Print metrics for Prometheus, with the relay as label: for a file that node_exporter
        /// collects
        #[arg(long)]
        prometheus: bool,
    },
    /// Show every relay of the fleet again and again, until Ctrl-C
    Top,
    /// List the fleet's users, as `tabane relay user list` does
    Users {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: FleetArgs) -> Result<ExitCode> {
    let state = RelayState::locate(args.state)?;
    match args.command {
        FleetCommand::Init { etcd } => init(&state, etcd)?,
        FleetCommand::Add {
            name,
            key,
            region,
            capacity,
        } => {
            tabane_relay::check_fleet_words(&name, region.as_deref().unwrap_or_default())?;
            let addresses = FleetOwner::open(&state)?.add(&name, key, region, capacity)?;
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            output::line(&format!(
                "{name} is of the fleet, at {}",
                addresses.join(" ")
            ))?;
        }
        FleetCommand::Remove { name } => {
            FleetOwner::open(&state)?.remove(&name)?;
            output::line("removed")?;
        }
        FleetCommand::Drain { name, undo } => {
            FleetOwner::open(&state)?.drain(&name, !undo)?;
            output::line(if undo {
                "serves again when it is started"
            } else {
                "drains"
            })?;
        }
        FleetCommand::Status { json, prometheus } => {
            let report = FleetOwner::open(&state)?.report()?;
            match prometheus {
                true => output::line(render_fleet(&report).trim_end())?,
                false => show(&report, json)?,
            }
        }
        FleetCommand::Top => top(&FleetOwner::open(&state)?)?,
        FleetCommand::Users { json } => {
            FleetOwner::open(&state)?;
            user::list(&state, json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn init(state: &RelayState, etcd: FleetAddress) -> Result<()> {
    let at = etcd.to_string();
    let (owner, is_new) = FleetOwner::found(state, etcd)?;
    let what = if is_new { "made" } else { "there already" };
    output::line(&format!("fleet {} {what}", owner.key()))?;
    output::line(&format!(
        "its secret key is {}/fleet.key: keep a copy of it away from here",
        state.root().display()
    ))?;
    output::line(&format!(
        "on each relay: tabane relay --fleet '{at}' --name NAME"
    ))?;
    output::line("then here:     tabane fleet add NAME")
}

/// Each look in the place of the one before; where etcd is away, that is what is seen.
fn top(owner: &FleetOwner) -> Result<()> {
    loop {
        let looked = owner.report();
        // ECMA-48: to the first place, and nothing below it.
        output::drawn("\x1b[H\x1b[J")?;
        match looked {
            Ok(report) => show(&report, false)?,
            Err(error) => output::line(&format!("{error:#}"))?,
        }
        std::thread::sleep(TOP_INTERVAL);
    }
}

fn show(report: &Fleet, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    output::line(&format!(
        "fleet {}, list {}, etcd {}",
        report.key, report.epoch, report.etcd
    ))?;
    output::line(&format!(
        "{} users, {} tokens, {} clients",
        report.users, report.tokens, report.clients
    ))?;
    for key in &report.odd {
        output::line(&format!("not understood in etcd: {key}"))?;
    }
    if report.relays.is_empty() {
        return output::line("no relay yet; start one with `tabane relay --fleet`, then `add` it");
    }
    let sessions = |it: &FleetRelay| match it.capacity {
        0 => it.sessions.to_string(),
        capacity => format!("{}/{capacity}", it.sessions),
    };
    let clock = |it: &FleetRelay| match it.clock_behind_s {
        0 => String::new(),
        behind => format!("{behind} s behind"),
    };
    output::line(&output::items(
        &report.relays,
        &[
            ("relay", &|it| it.name.clone()),
            ("", &|it| it.state.name().to_owned()),
            ("region", &|it| it.region.clone()),
            ("sessions", &sessions),
            ("carried", &|it| user::amount(it.carried_bytes)),
            ("started", &|it| {
                it.up_s.map(output::age).unwrap_or_default()
            }),
            ("clock", &clock),
            ("addresses", &|it| it.addresses.join(" ")),
        ],
    ))
}
