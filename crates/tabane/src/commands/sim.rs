//! `tabane sim`: the shipped engine in virtual time.
//!
//! Owns the flags and the words; the worlds are the sim crate's. Nothing here touches a network.

mod paper;
mod radio;
mod run;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;
use clap::{Args, Subcommand};

use tabane_linux::threads::begin_within;
use tabane_store::atomic_file;

/// Simulate bonds in virtual time: scenario files, and the experiments of the papers
///
/// The same engine that carries traffic runs on both ends of modelled links; a minute passes in
/// seconds, and the same seed gives the same result to the last digit.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    Run(run::RunArgs),
    Paper(paper::PaperArgs),
    Radio(radio::RadioArgs),
}

pub(crate) fn run(args: SimArgs) -> Result<ExitCode> {
    match args.command {
        SimCommand::Run(args) => run::run(&args),
        SimCommand::Paper(args) => paper::run(&args),
        SimCommand::Radio(args) => radio::run(&args),
    }
}

fn write_picture(path: &Path, svg: &str) -> Result<()> {
    atomic_file::write_out(path, svg.as_bytes())
}

/// What each of `jobs` comes to, in their order; they share nothing.
fn on_all_processors<J: Sync, T: Send>(jobs: &[J], carry_out: impl Fn(&J) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(place) else {
                return done;
            };
            done.push((place, carry_out(job)));
        }
    };
    let mut done: Vec<(usize, T)> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        // This one is the first of them, and may have to be the only one.
        let others = (1..threads).map_while(|_| begin_within(scope, work).ok());
        let workers: Vec<_> = others.collect();
        let own = work();
        let finished = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            // The simulator asserts what the engine promises; its words are on stderr already.
            Err(panic) => std::panic::resume_unwind(panic),
        });
        own.into_iter().chain(finished.flatten()).collect()
    });
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}
