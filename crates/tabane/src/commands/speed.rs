//! `tabane speed`: what each link and all together carry to the relay and from it.
//!
//! Owns the flags and how it is shown. Which links are measured, and how, is the client engine's.

use std::cell::Cell;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tabane_base::Rate;
use tabane_client::SessionOrder;
use tabane_client::speed::{self, Report, Row};
use tabane_store::Store;

use crate::event_loop;
use crate::output;
use crate::session_args::SessionArgs;

/// Cells of a full bar.
const BAR_CELLS: usize = 20;

/// Measure what each link, and all together, carry to the relay and from it
///
/// Sends and receives as much as goes, one link after the other and then over all at once: some 15
/// seconds, with more than three links longer. Beside it, echoes show how long a packet takes while
/// the link is idle and while it is full. It costs what the links carry in that time, so metered
/// links are left out unless they are named by --link. Neighbours' links are measured where this
/// machine has none of its own.
///
/// The relay must be of the same version or newer, and serves a client some ten times in ten
/// minutes. `tabane links --measure` needs a megabyte only, and estimates.
#[derive(Debug, Args)]
pub(crate) struct SpeedArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    session: SessionArgs,
}

pub(crate) fn run(args: SpeedArgs, store: &Store) -> Result<ExitCode> {
    let order = SessionOrder::from(args.session);
    let progress = Progress::default();
    let measuring = speed::report(&order, store, |done, rows, next| {
        progress.show(done, rows, next);
    });
    let report = event_loop::carry(measuring);
    drop(progress);
    let report = report?;
    match args.json {
        true => output::json(&report)?,
        false => output::line(&table(&report))?,
    }
    let mut rows = report.links.iter().chain(&report.together);
    Ok(match rows.any(|row| row.down_bps.is_some()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Which row is measured, on a terminal.
#[derive(Default)]
struct Progress {
    is_shown: Cell<bool>,
}

impl Progress {
    fn show(&self, done: usize, rows: usize, name: &str) {
        let number = done + 1;
        let left = "░".repeat(rows - done);
        self.is_shown.set(true);
        self.write(&format!(
            "{}{left} {name} ({number} of {rows})",
            "█".repeat(done)
        ));
    }

    /// In the place of what it wrote before.
    fn write(&self, text: &str) {
        let mut screen = std::io::stderr();
        if output::obeys_codes(&screen) {
            // Nobody loses anything by not seeing it.
            let _ = write!(screen, "\r\x1b[K{text}");
            let _ = screen.flush();
        }
    }
}

/// What comes next, an error too, begins where it was.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown.get() {
            self.write("");
        }
    }
}

fn table(report: &Report) -> String {
    let rows: Vec<&Row> = report.links.iter().chain(&report.together).collect();
    let most = rows.iter().filter_map(|row| row.down_bps.max(row.up_bps));
    let full = Rate::from_bps(most.max().unwrap_or(0));
    let measured: Vec<&Row> = rows
        .iter()
        .copied()
        .filter(|row| row.problem.is_none())
        .collect();
    let mut lines = Vec::new();
    if !measured.is_empty() {
        lines.push(measurements(&measured, full));
        lines.push("Mbit/s; milliseconds there and back: idle, and while the link is full".into());
    }
    let problems = rows.iter().filter_map(|row| {
        let problem = row.problem.as_ref()?;
        Some(format!("{}: {problem}", row.link))
    });
    lines.extend(problems);
    lines.join("\n")
}

fn measurements(rows: &[&Row], full: Rate) -> String {
    let rate = |bps: Option<u64>| bps.map_or_else(String::new, |it| output::short(it as f64 / 1e6));
    let bar = |bps: Option<u64>| {
        let rate = Rate::from_bps(bps.unwrap_or(0));
        output::bar(rate, full, BAR_CELLS)
    };
    let millis = |it: Option<f64>| it.map_or_else(|| "–".to_owned(), output::short);
    output::items(
        rows,
        &[
            ("link", &|it| it.link.clone()),
            ("down", &|it| rate(it.down_bps)),
            ("", &|it| bar(it.down_bps)),
            ("up", &|it| rate(it.up_bps)),
            ("", &|it| bar(it.up_bps)),
            ("idle", &|it| millis(it.idle_ms)),
            ("down full", &|it| millis(it.down_loaded_ms)),
            ("up full", &|it| millis(it.up_loaded_ms)),
            ("by", &|it| it.carrier.clone().unwrap_or_default()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(link: &str, mbps: u64) -> Row {
        Row {
            link: link.to_owned(),
            down_bps: Some(mbps * 1_000_000),
            up_bps: Some(mbps * 500_000),
            ..Row::default()
        }
    }

    #[test]
    fn bars_are_of_one_scale_and_problems_have_lines() {
        let report = Report {
            links: vec![
                row("wlan0", 10),
                Row {
                    link: "wwan0".to_owned(),
                    problem: Some("it is metered".to_owned()),
                    ..Row::default()
                },
            ],
            together: Some(row("all", 20)),
        };
        let text = table(&report);
        let bars = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.matches('█').count()
        };
        assert_eq!((bars("wlan0"), bars("all")), (15, 30), "{text}");
        assert!(text.ends_with("\nwwan0: it is metered"), "{text}");
    }
}
