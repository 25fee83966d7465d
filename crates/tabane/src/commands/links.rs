//! `tabane links`: what tabane sees of this machine's interfaces, and of the way to the relay.
//!
//! Owns the flags and the tables; what is seen is the client engine's `link_survey`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tabane_client::link_survey::{Row, look};
use tabane_client::{SessionOrder, SessionPlan, last_run};
use tabane_store::{Store, wall_clock::unix_seconds};
use tabane_uplinks::lent_links::KIND;

use crate::commands::status::{self, millis, none};
use crate::event_loop;
use crate::output;
use crate::session_args::SessionArgs;

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
        let text = table(&[row], true);
        assert!(text.contains("1234.5") && text.ends_with("yes"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
