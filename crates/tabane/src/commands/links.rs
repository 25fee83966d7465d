//! `tabane links`: what tabane sees of this machine's interfaces, and of the way to the relay.

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tabane_base::{Duration, Rate};
use tabane_control::Link;
use tabane_core::Identity;
use tabane_linux::interfaces::{Interface, Scope};
use tabane_tunnel::LinkSnapshot;

use crate::commands::status::{self, millis, none, running_clients};
use crate::event_loop;
use crate::output;
use crate::session_args::SessionArgs;
use tabane_client::{SessionOrder, SessionPlan, last_run, reach::measure};
use tabane_store::{Store, wall_clock::unix_seconds};
use tabane_uplinks::{
    LinkPolicy, gateways,
    lent_links::{self, KIND, Lender},
    links,
};

/// Show the interfaces of this machine and the neighbours who lend theirs, and why each is a link
///
/// A neighbour is a link while it answers; one that has another address than before is looked for
/// on the local networks. It is named by `tabane share pair`, and goes by this
/// name in the policy as well.
///
/// With --measure, sets up a short session to the relay and shows each link's round-trip time, its
/// jitter, the bandwidth both ways by packet pairs, and loss. That takes a few seconds and at
/// most 1 MB each way over each link; `tabane speed` measures what they really carry. Without it,
/// "most in" and "most out" show the most that the last `tabane run` had.
///
/// Where a session runs, or measured it, a link says by what its packets go (udp or tls), and why.
#[derive(Debug, Args)]
pub(crate) struct LinksArgs {
    /// Measure round-trip time, bandwidth and loss to the relay over each link
    #[arg(long)]
    measure: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Default, Serialize)]
struct Row {
    interface: String,
    kind: String,
    addresses: Vec<String>,
    gateways: Vec<String>,
    up: bool,
    carrier: bool,
    /// 0 where it is not known.
    mtu_bytes: u32,
    usable: bool,
    /// Why sessions leave it out though it is usable: the policy, a spent budget, or the choice of
    /// links by flag or in config.toml.
    unused: Option<String>,
    /// Why it is not usable, or why the relay cannot be reached over it.
    problem: Option<String>,
    /// By what its packets go in a session that runs, or that measured it: udp or tls.
    carried_by: Option<String>,
    /// Why that, where it is not as usual.
    carried_by_reason: Option<String>,
    /// The login page (captive portal) that it is behind, as a session that runs has found.
    portal: Option<String>,
    rtt_ms: Option<f64>,
    /// Mean difference of successive round trips.
    jitter_ms: Option<f64>,
    /// What the way from and to the relay could carry, by packet pairs; IP packets whole.
    pair_in_bps: Option<u64>,
    pair_out_bps: Option<u64>,
    /// Of the packets sent, the share that was lost.
    loss: Option<f64>,
    /// The most the last `tabane run` carried over it in half a second.
    received_peak_bps: Option<u64>,
    sent_peak_bps: Option<u64>,
}

impl Row {
    /// By what it is carried, and why that; nothing where that is not known.
    fn carriage(&self) -> String {
        match (&self.carried_by, &self.carried_by_reason) {
            (Some(carrier), Some(why)) => format!(", by {carrier}: {why}"),
            (Some(carrier), None) => format!(", by {carrier}"),
            (None, _) => String::new(),
        }
    }

    /// Whether sessions use it, and why not.
    fn verdict(&self) -> String {
        if let (Some(page), true) = (&self.portal, self.usable) {
            return format!("yes, but behind a login page: {page}");
        }
        match (&self.problem, self.usable) {
            (None, true) => match &self.unused {
                Some(why) => format!("not used: {why}"),
                None => format!("yes{}", self.carriage()),
            },
            (Some(problem), true) => format!("yes, but {problem}"),
            (problem, false) => format!("no: {}", problem.as_deref().unwrap_or("unusable")),
        }
    }
}

