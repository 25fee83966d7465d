//! `tabane status`: what a running instance does, in a table.
//!
//! Owns the choice of the instance, which `tabane top` shares, and the words of the table. The
//! values are the instance's own.

mod exits;
mod exposures;
mod lan_hosts;
mod packets;
mod routes;
mod workers;

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tabane_base::Rate;
use tabane_control::{
    Client, Condition, Directory, Kind, Link, LinkState, Path, RuleUse, Running, Session, State,
    Traffic, key_label,
};

use crate::output::Column;
use crate::{event_loop, gateway, output};

/// Sessions of a relay in the table; `--json` has more.
const MAX_ROWS: usize = 20;
/// Events in the table.
const MAX_EVENTS: usize = 5;

/// Show what a running tabane does: links, rates, sessions, and what is wrong
///
/// Asks `tabane run`, `proxy`, `up`, `expose`, `relay`, `web`, `get`, `sctp` or `gateway` by its
/// control socket. Each user sees their own; root's are in /run/tabane, others' in
/// $XDG_RUNTIME_DIR/tabane (or the directory in TABANE_RUNTIME).
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print again with every change, until stopped
    #[arg(long, short)]
    watch: bool,
    /// List the instances that run, and nothing else
    #[arg(long, conflicts_with_all = ["watch", "instance"])]
    list: bool,
}

/// Which instance.
#[derive(Debug, Args)]
pub(crate) struct InstanceArgs {
    /// Which instance, by name or by the path of its socket [default: up, else the only one]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
}

impl InstanceArgs {
    /// Whether the user named one.
    pub(crate) fn is_named(&self) -> bool {
        self.instance.is_some()
    }

    /// The instance that is meant.
    pub(crate) fn find(&self) -> Result<Running> {
        Ok(Directory::of_user().find(self.instance.as_deref())?)
    }
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    if args.list {
        return list(args.json);
    }
    let Running { name, socket } = args.instance.find()?;
    let client = Client::new(&socket);
    event_loop::ask(async {
        if args.watch {
            return watch(&client, args.json).await;
        }
        let state = client.state().await.with_context(|| name.clone())?;
        match args.json {
            true => output::json(&state)?,
            false => output::line(&text(&state))?,
        }
        Ok(ExitCode::SUCCESS)
    })?
}

