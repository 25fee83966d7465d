//! `tabane demo`: what the flags say, and that nothing is left behind however it ends.

use std::io::{stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use nix::unistd::{AccessFlags, access};

use crate::demo::{self, Plan, Style, World};
use crate::event_loop;
use crate::failure::Failure;
use crate::output;
use crate::program;
use crate::scenarios;
use crate::signals;

/// Show the bond at work on emulated links of this machine, in under a minute
///
/// Makes links, a relay and a web server, lets an unmodified curl download over each link alone and
/// over all of them at once, checks every byte, and ends with a table and a picture. With root the
/// links lie between network namespaces; without, they are UDP relays on loopback. No other network
/// is touched, and nothing is left behind.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// A scenario file, or one of: home, twin, unequal, four, eight, lossy, bloat, rtt-skew, wide,
    /// far, drag, cut
    #[arg(value_name = "SCENARIO", default_value = scenarios::DEFAULT)]
    scenario: String,
    /// Which variant of the scenario, where it has several
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// How long each download lasts [default: 8, less with more than four links]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Where to put the picture
    #[arg(long, value_name = "FILE", default_value = "tabane-demo.svg")]
    svg: PathBuf,
    /// Print the results as JSON; what happens meanwhile goes to stderr
    #[arg(long)]
    json: bool,
    /// Print a line per second instead of moving bars
    #[arg(long)]
    plain: bool,
}

pub(crate) fn run(args: DemoArgs) -> Result<ExitCode> {
    let scenario = scenarios::load(&args.scenario, args.variant.as_deref())?;
    demo::require_curl()?;
    check_writable(&args.svg)?;
    let plan = Plan {
        seconds: args
            .seconds
            .unwrap_or_else(|| demo::usual_seconds(&scenario)),
        scenario,
        svg: args.svg.clone(),
    };
    event_loop::carry(show(&args, &plan))
}

async fn show(args: &DemoArgs, plan: &Plan) -> Result<ExitCode> {
    let signals = signals::catch()?;
    let world = tokio::select! {
        world = World::build(&plan.scenario) => world?,
        arrived = signals.next() => return Ok(program::signal_code(arrived?.signal)),
    };
    let mut view = if args.json {
        demo::view(
            plan,
            Box::new(stderr()),
            Style::choose(&stderr(), args.plain),
        )
    } else {
        demo::view(
            plan,
            Box::new(stdout()),
            Style::choose(&stdout(), args.plain),
        )
    };
    let outcome = tokio::select! {
        summary = demo::show(plan, &world, &mut view) => summary.map(Ok),
        arrived = signals.next() => arrived.map(Err).context("cannot read signals"),
    };
    world.down().await;
    match outcome? {
        Ok(summary) => {
            if args.json {
                output::json(&summary)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(arrived) => Ok(program::signal_code(arrived.signal)),
    }
}

/// A minute of work should not end in "permission denied".
fn check_writable(svg: &Path) -> Result<()> {
    let parent = svg.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or_else(|| Path::new("."));
    let writable = access(directory, AccessFlags::W_OK);
    writable.map_err(|errno| {
        let (directory, why) = (directory.display(), errno.desc());
        let advice = "choose another place with --svg FILE";
        Failure::with_status(1, format!("cannot write into {directory}: {why}; {advice}")).into()
    })
}
