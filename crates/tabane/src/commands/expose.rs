//! `tabane expose`: ports of the relay that lead to this machine, or to hosts of its network.
//!
//! Owns what is typed and how it is shown. Asking the relay and leading visitors is the client
//! engine's, what is kept the store's.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use tabane_client::SessionPlan;
use tabane_control::{Exposure, Kind, running_clients};
use tabane_linux::descriptors;
use tabane_store::{ExposureEntry, Store};
use tabane_uplinks::PolicyTextFile;

use crate::event_loop;
use crate::failure::Failure;
use crate::instance::{ControlArgs, Description, Instance};
use crate::output;
use crate::program;
use crate::session_args::SessionArgs;
use crate::signals;

/// Lead ports of the relay to this machine, or to hosts behind it: be reachable without an address
///
/// Until Ctrl-C, whoever connects to these ports of the relay is led to the target, over all links:
/// a web server, ssh, a game. With --keep it is written down instead, and led there whenever
/// `tabane up` runs. The relay's owner grants ports and names: `tabane relay user set NAME --port
/// 443,8000-8100`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ExposeArgs {
    #[command(subcommand)]
    command: Option<ExposeCommand>,
    /// Ports of the relay, and who serves them: 8080, 443=8443, tcp:443=192.168.1.5:443,
    /// udp:27015-27020=nas.lan; without a target the same ports of this machine
    #[arg(required = true, value_name = "[PROTO:]PORTS[=TARGET]")]
    ports: Vec<ExposureEntry>,
    /// Only visitors of this name, by TLS (server name) or HTTP (Host): others may have the port
    /// for other names
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Tell the target in front of each connection who it is from (PROXY protocol, version 2); it
    /// must expect that
    #[arg(long)]
    proxy_protocol: bool,
    /// Open connections from the visitors' own addresses, or not at all: for targets whose router
    /// this machine is (needs root and nft)
    #[arg(long)]
    transparent: bool,
    /// Write it down, for `tabane up`; one that runs takes it up at once
    #[arg(long)]
    keep: bool,
    // Last: their headings hold for every flag that follows.
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Debug, Subcommand)]
enum ExposeCommand {
    /// List what is exposed, kept or by commands that run, and who is connected
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    Remove(RemoveArgs),
}

/// Keep ports exposed no longer; a `tabane up` that runs gives them up at once
#[derive(Debug, Args)]
struct RemoveArgs {
    /// As `tabane expose list` shows it: tcp:443
    #[arg(value_name = "[PROTO:]PORTS")]
    ports: ExposureEntry,
    /// The name, where it was exposed for one
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
}

/// One exposure for display.
#[derive(Serialize)]
struct Row {
    /// It is written down.
    kept: bool,
    /// The instance that has it; none runs.
    instance: Option<String>,
    #[serde(flatten)]
    exposure: Exposure,
}

pub(crate) fn run(args: ExposeArgs, store: &Store) -> Result<ExitCode> {
    match args.command {
        Some(ExposeCommand::List { json }) => return list(json, store),
        Some(ExposeCommand::Remove(remove)) => return self::remove(remove, store),
        None => {}
    }
    let refine = |entry: ExposureEntry| {
        let refined = entry.refined(args.host.clone(), args.proxy_protocol);
        let refined = refined.and_then(|entry| entry.made_transparent(args.transparent));
        refined.map_err(Failure::usage)
    };
    let entries: Vec<_> = args
        .ports
        .into_iter()
        .map(refine)
        .collect::<Result<_, _>>()?;
    if args.keep {
        return keep(entries, store);
    }
    let plan = SessionPlan::new(args.session.into(), store)?;
    if !plan.has_relays() {
        bail!("no relay is known; `tabane join STRING` makes one known");
    }
    let serving = serve(&entries, &args.control, &plan, store);
    event_loop::carry(serving)
}

