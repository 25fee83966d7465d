//! `tabane trace`: what a session does, packet by packet, into a qlog file.
//!
//! Owns how long and how much is recorded, and the file. What it looks like is the control crate's.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::Args;
use tabane_control::{Client, Qlog, TraceUpdates};
use tokio::time::{Instant, timeout_at};

use super::status::InstanceArgs;
use crate::event_loop;
use crate::output;
use crate::signals;
use tabane_store::{Span, atomic_file};

/// The most that is recorded: some 2 GB of traffic, in 800 MB of memory.
const MAX_EVENTS: usize = 2_000_000;

/// Record what a session does, packet by packet, as a qlog file for qvis and other QUIC tools
///
/// One group of events per path: packets sent and received with their frames, what is acknowledged
/// and lost, round-trip times, window and rate. Ends after --for, at Ctrl-C, or with the session.
/// The file is a sequence of JSON texts (RFC 7464); it holds sizes and times, no content.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    /// Which session of a relay, by its number in `tabane status` [default: the only one]
    #[arg(long, value_name = "NUMBER")]
    session: Option<u64>,
    /// How long, such as 10s or 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s")]
    span: Span,
    /// Where to write; - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "trace.sqlog")]
    output: PathBuf,
}

pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode> {
    has_room(&args.output)?;
    let client = Client::new(&args.instance.find()?.socket);
    let qlog = event_loop::ask(record(&client, args))??;
    let (events, missed) = (qlog.events(), qlog.missed());
    let text = qlog.into_text();
    if args.output == Path::new("-") {
        std::io::stdout().write_all(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    atomic_file::write_out(&args.output, &text)?;
    let lacks = match missed {
        0 => String::new(),
        missed => format!(", {missed} more came too fast to be kept"),
    };
    let file = args.output.display();
    output::line(&format!("{file}: {events} events{lacks}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the file's directory if need be. A file that cannot be written is better told of now than
/// when all is recorded.
fn has_room(output: &Path) -> Result<()> {
    if output == Path::new("-") {
        return Ok(());
    }
    if output.is_dir() {
        bail!("{} is a directory: name a file in it", output.display());
    }
    match output.parent() {
        Some(directory) => std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display())),
        None => Ok(()),
    }
}

async fn record(client: &Client, args: &TraceArgs) -> Result<Qlog> {
    let signals = signals::catch()?;
    let mut updates = client.trace(args.session).await?;
    let began = SystemTime::now();
    // Now: later the links may be gone.
    let mut qlog = Qlog::new(began, &client.state().await?);
    let span = args.span.0;
    output::note(format_args!(
        "recording for {} s; Ctrl-C ends it",
        span.as_secs()
    ));
    tokio::select! {
        gathered = gather(&mut updates, &mut qlog, Instant::now() + span) => gathered?,
        _ = signals.next() => {}
    }
    Ok(qlog)
}

/// Until `end`, the session's end, or as much as there is room for.
async fn gather(updates: &mut TraceUpdates, qlog: &mut Qlog, end: Instant) -> Result<()> {
    while qlog.events() < MAX_EVENTS {
        let Ok(batch) = timeout_at(end, updates.next()).await else {
            return Ok(());
        };
        let Some(batch) = batch? else { return Ok(()) };
        qlog.add_missed(batch.missed);
        batch.events.iter().for_each(|entry| qlog.add(entry));
    }
    tracing::warn!("more than {MAX_EVENTS} events: the record ends here");
    Ok(())
}
