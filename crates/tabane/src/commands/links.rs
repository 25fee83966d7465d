//! `tabane links`: what tabane sees of this machine's interfaces, and of the way to the relay.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tabane_base::Rate;
use tabane_linux::interfaces::{self, Interface, Scope};
use tabane_tunnel::LinkSnapshot;

use crate::access::unix_seconds;
use crate::client_session::{SessionArgs, SessionPlan};
use crate::last_run;
use crate::output;
use crate::reach::measure;
use crate::store::Store;

/// Show the interfaces of this machine, and why each is a link or not
///
/// With --measure, sets up a short session to the relay and shows each link's round-trip time.
/// Rates are those of the last `tabane run`.
#[derive(Debug, Args)]
pub(crate) struct LinksArgs {
    /// Measure the round-trip time to the relay over each link
    #[arg(long)]
    measure: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Serialize)]
struct Row {
    interface: String,
    kind: String,
    addresses: Vec<String>,
    gateways: Vec<String>,
    up: bool,
    carrier: bool,
    mtu_bytes: u32,
    usable: bool,
    /// Why it is not usable, or why the relay cannot be reached over it.
    problem: Option<String>,
    rtt_ms: Option<f64>,
    /// The most the last `tabane run` carried over it in half a second.
    received_peak_bps: Option<u64>,
    sent_peak_bps: Option<u64>,
}

pub(crate) fn run(args: LinksArgs, store: &Store) -> Result<ExitCode> {
    // Before anything is shown: without a relay there is nothing to measure.
    let plan = match args.measure {
        true => Some(SessionPlan::new(args.session.clone(), store)?),
        false => None,
    };
    let mut rows =
        tabane_tunnel::block_on(look(plan, store)).context("cannot set up the event loop")??;
    let note = last_run::recall();
    for link in note.iter().flat_map(|note| &note.report.links) {
        if let Some(row) = rows.iter_mut().find(|row| row.interface == link.link) {
            row.received_peak_bps = Some(link.received_peak_bps);
            row.sent_peak_bps = Some(link.sent_peak_bps);
        }
    }
    if args.json {
        output::json(&rows)?;
    } else {
        output::line(&table(&rows, args.measure))?;
        if let Some(note) = note {
            let age = output::age(unix_seconds().saturating_sub(note.ended_at));
            output::line(&format!("most Mbit/s in and out: the last run, {age}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(plan: Option<SessionPlan>, store: &Store) -> Result<Vec<Row>> {
    let interfaces = interfaces::list()
        .await
        .context("cannot list the interfaces")?;
    let mut rows: Vec<Row> = interfaces.iter().map(row).collect();
    if let Some(plan) = plan {
        let client = plan.connect(store).await?;
        let snapshot = measure(&client).await;
        client.close().await;
        for link in &snapshot.links {
            if let Some(row) = rows.iter_mut().find(|row| row.interface == link.name) {
                add_measurement(row, link);
            }
        }
    }
    Ok(rows)
}

fn add_measurement(row: &mut Row, link: &LinkSnapshot) {
    match &link.path {
        Some(path) if path.rtt_measured => {
            row.rtt_ms = Some(path.rtt_smoothed.as_secs_f64() * 1e3);
        }
        Some(_) | None => {
            let problem = link.problem.clone();
            row.problem = Some(problem.unwrap_or_else(|| "no answer from the relay".to_owned()));
        }
    }
}

fn row(interface: &Interface) -> Row {
    let shown = interface
        .addresses
        .iter()
        .filter(|address| address.scope != Scope::Link);
    let gateways = interface
        .default_routes
        .iter()
        .map(|route| match route.gateway {
            Some(gateway) => gateway.to_string(),
            None => "on the wire".to_owned(),
        });
    let usable = interface.usable();
    Row {
        interface: interface.name.clone(),
        kind: interface.kind.to_string(),
        addresses: shown
            .map(|a| format!("{}/{}", a.address, a.prefix_bits))
            .collect(),
        gateways: gateways.collect(),
        up: interface.up,
        carrier: interface.carrier,
        mtu_bytes: interface.mtu,
        usable: usable.is_ok(),
        problem: usable.err().map(|reason| reason.to_string()),
        rtt_ms: None,
        received_peak_bps: None,
        sent_peak_bps: None,
    }
}

fn table(rows: &[Row], measured: bool) -> String {
    let mut headings = vec!["interface", "kind", "addresses", "gateway", "link"];
    let remembered = rows.iter().any(|row| row.received_peak_bps.is_some());
    if remembered {
        headings.extend(["most in", "most out"]);
    }
    if measured {
        headings.push("RTT ms");
    }
    let none = || "-".to_owned();
    let joined = |words: &[String]| match words {
        [] => none(),
        words => words.join(" "),
    };
    let cells = |row: &Row| {
        let state = match (&row.problem, row.usable) {
            (None, true) => "yes".to_owned(),
            (Some(problem), true) => format!("yes, but {problem}"),
            (problem, false) => format!("no: {}", problem.as_deref().unwrap_or("unusable")),
        };
        let mut cells = vec![
            row.interface.clone(),
            row.kind.clone(),
            joined(&row.addresses),
            joined(&row.gateways),
            state,
        ];
        if remembered {
            let megabits = |bps: Option<u64>| {
                bps.map_or_else(none, |bps| {
                    format!("{:.1}", Rate::from_bps(bps).as_mbps_f64())
                })
            };
            cells.extend([megabits(row.received_peak_bps), megabits(row.sent_peak_bps)]);
        }
        if measured {
            cells.push(row.rtt_ms.map_or_else(none, |ms| format!("{ms:.1}")));
        }
        cells
    };
    output::table(&headings, &rows.iter().map(cells).collect::<Vec<_>>())
}
