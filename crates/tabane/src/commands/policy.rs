//! `tabane policy`: how links may be used, and what they may cost.

mod check;
mod edit;
mod explain;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use tabane_linux::interfaces::Interface;
use tabane_policy::{LinkFacts, LinkUse};

use crate::event_loop;
use crate::output;
use check::CheckArgs;
use edit::SetArgs;
use explain::ExplainArgs;
use tabane_store::{POLICY_FILE, Store};
use tabane_uplinks::{LinkPolicy, gateways, lent_links};

/// Say how links may be used, by what, and what they may cost, and show what comes of it
///
/// Without a subcommand, shows for each link, neighbours' too, what the policy comes to and why.
/// The policy is `policy.toml` beside the other settings; running sessions follow its changes at
/// once. Rules for connections (by domain, address, port, program), and the commands and web hooks
/// that are told of events, are written there: see the README.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: Option<PolicyCommand>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    Set(Box<SetArgs>),
    /// Forget what was set for a link
    Unset {
        /// The link, as it was named when it was set
        #[arg(value_name = "LINK")]
        link: String,
    },
    Check(CheckArgs),
    Explain(ExplainArgs),
}

#[derive(Serialize)]
struct Row {
    link: String,
    kind: String,
    /// Whether the interface could be a link at all.
    usable: bool,
    /// Whether it may be used at present.
    allowed: bool,
    backup: bool,
    weight: f64,
    priority: u8,
    metered: bool,
    down_bps: Option<u64>,
    up_bps: Option<u64>,
    budget_bytes: Option<u64>,
    used_bytes: Option<u64>,
    /// The line of policy.toml that decides.
    line: Option<usize>,
    text: String,
}

pub(crate) fn run(args: PolicyArgs, store: &Store) -> Result<ExitCode> {
    let path = store.root().join(POLICY_FILE);
    match args.command {
        None => return show(args.json, store),
        Some(PolicyCommand::Set(set)) => edit::set(&path, &set)?,
        Some(PolicyCommand::Unset { link }) => edit::unset(&path, &link)?,
        Some(PolicyCommand::Check(check)) => return check::run(check, path),
        Some(PolicyCommand::Explain(explain)) => return explain::run(&explain, store),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(json: bool, store: &Store) -> Result<ExitCode> {
    let (policy, interfaces) = look(store)?;
    let own = |it: &Interface| row(&policy, &policy.facts(it), it.usable().is_ok());
    let mut rows: Vec<Row> = interfaces.iter().map(own).collect();
    let lenders = lent_links::find(&[], store)?;
    let lent = lenders.iter().filter(|it| !it.is_shadowed(&interfaces));
    rows.extend(lent.map(|it| row(&policy, &it.facts(), true)));
    if json {
        output::json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let links = rows.into_iter().filter(|row| row.usable);
    let cells: Vec<Vec<String>> = links
        .map(|row| {
            let why = match row.line {
                Some(line) => format!("{POLICY_FILE}:{line}"),
                None => "default".to_owned(),
            };
            vec![row.link, row.kind, row.text, why]
        })
        .collect();
    if cells.is_empty() {
        output::line("no interface is a link; `tabane links` says why")?;
    } else {
        output::line(&output::table(&["link", "kind", "policy", "by"], &cells))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The policy as it is here and now, and the interfaces that it is for.
fn look(store: &Store) -> Result<(LinkPolicy, Vec<Interface>)> {
    event_loop::ask(async {
        let policy = LinkPolicy::load_here(store).await?;
        let interfaces = gateways::list(policy.policy()).await;
        Ok((policy, interfaces.context("cannot list the interfaces")?))
    })?
}

fn row(policy: &LinkPolicy, link: &LinkFacts<'_>, usable: bool) -> Row {
    let terms = policy.terms_of(link);
    let text = terms.text();
    let decision = terms.decision;
    Row {
        link: link.name.to_owned(),
        kind: link.kind.to_owned(),
        usable,
        allowed: terms.path.is_some(),
        backup: decision.usage == LinkUse::Backup,
        weight: decision.weight,
        priority: decision.priority,
        metered: decision.metered,
        down_bps: decision.down.map(|rate| rate.as_bps()),
        up_bps: decision.up.map(|rate| rate.as_bps()),
        budget_bytes: decision.budget.map(|budget| budget.amount.get()),
        used_bytes: terms.used.map(|used| used.get()),
        line: decision.line,
        text,
    }
}
