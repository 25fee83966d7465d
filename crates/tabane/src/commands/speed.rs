//! `tabane speed`: what each link and all together carry to the relay and from it.
//!
//! Owns which links are measured, in which order and for how long, and how it is shown.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde::Serialize;
use tabane_base::{Duration, Rate};
use tabane_client::speed::{self, Speed, SpeedError};
use tabane_client::{SessionOrder, SessionPlan, reach};
use tabane_store::Store;
use tabane_tunnel::{OpenError, Status};

use crate::event_loop;
use crate::output;
use crate::session_args::SessionArgs;

/// How long all of it takes, sessions and echoes included.
const ALL_TIME: Duration = Duration::from_secs(15);
/// What of a row's time goes by before it is measured.
const SETUP_TIME: Duration = Duration::from_millis(600);
/// The least for a row, both ways: less shows how senders begin, and not what a link carries.
const LEAST_TIME: Duration = Duration::from_secs(3);
/// Cells of a full bar.
const BAR_CELLS: usize = 20;
/// What the row of all links together is called.
const ALL: &str = "all";

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

#[derive(Serialize)]
struct Report {
    links: Vec<Row>,
    /// All of `links` that were measured, as one; missing where it was one alone.
    together: Option<Row>,
}

#[derive(Default, Serialize)]
struct Row {
    link: String,
    /// What arrived in the second half of the time.
    down_bps: Option<u64>,
    up_bps: Option<u64>,
    /// What an echo took with nothing beside it, and while the link was full: medians.
    idle_ms: Option<f64>,
    down_loaded_ms: Option<f64>,
    up_loaded_ms: Option<f64>,
    /// By what its packets went, where it is known: udp, tls.
    carrier: Option<String>,
    /// Why it was not measured.
    problem: Option<String>,
}

impl Row {
    /// Of one that was not measured.
    fn without(link: &str, problem: &anyhow::Error) -> Self {
        Self {
            link: link.to_owned(),
            problem: Some(format!("{problem:#}")),
            ..Self::default()
        }
    }
}

