//! The `tabane` command: what a user types, turned into sessions, relays and proxies.
//!
//! Owns the command line, the files in the user's directories and the words users read. Everything
//! that moves packets is in the crates below; each command has its file in `commands/`.

mod cli;
mod commands;
#[cfg(feature = "demo")]
mod demo;
mod event_loop;
mod failure;
mod gateway;
mod instance;
mod last_words;
mod log;
mod output;
mod program;
#[cfg(feature = "lab")]
mod scenarios;
mod session_args;
mod signals;
#[cfg(feature = "dashboard")]
mod top;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    last_words::end_with_a_panic();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::report_usage(&error),
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