pub(crate) fn run(args: LinksArgs, store: &Store) -> Result<ExitCode> {
    // Before anything is shown: without a relay there is nothing to measure.
    let order = SessionOrder::from(args.session.clone());
    let plan = match args.measure {
        true => Some(SessionPlan::new(order.clone(), store)?),
        false => None,
    };
    let mut rows = event_loop::carry(look(plan, &order, store))?;
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
        if args.measure {
            output::line("pair in and out: Mbit/s between here and the relay, by packet pairs")?;
        }
        for row in rows.iter().filter(|row| row.kind == KIND && !row.carrier) {
            output::line(&format!(
                "{}: looked for on the local networks as well; if it is elsewhere now, `tabane \
                 share pair` there shows a code to use here with its HOST",
                row.interface
            ))?;
        }
        if let Some(note) = note.filter(|_| !args.measure) {
            let age = output::age(unix_seconds().saturating_sub(note.ended_at));
            output::line(&format!("most Mbit/s in and out: the last run, {age}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(plan: Option<SessionPlan>, order: &SessionOrder, store: &Store) -> Result<Vec<Row>> {
    let wanted = order.wanted_links(store)?;
    let policy = LinkPolicy::load_here(store).await?;
    let interfaces = gateways::list(policy.policy())
        .await
        .context("cannot list the interfaces")?;
    let mut rows: Vec<Row> = interfaces
        .iter()
        .map(|it| row(it, links::why_unused(it, &wanted, &policy)))
        .collect();
    let lenders = lent_links::find(&[], store)?;
    let lent: Vec<_> = match lenders.is_empty() {
        true => Vec::new(),
        false => {
            let identity = store.neighbour_identity()?;
            // All at once: those that are away take some seconds each.
            let row = |lender: Lender| {
                let is_shadowed = lender.is_shadowed(&interfaces);
                let unused = match order.leaves_out(&lender.name, &wanted) {
                    true => Some("other links were chosen".to_owned()),
                    false => policy.judge(&lender.facts()).why_unused(),
                };
                let identity = identity.clone();
                tokio::task::spawn_local(async move {
                    let row = lent_row(lender, identity, is_shadowed).await;
                    Row { unused, ..row }
                })
            };
            lenders.into_iter().map(row).collect()
        }
    };
    for row in lent {
        rows.push(row.await.context("a neighbour")?);
    }
    for state in running_clients().await {
        add_carriers(&mut rows, &state.links);
    }
    if let Some(plan) = plan {
        let (client, lent) = plan.connect_by_all(store).await?;
        let snapshot = measure(&client, &lent).await;
        client.close().await;
        for link in &snapshot.links {
            if let Some(row) = rows.iter_mut().find(|row| row.interface == link.name) {
                add_measurement(row, link);
            }
        }
    }
    Ok(rows)
}

/// A neighbour's link; whether the neighbour is there shows when it proves its key. One that is not
/// is looked for.
async fn lent_row(lender: Lender, identity: Identity, is_shadowed: bool) -> Row {
    let mut reached = lender.answers(&identity, None).await;
    if reached.is_err() && lender.look(&identity, None).await {
        reached = Ok(());
    }
    let problem = match reached {
        _ if is_shadowed => Some("an interface has this name; forget it and pair again".to_owned()),
        Ok(()) => None,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Some("the neighbour does not answer".to_owned())
        }
        Err(error) => Some(format!("the neighbour is away ({error})")),
    };
    Row {
        interface: lender.name.to_string(),
        kind: KIND.to_owned(),
        addresses: vec![lender.at().to_string()],
        up: true,
        carrier: problem.is_none(),
        usable: problem.is_none(),
        problem,
        ..Row::default()
    }
}

/// What sessions that run say of their links; all of a network's fare alike.
fn add_carriers(rows: &mut [Row], links: &[Link]) {
    for link in links.iter().filter(|link| link.carrier.is_some()) {
        if let Some(row) = rows.iter_mut().find(|row| row.interface == link.name) {
            row.carried_by.clone_from(&link.carrier);
            row.carried_by_reason.clone_from(&link.carrier_reason);
            row.portal.clone_from(&link.portal);
        }
    }
}

fn add_measurement(row: &mut Row, link: &LinkSnapshot) {
    match link.round_trip() {
        Some(latest) => {
            let millis = |span: Duration| span.as_secs_f64() * 1e3;
            let estimate = link.estimate.as_ref();
            row.carried_by = Some(link.carried_by());
            row.carried_by_reason.clone_from(&link.carrier_why);
            row.rtt_ms = Some(millis(latest));
            row.jitter_ms = estimate.and_then(|link| link.jitter).map(millis);
            row.pair_in_bps = estimate.and_then(|link| link.pair_in).map(Rate::as_bps);
            row.pair_out_bps = estimate.and_then(|link| link.pair_out).map(Rate::as_bps);
            row.loss = estimate.map(|link| link.loss);
        }
        None => {
            let problem = link.problem.clone();
            row.problem = Some(problem.unwrap_or_else(|| "no answer from the relay".to_owned()));
        }
    }
}

fn row(interface: &Interface, unused: Option<String>) -> Row {
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
        unused: unused.filter(|_| usable.is_ok()),
        problem: usable.err().map(|reason| reason.to_string()),
        ..Row::default()
    }
}

fn table(rows: &[Row], measured: bool) -> String {
    if measured {
        return measurements(rows);
    }
    let mut headings = vec!["interface", "kind", "addresses", "gateway", "link"];
    let remembered = rows.iter().any(|row| row.received_peak_bps.is_some());
    if remembered {
        headings.extend(["most in", "most out"]);
    }
    let joined = |words: &[String]| match words {
        [] => none(),
        words => words.join(" "),
    };
    let cells = |row: &Row| {
        let mut cells = vec![
            row.interface.clone(),
            row.kind.clone(),
            joined(&row.addresses),
            joined(&row.gateways),
            row.verdict(),
        ];
        if remembered {
            cells.extend([megabits(row.received_peak_bps), megabits(row.sent_peak_bps)]);
        }
        cells
    };
    output::table(&headings, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// In 80 columns: without the addresses, which `links` alone shows, and words of any length last.
fn measurements(rows: &[Row]) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    output::items(
        rows,
        &[
            ("interface", &|it| it.interface.clone()),
            ("RTT ms", &|it| millis(it.rtt_ms)),
            ("jitter ms", &|it| millis(it.jitter_ms)),
            ("pair in", &|it| megabits(it.pair_in_bps)),
            ("pair out", &|it| megabits(it.pair_out_bps)),
            ("loss", &|it| it.loss.map_or_else(none, percent)),
            ("link", &Row::verdict),
        ],
    )
}

fn megabits(bps: Option<u64>) -> String {
    bps.map_or_else(none, status::megabits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_fit_80_columns() {
        let row = Row {
            interface: "enp0s31f6u1u234".to_owned(),
            kind: "ethernet".to_owned(),
            addresses: vec!["2001:db8:1111:2222:3333:4444:5555:6666/64".to_owned()],
            gateways: vec!["fe80::1111:2222:3333:4444".to_owned()],
            usable: true,
            rtt_ms: Some(1_234.5),
            jitter_ms: Some(123.4),
            pair_in_bps: Some(10_000_000_000),
            pair_out_bps: Some(10_000_000_000),
            loss: Some(1.0),
            received_peak_bps: Some(1_000_000_000),
            sent_peak_bps: Some(1_000_000_000),
            ..Row::default()
        };
        let told = Row {
            carried_by: Some("tls".to_owned()),
            carried_by_reason: Some("UDP gets no answer here".to_owned()),
            usable: true,
            ..Row::default()
        };
        let verdict = "yes, by tls: UDP gets no answer here";
        assert_eq!(told.verdict(), verdict);
        let text = table(&[row], true);
        assert!(text.contains("1234.5") && text.ends_with("yes"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
