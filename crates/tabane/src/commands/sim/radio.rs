//! `tabane sim radio`: radio links made by seed, summed up kind by kind.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Result, ensure};
use clap::Args;
use tabane_base::Duration;
use tabane_lab::load_traces;
use tabane_netem::{Radio, RadioKind};
use tabane_sim::{RadioSurvey, radio_likeness, svg};

use super::{on_all_processors, paper, write_picture};
use crate::output;

/// Radio links made by seed: the default beside cubic, bbr and fixed windows, and in bonds
///
/// The rates of such links wander or jump, their schedulers deliver in bursts, they fall silent or
/// change cells: as phones and crowded Wi-Fi do. Each link takes some seconds.
#[derive(Debug, Args)]
pub(crate) struct RadioArgs {
    /// Which kinds [default: all]
    #[arg(value_name = "KIND", value_parser = kind)]
    kinds: Vec<RadioKind>,
    /// Seeds of the links of each kind; the last is not one of them
    #[arg(long, value_name = "FIRST..END", default_value = "1000..1005")]
    seeds: Seeds,
    /// How long one link is sent over, in virtual time
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Draw goodput by delay into a file, a panel for each kind
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw instead how the made links' rates swing beside those of the recorded links in this
    /// directory (Mahimahi's format: NAME.down, NAME.up, also .gz)
    #[arg(long, value_name = "DIR", requires = "svg", conflicts_with_all = ["json", "markdown"])]
    recorded: Option<PathBuf>,
    /// Print it as JSON, with every link's values
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print it as Markdown
    #[arg(long)]
    markdown: bool,
}

pub(super) fn run(args: &RadioArgs) -> Result<ExitCode> {
    if let (Some(directory), Some(path)) = (&args.recorded, &args.svg) {
        let recorded = load_traces(directory)?;
        ensure!(
            !recorded.is_empty(),
            "{}: no file NAME.down or NAME.up",
            directory.display()
        );
        write_picture(path, &svg(&radio_likeness(&recorded, &args.seeds.0))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kinds = match args.kinds.is_empty() {
        true => RadioKind::ALL.to_vec(),
        false => args.kinds.clone(),
    };
    let links = |kind: RadioKind| args.seeds.0.clone().map(move |seed| Radio { kind, seed });
    let links: Vec<Radio> = kinds.into_iter().flat_map(links).collect();
    let span = Duration::from_secs(args.seconds);
    let surveys = on_all_processors(&links, |radio| RadioSurvey::new(*radio, span));
    let report = RadioSurvey::report(&surveys);
    if let Some(path) = &args.svg {
        write_picture(path, &svg(&report.figure)?)?;
    }
    if args.json {
        output::json(&paper::value("radio", &report))?;
    } else if args.markdown {
        output::line(&paper::markdown(&report))?;
    } else {
        output::line(&paper::text("radio", &report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn kind(text: &str) -> Result<RadioKind, String> {
    let found = RadioKind::ALL.into_iter().find(|kind| kind.name() == text);
    let names = || RadioKind::ALL.map(RadioKind::name).join(", ");
    found.ok_or_else(|| format!("one of {}", names()))
}

/// Some seeds.
#[derive(Clone, Debug)]
struct Seeds(Range<u64>);

impl FromStr for Seeds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ends = text.split_once("..").and_then(|(first, end)| {
            let (first, end) = (first.parse::<u64>().ok()?, end.parse::<u64>().ok()?);
            (first < end).then_some(first..end)
        });
        ends.map(Self).ok_or("two numbers such as 1000..1005")
    }
}
