//! `tabane run -- CMD`: a command with all its traffic carried over all links.
//!
//! Owns the order: what can fail without touching anything comes first, the command starts last,
//! and whatever ends first (the command, a signal), everything is taken down again.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use nix::sys::signal::Signal;
use tabane_base::Duration;
use tabane_control::Kind;
use tabane_linux::{
    child::{self, Account},
    private_net,
    signals::Signals,
};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::commands::status::{megabits, millis, none};
use crate::event_loop;
use crate::failure::Failure;
use crate::instance::{ControlArgs, Description, Instance};
use crate::output;
use crate::program::{self, Program};
use crate::session_args::SessionArgs;
use crate::signals::{self, pass_on};
use tabane_client::{Entrance, FarEnds, RunReport, SessionPlan, Statistics, last_run};
use tabane_store::{DirectPrefix, Store, atomic_file};
use tabane_uplinks::PolicyTextFile;

/// How often counters are read, so that those of a path that vanishes are at most so old.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// What the command gets when tabane is killed: the terminal is gone, as far as it is concerned.
/// Interactive programs save their work and end, others end.
const FAREWELL: Signal = Signal::SIGHUP;
/// Run a command with all its TCP, UDP and DNS carried over all links
///
/// What the command sends is captured below it, so it needs to know nothing, static binaries
/// included. As root (or with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and a writable cgroup-v2), its
/// sockets are redirected. As an ordinary user, it gets a network of its own, where the system
/// allows that (user namespaces and /dev/net/tun); else a proxy, with a line that says why. Ends
/// as the command does, by its exit status or its signal; with 126 or 127 if it cannot be started.
///
/// Under sudo the command is root's: use --user to run it as yourself, and `sudo -E` to keep your
/// environment, e.g. `sudo -E tabane run --user "$USER" -- firefox`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The command and its arguments; put -- before it if it begins with a dash
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
    /// Capture nothing; give the command a proxy by environment variables
    #[arg(long)]
    proxy: bool,
    /// Run the command as this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Leave these destinations to the command's own network, e.g. 192.168.0.0/16; repeatable
    #[arg(long, value_name = "PREFIX", conflicts_with = "proxy")]
    direct: Vec<DirectPrefix>,
    /// At the end, print to stderr what each link has carried
    #[arg(long)]
    stats: bool,
    /// At the end, write what each link has carried to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    session: SessionArgs,
}

impl RunArgs {
    /// A command, and nothing else that could be wished.
    pub(crate) fn plainly(command: Vec<OsString>) -> Self {
        Self {
            command,
            proxy: false,
            user: None,
            direct: Vec::new(),
            stats: false,
            json: None,
            control: ControlArgs::default(),
            session: SessionArgs::default(),
        }
    }
}

pub(crate) fn run(args: RunArgs, store: &Store) -> Result<ExitCode> {
    let program = Program::find(&args.command)?;
    if private_net::is_within() {
        output::note("tabane: this is the network of another tabane run; the command goes by that");
        return Err(program.replace_us().into());
    }
    let account = args.user.as_deref().map(Account::find).transpose();
    let account = account.map_err(|error| Failure::usage(error.to_string()))?;
    let plan = SessionPlan::new(args.session.clone().into(), store)?;
    let ended = event_loop::carry(run_program(args, &plan, store, &program, account))?;
    Ok(program::end_like(ended))
}

/// Statistics with the clock and the sessions they are about.
struct Recorder {
    far_ends: FarEnds,
    statistics: Statistics,
    begun_at: Instant,
}

impl Recorder {
    fn start(far_ends: FarEnds) -> Self {
        Self {
            far_ends,
            statistics: Statistics::default(),
            begun_at: Instant::now(),
        }
    }

    fn look(&mut self) {
        self.statistics
            .on_sessions(self.begun_at.elapsed(), &self.far_ends.seen());
    }

    fn report(&self) -> RunReport {
        self.statistics.report(self.begun_at.elapsed())
    }
}

