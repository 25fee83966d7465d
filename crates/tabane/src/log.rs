//! Logging to stderr, so that stdout stays what was asked for.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

/// How log lines look.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object per line, for machines.
    Json,
}

/// Starts logging what `filter` lets through: levels, for all (`info`) and for modules
/// (`warn,tabane_core=debug`).
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<()> {
    let filter: Targets = filter
        .parse()
        .with_context(|| format!("--log or RUST_LOG: '{filter}' is no filter; try 'info'"))?;
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        // Where nobody reads the log any more (a terminal that has gone, `… 2>&1 | head`), telling
        // there that it cannot be written would be a panic, and the end of the program.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    // Filtered below the lines, so that the most that it lets through is known to all: what is not
    // logged costs a comparison.
    let filtered = registry().with(filter);
    match format {
        LogFormat::Text => filtered.with(lines.with_target(false)).init(),
        LogFormat::Json => filtered.with(lines.json().flatten_event(true)).init(),
    }
    Ok(())
}