pub(crate) fn run(args: SpeedArgs, store: &Store) -> Result<ExitCode> {
    let order = SessionOrder::from(args.session);
    let report = event_loop::carry(report(&order, store))?;
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

async fn report(order: &SessionOrder, store: &Store) -> Result<Report> {
    let (names, left_out) = links(order, store).await?;
    // A neighbour's link, or none, of which the session says why.
    if names.is_empty() && left_out.is_empty() {
        let row = measure(ALL, order, store, span(1)).await?;
        let links = vec![row];
        let together = None;
        return Ok(Report { links, together });
    }
    let rows = names.len() + usize::from(names.len() > 1);
    let progress = Progress { rows };
    let mut links = Vec::new();
    for (place, name) in names.iter().enumerate() {
        progress.show(place, name);
        let only = over(order, std::slice::from_ref(name));
        let row = measure(name, &only, store, span(rows)).await;
        match row {
            // What the others have found is kept.
            Err(error) if place > 0 => links.push(Row::without(name, &error)),
            row => links.push(row?),
        }
    }
    let together = match names.len() {
        0 | 1 => None,
        _ => {
            progress.show(names.len(), ALL);
            let row = measure(ALL, &over(order, &names), store, span(rows)).await;
            Some(row.unwrap_or_else(|error| Row::without(ALL, &error)))
        }
    };
    drop(progress);
    links.extend(left_out);
    Ok(Report { links, together })
}

/// The links to measure, and rows of those that are left out.
async fn links(order: &SessionOrder, store: &Store) -> Result<(Vec<String>, Vec<Row>)> {
    let plan = SessionPlan::new(order.clone(), store)?;
    if !plan.has_relays() {
        bail!("no relay is known; `tabane join STRING` makes one known");
    }
    let links = plan.uplinks(store).await?.table().links();
    let (mut names, mut left_out) = (Vec::new(), Vec::new());
    for (name, link) in links {
        match link.policy.metered && !order.links.contains(&name) {
            true => left_out.push(Row {
                problem: Some(format!(
                    "left out, because it is metered; `--link {name}` measures it"
                )),
                link: name,
                ..Row::default()
            }),
            false => names.push(name),
        }
    }
    Ok((names, left_out))
}

/// The same, by these links of this machine alone.
fn over(order: &SessionOrder, links: &[String]) -> SessionOrder {
    SessionOrder {
        links: links.to_vec(),
        neighbours: Vec::new(),
        ..order.clone()
    }
}

/// For how long each of so many rows is measured.
fn span(rows: usize) -> Duration {
    let share = ALL_TIME / u32::try_from(rows).unwrap_or(u32::MAX);
    share.saturating_sub(SETUP_TIME).max(LEAST_TIME)
}

/// One row. `Err` where no other row could do better.
async fn measure(name: &str, order: &SessionOrder, store: &Store, span: Duration) -> Result<Row> {
    let plan = SessionPlan::new(order.clone(), store)?;
    let client = match plan.connect(store).await {
        Ok(client) => client,
        Err(error) => return Ok(Row::without(name, &error)),
    };
    let up = reach::look(&client, &order.links).await;
    let measured = speed::measure(&client, span).await;
    let snapshot = client.snapshot();
    client.close().await;
    let relay = snapshot.relay.or(up.relay);
    let relay = relay.and_then(|place| plan.relays().into_iter().nth(place));
    let relay = relay.map_or_else(String::new, |(name, _)| name);
    let carriers = snapshot.links.iter().map(|link| link.carrier.to_string());
    let mut carriers: Vec<_> = carriers.collect();
    carriers.sort_unstable();
    carriers.dedup();
    let row = Row {
        link: name.to_owned(),
        carrier: Some(carriers.join(", ")).filter(|it| !it.is_empty()),
        ..Row::default()
    };
    match measured {
        Ok(speed) => Ok(filled(row, speed)),
        Err(error) => match hopeless(&error, &relay) {
            Some(error) => Err(error),
            None => Ok(Row {
                problem: Some(error.to_string()),
                ..row
            }),
        },
    }
}

/// What any link would meet at this relay, in words that say what to do.
fn hopeless(error: &SpeedError, relay: &str) -> Option<anyhow::Error> {
    let SpeedError::Open(OpenError::Refused(status)) = error else {
        return None;
    };
    match status {
        Status::Malformed => Some(anyhow!(
            "relay {relay} is older than `tabane speed`: update tabane there; `tabane links \
             --measure` estimates without it"
        )),
        Status::Limit => Some(anyhow!(
            "relay {relay} measures no more for now: a client has 5 minutes of it in ten, and \
             others may be at it; try again later"
        )),
        _ => None,
    }
}

fn filled(row: Row, speed: Speed) -> Row {
    let millis = |span: Option<Duration>| span.map(|span| span.as_secs_f64() * 1e3);
    Row {
        down_bps: Some(speed.down.rate.as_bps()),
        up_bps: Some(speed.up.rate.as_bps()),
        idle_ms: millis(speed.idle),
        down_loaded_ms: millis(speed.down.latency),
        up_loaded_ms: millis(speed.up.latency),
        ..row
    }
}

/// Which row is measured, on a terminal.
struct Progress {
    rows: usize,
}

impl Progress {
    fn show(&self, place: usize, name: &str) {
        let (number, rows) = (place + 1, self.rows);
        let left = "░".repeat(rows - place);
        self.write(&format!(
            "{}{left} {name} ({number} of {rows})",
            "█".repeat(place)
        ));
    }

    /// In the place of what it wrote before.
    fn write(&self, text: &str) {
        let mut screen = std::io::stderr();
        if screen.is_terminal() {
            // Nobody loses anything by not seeing it.
            let _ = write!(screen, "\r\x1b[K{text}");
            let _ = screen.flush();
        }
    }
}

/// What comes next, an error too, begins where it was.
impl Drop for Progress {
    fn drop(&mut self) {
        self.write("");
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
    fn few_links_share_the_time_and_many_have_enough_each() {
        assert_eq!(span(1), ALL_TIME - SETUP_TIME);
        assert!((span(3) + SETUP_TIME) * 3 <= ALL_TIME);
        assert_eq!(span(40), LEAST_TIME);
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

    #[test]
    fn an_older_relay_and_one_that_has_enough_say_what_to_do() {
        let refused = |status| {
            let error = SpeedError::Open(OpenError::Refused(status));
            hopeless(&error, "home").map(|error| error.to_string())
        };
        let older = refused(Status::Malformed).unwrap();
        assert!(
            older.contains("home") && older.contains("update"),
            "{older}"
        );
        let enough = refused(Status::Limit).unwrap();
        assert!(
            enough.contains("home") && enough.contains("later"),
            "{enough}"
        );
        assert_eq!(refused(Status::VolumeUsedUp), None);
    }
}
