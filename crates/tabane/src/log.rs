//! Logging to stderr, so that stdout stays what was asked for.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object per line, for machines.
    Json,
}

/// Starts logging what `filter` lets through.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<()> {
    let filter: EnvFilter = filter
        .parse()
        .with_context(|| format!("--log or RUST_LOG: '{filter}' is no filter; try 'info'"))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Where nobody reads the log any more (a terminal that has gone, `… 2>&1 | head`), telling
        // there that it cannot be written would be a panic, and the end of the program.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => lines.with_target(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
