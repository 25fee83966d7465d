//! `tabane share`: lend this machine's link to friends near by, and know whose links may be
//! borrowed.
//!
//! Owns the flags and the lists. Lending is `serve`'s, getting to know each other `pairing`'s.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tabane_base::Bytes;
use tabane_policy::{Budget, Hours};
use tabane_uplinks::{Lending, LendingOrder, counted_by};

use crate::{event_loop, output, program, signals};
use tabane_store::{RelayName, Store, quantity::RateText, wall_clock::today};

mod pairing;

/// Lend this machine's link to friends near by, for the web and for their sessions
///
/// Without a command it lends, until Ctrl-C. Friends are those who were paired once: `tabane share
/// pair` here shows a code, `tabane share pair CODE` there uses it. Friends reach web servers
/// and relays on the internet, and nothing of this machine or its networks. This machine sees which
/// hosts they ask for and how much comes, not what.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ShareArgs {
    #[command(subcommand)]
    command: Option<ShareCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Lend this interface's link [default: the route that the system takes]
    #[arg(long, value_name = "IF")]
    link: Option<String>,
    /// TCP address to listen on [default: [::]:4511, which is IPv4 as well]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Let friends connect, and their sessions send, to this port; repeat for several [default:
    /// TCP 80 and 443, UDP 443 and 4510]
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<u16>,
    /// Do not announce this machine on the local networks (DNS-SD): to pair with it, friends must
    /// say where it is. Later it answers those who know its key, by UDP at the same port
    #[arg(long)]
    hidden: bool,
    /// What friends call this machine [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<RelayName>,
}

#[derive(Debug, Subcommand)]
enum ShareCommand {
    Pair(pairing::PairArgs),
    /// Show the friends who may borrow this machine's link, and what they have used
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Lend to a friend no longer; what it has open ends within a second
    Revoke {
        /// The friend's name; `tabane share status` lists them
        #[arg(value_name = "NAME")]
        name: RelayName,
    },
    /// List the neighbours whose links this machine may borrow
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Borrow a neighbour's link no longer
    Forget {
        /// The neighbour's name; `tabane share list` lists them
        #[arg(value_name = "NAME")]
        name: RelayName,
    },
}

pub(crate) fn run(args: ShareArgs, store: &Store) -> Result<ExitCode> {
    match args.command {
        None => serve(&args.serve, store),
        Some(ShareCommand::Pair(args)) => pairing::run(&args, store),
        Some(ShareCommand::Status { json }) => status(json, store),
        Some(ShareCommand::List { json }) => list(json, store),
        Some(ShareCommand::Revoke { name }) => {
            if !store.remove_friend(&name)? {
                bail!("no friend is called '{name}'; `tabane share status` lists them");
            }
            output::line(&format!("{name} may borrow no longer"))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(ShareCommand::Forget { name }) => {
            if !store.remove_neighbour(&name)? {
                bail!("no neighbour is called '{name}'; `tabane share list` lists them");
            }
            output::line(&format!("forgot {name}"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn status(json: bool, store: &Store) -> Result<ExitCode> {
    let lent = store.lent()?;
    let friends = store.friends()?.into_iter().map(|(name, friend)| {
        let budget = counted_by(&friend.terms);
        let used = lent.used(&friend.key, &budget, today());
        (name, friend, used)
    });
    let friends: Vec<_> = friends.collect();
    if json {
        let rows = friends.iter().map(|(name, friend, used)| {
            json!({
                "name": name.as_str(),
                "key": friend.key,
                "budget": friend.terms.budget,
                "rate": friend.terms.rate,
                "hours": friend.terms.hours,
                "used_bytes": used.get(),
            })
        });
        output::json(&rows.collect::<Vec<_>>())?;
    } else if friends.is_empty() {
        output::line("no friend yet; `tabane share pair` shows a code for one")?;
    } else {
        let or_all = |text: &Option<String>| text.clone().unwrap_or_else(|| "any".to_owned());
        output::line(&output::items(
            &friends,
            &[
                ("friend", &|(name, ..)| name.to_string()),
                ("used", &|(_, _, used)| rounded(*used)),
                ("budget", &|(_, friend, _)| or_all(&friend.terms.budget)),
                ("rate", &|(_, friend, _)| or_all(&friend.terms.rate)),
                ("hours", &|(_, friend, _)| or_all(&friend.terms.hours)),
            ],
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool, store: &Store) -> Result<ExitCode> {
    let neighbours = store.neighbours()?;
    if json {
        let rows = neighbours
            .iter()
            .map(|(name, it)| json!({"name": name.as_str(), "address": it.address, "key": it.key}));
        output::json(&rows.collect::<Vec<_>>())?;
    } else if neighbours.is_empty() {
        output::line(
            "no neighbour yet; `tabane share pair` at a neighbour's shows a code to use here",
        )?;
    } else {
        let rows = neighbours
            .into_iter()
            .map(|(name, it)| vec![name.to_string(), it.address, it.key]);
        let rows: Vec<_> = rows.collect();
        output::line(&output::table(&["neighbour", "address", "key"], &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lends until Ctrl-C.
fn serve(args: &ServeArgs, store: &Store) -> Result<ExitCode> {
    let serving = async {
        let signals = signals::catch()?;
        let order = LendingOrder {
            link: args.link.clone(),
            listen: args.listen,
            ports: args.ports.clone(),
            hidden: args.hidden,
            name: own_name(args.name.as_ref()),
        };
        let lending = Lending::open(&order, store).await?;
        output::line(&format!(
            "lending {} on port {} to {}; Ctrl-C ends it",
            args.link.as_deref().unwrap_or("this machine's link"),
            lending.port(),
            match lending.friends() {
                0 => "nobody yet (`tabane share pair` shows a code)".to_owned(),
                1 => "one friend".to_owned(),
                count => format!("{count} friends"),
            }
        ))?;
        match lending.run(signals.next()).await {
            Some(arrived) => Ok(program::signal_code(arrived?.signal)),
            None => Ok(ExitCode::SUCCESS),
        }
    };
    event_loop::carry(serving)
}

/// `3.9 MB`
fn rounded(bytes: Bytes) -> String {
    let bytes = bytes.get();
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

fn budget(text: &str) -> Result<String, String> {
    let wrong = || format!("'{text}' is no budget; write it like 5GB/month or 500MB/day");
    Budget::parse(text).ok_or_else(wrong)?;
    Ok(text.to_owned())
}

fn rate(text: &str) -> Result<String, String> {
    text.parse::<RateText>()?;
    Ok(text.to_owned())
}

fn hours(text: &str) -> Result<String, String> {
    let wrong = || format!("'{text}' is no part of the day; write it like 22:00-06:00");
    Ok(Hours::parse(text).ok_or_else(wrong)?.to_string())
}

/// What this machine calls itself.
fn own_name(given: Option<&RelayName>) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = given.map(ToString::to_string).or_else(host);
    let name = name.map(|name| name.trim().chars().take(60).collect::<String>());
    let is_plain = |name: &String| !name.is_empty() && name.is_ascii();
    name.filter(is_plain)
        .unwrap_or_else(|| "neighbour".to_owned())
}
