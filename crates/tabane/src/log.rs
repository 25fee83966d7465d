//! Logging to stderr, so that stdout stays what was asked for.

use anyhow::Result;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::failure::Failure;
use crate::output;

/// How log lines look.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object per line, for machines.
    Json,
}

/// Starts logging what was `asked` for: levels, for all (`info`) and for modules
/// (`warn,tabane_core=debug`); else what RUST_LOG says, else `level` and above.
pub(crate) fn start(asked: Option<&str>, level: LevelFilter, format: LogFormat) -> Result<()> {
    let filter = match asked {
        Some(asked) => filter(asked).ok_or_else(|| Failure::usage(refusal(asked)))?,
        // Every program written in Rust may be meant by it, the command of `tabane run` as well.
        None => std::env::var("RUST_LOG")
            .ok()
            .and_then(|set| filter(&set))
            .unwrap_or_else(|| Targets::new().with_default(level)),
    };
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        // Where nobody reads the log any more (a terminal that has gone, `… 2>&1 | head`), telling
        // there that it cannot be written would be a panic, and the end of the program.
        .log_internal_errors(false)
        .with_ansi(output::obeys_codes(&std::io::stderr()));
    // Filtered below the lines, so that the most that it lets through is known to all: what is not
    // logged costs a comparison.
    let filtered = registry().with(filter);
    match format {
        LogFormat::Text => filtered.with(lines.with_target(false)).init(),
        LogFormat::Json => filtered.with(lines.json().flatten_event(true)).init(),
    }
    Ok(())
}

/// What these words let through; `None` where one of them is no filter. One that stands alone is a
/// level, or a module of ours: of any other, all would be logged, which is nothing.
fn filter(words: &str) -> Option<Targets> {
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let is_known = |word| is_level(word) || word.contains('=') || word.starts_with("tabane");
    let are_known = words.split(',').map(str::trim).all(is_known);
    are_known.then(|| words.parse().ok()).flatten()
}

fn refusal(asked: &str) -> String {
    format!(
        "--log: '{asked}' is no filter; it is error, warn, info, debug, trace or off, or per \
         module as in 'warn,tabane_core=debug'"
    )
}
