//! How commands fail: one line on stderr that says what to do, and an exit status.
//!
//! 2 is wrong usage, 1 everything else; a command that cannot be started has the shell's 126 or
//! 127, because `tabane run -- CMD` stands where CMD stood.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use tabane_linux::{descriptors, standard_output};
use tabane_store::UsageError;

use crate::output;

/// The command line asks for something impossible.
const USAGE: u8 = 2;
/// Everything else.
const FAILURE: u8 = 1;

/// An error with an exit status of its own.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    text: String,
}

impl Failure {
    /// What was typed cannot be meant.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self {
            status: USAGE,
            text: text.into(),
        }
    }

    /// An error that ends with `status`.
    pub(crate) fn with_status(status: u8, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// The status to exit with.
    pub(crate) fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Prints what went wrong and gives the status to exit with.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref());
    let causes: Vec<&io::Error> = causes.collect();
    let is_pipe = |it: &&io::Error| it.kind() == io::ErrorKind::BrokenPipe;
    if causes.iter().any(is_pipe) {
        // Whoever read our output has seen enough (`tabane links | head`).
        standard_output::end_where_unread();
    }
    let advice = causes.iter().find_map(|it| descriptors::advice(it));
    let (story, advice) = (whole_story(error), advice.unwrap_or_default());
    output::note(format_args!("tabane: {}{advice}", one_line(&story)));
    let status = error
        .downcast_ref::<Failure>()
        .map(Failure::status)
        .or_else(|| error.downcast_ref::<UsageError>().map(|_| USAGE));
    ExitCode::from(status.unwrap_or(FAILURE))
}

/// Prints what clap has to say: help and version as they are, errors in one line.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = error.print().and_then(|()| io::stdout().flush());
            match printed.context(output::UNWRITTEN) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => report(&error),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        ErrorKind::InvalidSubcommand if let Some(line) = left_out(error) => {
            output::note(format_args!("tabane: {line}"));
            ExitCode::from(USAGE)
        }
        _ => {
            output::note(format_args!(
                "tabane: {}",
                summary(&error.render().to_string())
            ));
            ExitCode::from(USAGE)
        }
    }
}

/// What is said where the command is one that other builds have.
fn left_out(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (feature, is_built) = match command.as_str() {
        "dashboard" | "top" => ("dashboard", cfg!(feature = "dashboard")),
        "demo" => ("demo", cfg!(feature = "demo")),
        "lab" => ("lab", cfg!(feature = "lab")),
        "fleet" => ("fleet", cfg!(feature = "fleet")),
        "sctp" => ("sctp", cfg!(feature = "sctp")),
        "sim" => ("sim", cfg!(feature = "sim")),
        _ => return None,
    };
    (!is_built).then(|| {
        format!(
            "this build has no `{command}`: it was made without the cargo feature `{feature}`; \
             the Debian package and `make build` have it"
        )
    })
}

/// clap's message up to its usage, which `--help` shows better, in one line.
fn summary(rendered: &str) -> String {
    let body = rendered.split("\n\nUsage:").next().unwrap_or_default();
    let body = body
        .split("\n\nFor more information")
        .next()
        .unwrap_or_default();
    let text = one_line(body);
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    format!(
        "{}; `tabane help` shows what there is",
        text.trim_end_matches('.')
    )
}

/// The error and its causes. Some name their cause themselves; then it is not told twice.
fn whole_story(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |story, cause| {
        let cause = cause.to_string();
        match story.contains(&cause) {
            true => story,
            false if story.is_empty() => cause,
            false => format!("{story}: {cause}"),
        }
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = || io::Error::other("no luck");
        let story = |error: anyhow::Error| whole_story(&error);
        assert_eq!(
            story(anyhow::Error::new(cause()).context("cannot win")),
            "cannot win: no luck"
        );
        let named = anyhow::Error::new(cause()).context("cannot win (no luck)");
        assert_eq!(story(named), "cannot win (no luck)");
    }

    #[test]
    fn clap_errors_become_one_line() {
        let rendered = "error: the following required arguments were not provided:\n  <STRING>\n\n\
                        Usage: tabane join <STRING>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            summary(rendered),
            "the following required arguments were not provided: <STRING>; `tabane help` shows \
             what there is"
        );
    }
}
