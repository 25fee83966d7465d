//! `tabane sim run`: a bulk transfer over the links of a scenario.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use tabane_base::{Bytes, Duration, Instant, Quantity, Seed};
use tabane_core::{ControllerKind, SchedulerKind, SessionConfig};
use tabane_netem::{Direction, Scenario};
use tabane_sim::{RunSettings, Series, Setup, Summary, Transfer, World, svg};

use super::write_picture;
use crate::output;
use crate::scenarios;
use crate::session_args::{controllers, schedulers};

/// How often the world is looked at.
const STEP: Duration = Duration::from_millis(100);

/// Run a bulk transfer over the links of a scenario, and say what each link did
///
/// Prints a table; with --json everything, time series included.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A scenario file, or a name as `tabane demo` takes it
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Which variant of the scenario, where it has several
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// How long to send, in virtual time [default: the scenario's duration]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Which path each packet takes
    #[arg(long, value_name = "NAME", value_parser = schedulers(), hide_possible_values = true,
          default_value_t = SessionConfig::default().scheduler)]
    scheduler: SchedulerKind,
    /// How fast each path is used
    #[arg(long, value_name = "NAME", value_parser = controllers(), hide_possible_values = true,
          default_value_t = SessionConfig::default().controller)]
    congestion: ControllerKind,
    /// Memory of the receiver, e.g. 64kB or 4MB
    #[arg(long, value_name = "SIZE", default_value = "16MB")]
    receive_memory: Size,
    /// Send from the client to the server instead of the other way
    #[arg(long)]
    upload: bool,
    /// Decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = Seed(1))]
    seed: Seed,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Draw what happened into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(super) fn run(args: &RunArgs) -> Result<ExitCode> {
    let scenario = scenarios::load(&args.scenario, args.variant.as_deref())?;
    let (world, series) = simulate(args, &scenario);
    let summary = Summary::new(args.into(), &scenario, &world, &series);
    if let Some(path) = &args.svg {
        write_picture(path, &svg(&summary.figure())?)?;
    }
    if args.json {
        output::json(&summary)?;
    } else {
        output::line(&summary.text(output::table))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn simulate(args: &RunArgs, scenario: &Scenario) -> (World, Series) {
    let config = SessionConfig {
        scheduler: args.scheduler,
        controller: args.congestion,
        receive_memory: args.receive_memory.0,
        ..SessionConfig::default()
    };
    let mut world = World::new(Setup {
        client: config.clone(),
        server: config,
        ..Setup::new(args.seed, scenario.links.clone())
    });
    world.connect();
    let (direction, transfer) = match args.upload {
        true => (Direction::Up, Transfer::upload()),
        false => (Direction::Down, Transfer::download()),
    };
    world.add(transfer);
    let duration = args.seconds.map_or(scenario.duration, |seconds| {
        Duration::from_secs(seconds.into())
    });
    let end = Instant::EPOCH + duration;
    let series = Series::record(&mut world, direction, STEP, end);
    (world, series)
}

impl From<&RunArgs> for RunSettings {
    fn from(args: &RunArgs) -> Self {
        Self {
            scheduler: args.scheduler,
            congestion: args.congestion,
            receive_memory: args.receive_memory.0,
            seed: args.seed,
        }
    }
}

/// An amount of memory, as a session accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(Bytes);

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size = Bytes::parse(text).ok_or_else(|| format!("expected {}", Bytes::EXPECTED))?;
        // The engine's own bounds.
        if !(16_384..=1 << 32).contains(&size.get()) {
            return Err("expected 16384B to 4GB".to_owned());
        }
        Ok(Self(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_bounded() {
        assert_eq!("64kB".parse(), Ok(Size(Bytes::kilo(64))));
        assert_eq!("4 MB".parse(), Ok(Size(Bytes::mega(4))));
        for text in [
            "64",
            "64k",
            "-1kB",
            "1kB",
            "5GB",
            "99999999999999999999GB",
            "",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