fn list(json: bool) -> Result<ExitCode> {
    let running = Directory::of_user().running();
    let names: Vec<&str> = running.iter().map(|it| &it.name[..]).collect();
    if json {
        output::json(&names)?;
    } else if !names.is_empty() {
        output::line(&names.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(client: &Client, json: bool) -> Result<ExitCode> {
    let clear = match output::obeys_codes(&io::stdout()) && !json {
        // Home, the text, and nothing below it (ECMA-48 §8.3.21, §8.3.39).
        true => "\x1b[H\x1b[2J",
        false => "",
    };
    let mut updates = client.updates().await?;
    while let Some(state) = updates.next().await? {
        match json {
            // One line each, for programs.
            true => output::line(&serde_json::to_string(&state)?)?,
            false => output::line(&format!("{clear}{}\n", text(&state)))?,
        }
    }
    output::line("the instance has ended")?;
    Ok(ExitCode::SUCCESS)
}

/// The state for people.
fn text(state: &State) -> String {
    let mut parts = vec![heading(state)];
    if let Some(gateway) = &state.gateway {
        parts.push(gateway::screen(gateway).trim_end().to_owned());
    } else if state.instance.kind == Kind::Relay {
        parts.extend(sessions(state));
        parts.extend(exits::table(&state.sessions));
        parts.extend(exposures::table(&state.exposures));
        parts.extend(routes::table(&state.routes));
    } else if state.instance.kind.has_links_alone() {
        parts.push(links_alone(&state.links));
        parts.extend(unused(&state.links));
    } else {
        parts.push(links(&state.links));
        parts.extend(unused(&state.links));
        parts.extend(rules(&state.rules));
        parts.extend(lan_hosts::table(&state.lan_hosts));
        parts.extend(exposures::table(&state.exposures));
        parts.extend(routes::table(&state.routes));
    }
    let totals = Some(totals(state)).into_iter();
    let totals = totals.chain(bypassing(state));
    let totals = totals.chain(multipath(state)).chain(packets::lines(state));
    parts.push(totals.collect::<Vec<_>>().join("\n"));
    parts.extend(events(state));
    parts.extend(problems(state));
    parts.join("\n\n")
}

fn heading(state: &State) -> String {
    let instance = &state.instance;
    let age_ms = state.at_unix_ms.saturating_sub(instance.started_at_unix_ms);
    let since_ms = match (state.condition, state.silent_ms) {
        (Condition::Down, Some(silent_ms)) => silent_ms,
        (Condition::Down | Condition::Up | Condition::Degraded, _) => age_ms,
    };
    let since = duration(since_ms / 1_000);
    let relay = match &instance.relay {
        Some(relay) => format!(", relay {relay}"),
        None => String::new(),
    };
    let about = match instance.kind {
        Kind::Run => format!("tabane run {}", instance.about),
        Kind::Proxy
        | Kind::Up
        | Kind::Relay
        | Kind::Web
        | Kind::Get
        | Kind::Sctp
        | Kind::Gateway
        | Kind::Expose => instance.about.clone(),
    };
    let condition = state.condition.name();
    format!("{}: {condition} for {since}{relay}\n{about}", instance.name)
}

fn links(links: &[Link]) -> String {
    let path =
        |it: &Link, value: fn(&Path) -> Option<f64>| millis(it.path.as_ref().and_then(value));
    output::items(
        links,
        &[
            ("link", &|it| it.name.clone()),
            ("state", &|it| it.state.name().to_owned()),
            ("by", &|it| it.carrier.clone().unwrap_or_else(none)),
            ("Mbit/s in", &|it| megabits(it.traffic.received_bps)),
            ("out", &|it| megabits(it.traffic.sent_bps)),
            ("ms RTT", &|it| path(it, |path| path.rtt_ms)),
            ("queue", &|it| path(it, |path| path.queue_ms)),
            ("loss", &|it| percent_if_any(it.traffic.loss, 1)),
            ("now", &|it| percent_if_any(it.share_now, 0)),
            ("share", &|it| percent(it.share, 0)),
            ("weight", &|it| it.weight.to_string()),
        ],
    )
}

/// Why links are not used, or are carried as they are, and what budgets have left.
fn unused(links: &[Link]) -> Option<String> {
    let unused = |link: &Link| {
        let why = link.problem.as_ref();
        let why = why.filter(|_| link.state == LinkState::Unused)?;
        Some(format!("{} is not used: {why}", link.name))
    };
    let left = |link: &Link| {
        let budget = link.budget.as_ref().filter(|budget| !budget.is_spent())?;
        Some(format!(
            "{} has {} of {} MB left until {}",
            link.name,
            megabytes(budget.amount_bytes - budget.used_bytes),
            megabytes(budget.amount_bytes),
            budget.renews
        ))
    };
    let lines = |link: &Link| [unused(link).or_else(|| left(link)), link.carrier_note()];
    let lines: Vec<String> = links.iter().flat_map(lines).flatten().collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Links without a session: there is no path that could be measured, but connections fail one by
/// one.
fn links_alone(links: &[Link]) -> String {
    let kind = |it: &Link| if it.is_lent { "neighbour" } else { "own" };
    output::items(
        links,
        &[
            ("link", &|it| it.name.clone()),
            ("state", &|it| it.state.name().to_owned()),
            ("kind", &|it| kind(it).to_owned()),
            ("Mbit/s in", &|it| megabits(it.traffic.received_bps)),
            ("out", &|it| megabits(it.traffic.sent_bps)),
            ("MB in", &|it| megabytes(it.traffic.received_bytes)),
            ("MB out", &|it| megabytes(it.traffic.sent_bytes)),
            ("now", &|it| percent_if_any(it.share_now, 0)),
            ("share", &|it| percent(it.share, 0)),
            ("failed", &|it| it.failures.to_string()),
        ],
    )
}

/// What the policy's rules are used for.
fn rules(rules: &[RuleUse]) -> Option<String> {
    let columns: [Column<'_, RuleUse>; 6] = [
        ("rule", &|it| it.rule.clone().unwrap_or_else(none)),
        ("now", &|it| it.connections.to_string()),
        ("so far", &|it| it.connections_so_far.to_string()),
        ("MB in", &|it| megabytes(it.received_bytes)),
        ("MB out", &|it| megabytes(it.sent_bytes)),
        ("what", &|it| it.text.clone()),
    ];
    (!rules.is_empty()).then(|| output::items(rules, &columns))
}

fn sessions(state: &State) -> Option<String> {
    if state.sessions.is_empty() {
        return None;
    }
    let mut busiest: Vec<&Session> = state.sessions.iter().collect();
    busiest.sort_by_key(|session| std::cmp::Reverse(rate(&session.traffic)));
    busiest.truncate(MAX_ROWS);
    let whose = |it: &Session| match &it.straight_to {
        Some(peer) => peer.clone(),
        None => it.peer.as_deref().map_or_else(none, key_label),
    };
    let rtt = |it: &Session| {
        let rtts = it.paths.iter().filter_map(|path| path.rtt_ms);
        millis(rtts.min_by(f64::total_cmp))
    };
    let mut table = output::items(
        &busiest,
        &[
            ("session", &|it| it.number.to_string()),
            ("client", &|it| whose(it)),
            ("age", &|it| it.age_s.map_or_else(none, duration)),
            ("paths", &|it| it.paths.len().to_string()),
            ("Mbit/s in", &|it| megabits(it.traffic.received_bps)),
            ("out", &|it| megabits(it.traffic.sent_bps)),
            ("RTT ms", &|it| rtt(it)),
            ("streams", &|it| it.streams.to_string()),
            ("MB in", &|it| megabytes(it.traffic.received_bytes)),
            ("MB out", &|it| megabytes(it.traffic.sent_bytes)),
        ],
    );
    let omitted = state.totals.sessions.saturating_sub(busiest.len() as u64);
    if omitted > 0 {
        table.push_str(&format!("\nand {omitted} more"));
    }
    Some(table)
}

/// What goes without the relay and by several links, where anything did.
fn multipath(state: &State) -> Option<String> {
    let multipath = &state.multipath;
    (multipath.connections_so_far > 0).then(|| {
        let now = output::count(multipath.connections, "TCP connection");
        let so_far = multipath.connections_so_far;
        let links = match &multipath.links[..] {
            [] => String::new(),
            links => format!(", over {}", links.join(", ")),
        };
        format!("by MPTCP  {now} now, {so_far} so far{links}")
    })
}

/// What went without the relay, where anything did.
fn bypassing(state: &State) -> Option<String> {
    let totals = &state.totals;
    let (tcp, udp) = (totals.bypassing_connections, totals.bypassing_flows);
    let counts = [(tcp, "TCP connection"), (udp, "UDP flow")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts
        .map(|(count, what)| output::count(count, what))
        .collect();
    (!counts.is_empty()).then(|| format!("without the relay  {} so far", counts.join(", ")))
}

fn totals(state: &State) -> String {
    let totals = &state.totals;
    let traffic = &totals.traffic;
    let dropped: u64 = totals.drops.values().sum();
    let dropped = match dropped {
        0 => String::new(),
        n => format!(", {} discarded", output::count(n, "received packet")),
    };
    let both = format!(
        "carried  {} MB in, {} MB out; now {} and {} Mbit/s\n",
        megabytes(traffic.received_bytes),
        megabytes(traffic.sent_bytes),
        megabits(traffic.received_bps),
        megabits(traffic.sent_bps),
    );
    let carries = match state.instance.kind {
        // The table above says how many flows.
        Kind::Gateway => format!(
            "carried  {} MB; now {} Mbit/s",
            megabytes(traffic.received_bytes),
            megabits(traffic.received_bps)
        ),
        Kind::Web | Kind::Get => {
            format!("{both}answers  and tunnels under way: {}", totals.streams)
        }
        Kind::Sctp => format!("{both}associations {}", totals.streams),
        Kind::Run | Kind::Proxy | Kind::Up | Kind::Relay | Kind::Expose => format!(
            "{both}sessions {} ({} so far{}), {}{dropped}",
            totals.sessions,
            totals.sessions_so_far,
            workers::by_worker(&totals.sessions_by_worker),
            output::count(totals.streams, "stream")
        ),
    };
    format!(
        "{carries}\nprocess  {} MB, {} s of processor time",
        megabytes(state.process.memory_bytes),
        state.process.cpu_ms / 1_000,
    )
}

fn events(state: &State) -> Option<String> {
    let first = state.events.len().saturating_sub(MAX_EVENTS);
    let lines: Vec<String> = state.events[first..]
        .iter()
        .map(|event| {
            let age = output::age(state.at_unix_ms.saturating_sub(event.at_unix_ms) / 1_000);
            match &event.link {
                Some(link) => format!("{age:>10}  {link}: {}", event.text),
                None => format!("{age:>10}  {}", event.text),
            }
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn problems(state: &State) -> Option<String> {
    let line = |problem: &tabane_control::Problem| {
        format!("problem: {}\n   then: {}", problem.what, problem.remedy)
    };
    let lines: Vec<String> = state.problems.iter().map(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn rate(traffic: &Traffic) -> u64 {
    traffic.sent_bps.saturating_add(traffic.received_bps)
}

pub(crate) fn none() -> String {
    "-".to_owned()
}

pub(crate) fn megabits(bps: u64) -> String {
    format!("{:.1}", Rate::from_bps(bps).as_mbps_f64())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

pub(crate) fn millis(millis: Option<f64>) -> String {
    millis.map_or_else(none, |millis| format!("{millis:.1}"))
}

fn percent_if_any(part: Option<f64>, digits: usize) -> String {
    part.map_or_else(none, |part| percent(part, digits))
}

pub(crate) fn percent(part: f64, digits: usize) -> String {
    format!("{:.digits$} %", part * 100.0)
}

/// A span in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}