fn keep(entries: Vec<ExposureEntry>, store: &Store) -> Result<ExitCode> {
    for entry in entries {
        let text = entry.to_string();
        store.put_exposure(entry)?;
        output::line(&format!("kept {text}; `tabane up` leads visitors there"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    entries: &[ExposureEntry],
    control: &ControlArgs,
    plan: &SessionPlan,
    store: &Store,
) -> Result<ExitCode> {
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "no more descriptors than usual");
    }
    let signals = signals::catch()?;
    let places: Vec<_> = entries.iter().map(ExposureEntry::place).collect();
    let description = Description {
        kind: Kind::Expose,
        name: format!("expose-{}", std::process::id()),
        about: format!("leads {} here", places.join(", ")),
        relays: plan.relays(),
        policy: Some(PolicyTextFile::of(store)),
    };
    let (instance, far_ends) = tokio::select! {
        visible = Instance::connect(control, &description, plan, store) => visible?,
        arrived = signals.next() => return Ok(program::signal_code(arrived?.signal)),
    };
    let relay = far_ends.relay().context("no relay is known")?;
    let exposures = far_ends.exposures();
    exposures.set(relay, &plan.rules, entries);
    let telling = async {
        exposures.answered().await;
        let host = far_ends.relay_host();
        for report in exposures.report() {
            if let Some(address) = report.address(host.as_ref()) {
                let (protocol, target) = (report.entry.protocol, &report.entry.target);
                output::line(&format!("{protocol} {address} leads to {target}"))?;
            }
        }
        std::future::pending().await
    };
    let stopped = tokio::select! {
        biased;
        why = exposures.refused() => Err(anyhow::anyhow!("{why}")),
        arrived = signals.next() => arrived.map(|_| ExitCode::SUCCESS).context("signals"),
        reason = far_ends.closed() => Err(anyhow::anyhow!("{reason}")),
        told = telling => told,
    };
    drop(instance);
    far_ends.close().await;
    stopped
}

fn list(json: bool, store: &Store) -> Result<ExitCode> {
    let states = event_loop::ask(running_clients())?;
    let kept = store.exposures()?;
    let is_kept = |exposure: &Exposure| {
        let is =
            |entry: &ExposureEntry| entry.place() == exposure.place && entry.host == exposure.host;
        kept.iter().any(is)
    };
    let mut rows = Vec::new();
    for state in states {
        for exposure in state.exposures {
            rows.push(Row {
                kept: is_kept(&exposure) && state.instance.kind == Kind::Up,
                instance: Some(state.instance.name.clone()),
                exposure,
            });
        }
    }
    for entry in &kept {
        let is_led = |row: &Row| {
            row.kept && row.exposure.place == entry.place() && row.exposure.host == entry.host
        };
        if !rows.iter().any(is_led) {
            rows.push(Row {
                kept: true,
                instance: None,
                exposure: waiting(entry),
            });
        }
    }
    if json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::line("nothing is exposed; `tabane expose 8080` leads the relay's port here")?;
    } else {
        output::line(&table(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One that is kept while nobody leads anybody there.
fn waiting(entry: &ExposureEntry) -> Exposure {
    let report = tabane_client::ExposureReport {
        entry: entry.clone(),
        state: tabane_client::ExposureState::Asked,
        visitors: Vec::new(),
        so_far: 0,
        in_vain: 0,
        is_also_wanted: false,
        problem: None,
    };
    report.shown(None)
}

fn table(rows: &[Row]) -> String {
    let by = |it: &Row| {
        it.instance
            .clone()
            .unwrap_or_else(|| "nobody: `tabane up`".to_owned())
    };
    let table = output::items(
        rows,
        &[
            ("port", &|it| it.exposure.place.clone()),
            ("host", &|it| it.exposure.host.clone().unwrap_or_default()),
            ("target", &|it| {
                it.exposure.target.clone().unwrap_or_default()
            }),
            ("by", &|it| by(it)),
            ("state", &|it| it.exposure.state.name().to_owned()),
            ("now", &|it| it.exposure.visitors_now.to_string()),
            ("so far", &|it| it.exposure.visitors_so_far.to_string()),
            ("in vain", &|it| it.exposure.in_vain.to_string()),
        ],
    );
    let mut lines = vec![table];
    for row in rows {
        lines.extend(row.exposure.problem.clone());
        let visitors = row.exposure.visitors.iter();
        lines.extend(visitors.map(|it| format!("{} from {}", it.port, it.from)));
    }
    lines.join("\n")
}

fn remove(args: RemoveArgs, store: &Store) -> Result<ExitCode> {
    let place = args.ports.refined(args.host, false);
    let place = place.map_err(Failure::usage)?;
    if !store.remove_exposure(&place)? {
        let host = place.host.as_deref().map(|host| format!(" for {host}"));
        bail!(
            "{}{} is not kept; `tabane expose list` shows what is",
            place.place(),
            host.unwrap_or_default()
        );
    }
    output::line("removed")?;
    Ok(ExitCode::SUCCESS)
}