/// Captures the command, and carries what it sends as `plan` says, until its end,
/// which is given.
pub(crate) async fn run_program(
    args: RunArgs,
    plan: &SessionPlan,
    store: &Store,
    program: &Program,
    account: Option<Account>,
) -> Result<ExitStatus> {
    let signals = signals::catch_for_command()?;
    let mut entrance = if args.proxy {
        Entrance::proxy().await?
    } else {
        let direct = args.direct.iter().chain(&plan.direct);
        let direct: Vec<_> = direct.map(|prefix| prefix.0).collect();
        Entrance::best(&direct, account.is_some()).await?
    };
    if let Some(advice) = entrance.advice_for(&args.command) {
        output::note(format_args!("tabane: {advice}"));
    }
    let description = Description {
        kind: Kind::Run,
        name: format!("run-{}", std::process::id()),
        about: about(&args.command),
        relays: plan.relays(),
        policy: Some(PolicyTextFile::of(store)),
    };
    let (instance, far_ends) = tokio::select! {
        visible = Instance::connect(&args.control, &description, plan, store) => visible?,
        arrived = signals.next() => {
            return Ok(ExitStatus::from_raw(arrived?.signal as i32));
        }
    };
    let mut command = program.command();
    entrance.admit(&mut command, &far_ends, &plan.rules)?;
    entrance.ready(&far_ends).await;
    if let Some(account) = &account {
        command
            .env("HOME", &account.home)
            .env("SHELL", &account.shell);
        command
            .env("USER", &account.name)
            .env("LOGNAME", &account.name);
    }
    child::prepare(&mut command, FAREWELL, account);
    let mut recorder = Recorder::start(far_ends.clone());
    let outcome = supervise(command, program, &signals, &mut recorder).await;
    tokio::select! {
        () = entrance.settle(&far_ends) => {}
        // Whoever is tired of waiting says so once more.
        _ = signals.next() => {}
    }
    recorder.look();
    entrance.tear_down();
    drop(instance);
    far_ends.close().await;
    let report = recorder.report();
    last_run::remember(&report);
    let ended = outcome?;
    if args.stats {
        output::note(table(&report));
    }
    if let Some(path) = args.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        atomic_file::write_out(&path, text.as_bytes())?;
    }
    Ok(ended)
}

/// The command as it was typed, as far as it fits a line.
fn about(command: &[OsString]) -> String {
    const MOST: usize = 60;
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let line = words.join(" ");
    let line: String = line
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Starts the command and waits for its end.
async fn supervise(
    command: std::process::Command,
    program: &Program,
    signals: &Signals,
    recorder: &mut Recorder,
) -> Result<ExitStatus> {
    let mut command = tokio::process::Command::from(command);
    let mut child = command.spawn().map_err(|error| program.failed(&error))?;
    let mut samples = interval(SAMPLE_INTERVAL);
    samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let closed = recorder.far_ends.closed();
    tokio::pin!(closed);
    let mut is_open = true;
    loop {
        tokio::select! {
            status = child.wait() => {
                return status.context("cannot wait for the command");
            }
            arrived = signals.next() => {
                if let Some(pid) = child.id() {
                    pass_on(arrived.context("cannot read signals")?, pid);
                }
            }
            reason = &mut closed, if is_open => {
                // The command may still have work that needs no network; its end is its own.
                output::note(format_args!("tabane: {reason}"));
                is_open = false;
            }
            _ = samples.tick() => recorder.look(),
        }
    }
}

/// A run, for people.
fn table(report: &RunReport) -> String {
    let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
    let table = output::items(
        &report.links,
        &[
            ("link", &|it| it.link.clone()),
            ("MB in", &|it| megabytes(it.received_bytes)),
            ("MB out", &|it| megabytes(it.sent_bytes)),
            ("share", &|it| format!("{:.1} %", it.share * 100.0)),
            ("Mbit/s in", &|it| megabits(it.received_rate_bps)),
            ("Mbit/s out", &|it| megabits(it.sent_rate_bps)),
            ("RTT ms", &|it| millis(it.rtt_ms)),
            ("jitter ms", &|it| millis(it.jitter_ms)),
            ("pair in", &|it| it.pair_in_bps.map_or_else(none, megabits)),
            ("pair out", &|it| {
                it.pair_out_bps.map_or_else(none, megabits)
            }),
            ("loss out", &|it| format!("{:.2} %", it.loss * 100.0)),
        ],
    );
    let sessions = match report.sessions {
        0 | 1 => String::new(),
        n => format!(", {n} sessions"),
    };
    format!("{table}\n{:.1} s{sessions}", report.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_traffic_is_shown_too() {
        let text = r#"{"seconds": 0.0, "sessions": 2, "links": [{"link": "a", "sent_bytes": 0,
            "received_bytes": 0, "share": 0.0, "sent_rate_bps": 0, "received_rate_bps": 0,
            "sent_peak_bps": 0, "received_peak_bps": 0, "loss": 0.0}]}"#;
        let report: RunReport = serde_json::from_str(text).unwrap();
        let shown = table(&report);
        assert!(
            shown.contains("0.0 %") && shown.contains("2 sessions"),
            "{shown}"
        );
    }
}
