//! The `tabane` command: what a user types, turned into sessions, relays and proxies.
//!
//! Owns the command line, the files in the user's directories and the words users read. Everything
//! that moves packets is in the crates below; each command has its file in `commands/`.

mod associations;
mod bypass;
mod carriage;
mod carrier;
mod cli;
mod client_session;
mod commands;
mod dead_families;
mod demo;
mod discovery;
mod dns_answer;
mod doctor;
mod entrance;
mod environment;
mod failure;
mod far_ends;
mod gateway;
mod instance;
mod interception;
mod last_run;
mod last_words;
mod ledger;
mod lent_paths;
mod link_follower;
mod log;
mod machine;
mod near_names;
mod notify;
mod opening;
mod output;
mod peer_memory;
mod peers;
mod plain;
mod plain_meter;
mod plain_way;
mod private_network;
mod program;
mod proxying;
mod qlog;
mod reach;
mod route;
mod rule_book;
mod signals;
mod statistics;
#[cfg(test)]
mod strangers;
mod top;
mod udp_order;
mod via;
mod web_ca;

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
