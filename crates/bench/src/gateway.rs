//! `cargo xtask bench gateway`: kernels' TCP over links that delay but do not lose, without the
//! gateway and with it.
//!
//! Owns the cells: link, sender, congestion control; and their table. A cell's modes are measured
//! side by side, at the same time, each in a lab of its own, so what else the machine does meets
//! all of them.

mod cost;
mod report;
mod transfer;
mod world;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tabane_lab::{load_scenario, trace_directories};
use tabane_netem::Scenario;

use super::scratch::Scratch;
use super::summary::Spread;
use transfer::Transfer;
use world::World;

pub(super) const USAGE: &str = "\
usage: cargo xtask bench gateway [LINK...] [OPTION...]
  LINK             steps (10 Mbit/s whose delay steps from 25 to 1000 ms, for a mobile host with a
                   window of 128 kB), steps-wide (with one that grows), paper (1 Mbit/s, 20 to 50
                   ms, half of the time 50 to 1000, window of 8 kB), or the name of a trace in
                   shared/traces without .down; cost: what the gateway carries, adds and takes
                   [all of them, with the LTE traces]
  --sender LIST    of modern (Linux as it is) and bare (without F-RTO, timestamps, SACK, DSACK,
                   early retransmit, RACK, at both ends) [both]
  --congestion LIST  the server's [cubic,reno,bbr]
  --mode LIST      of off, observe, assist, split [off,assist,split]
  --seconds N      per measurement [32: four times all steps]
  --repeat N       of everything; tables show medians [1]
  --json FILE      everything that was measured
  --binary FILE    a tabane built elsewhere";

/// What is measured when nobody says.
const LINKS: [&str; 7] = [
    "paper",
    "steps",
    "steps-wide",
    "Verizon-LTE-short",
    "TMobile-LTE-short",
    "ATT-LTE-driving-2016",
    COST,
];
/// What is not a link.
const COST: &str = "cost";
/// Base delay of a trace's link, one way, and its queue: deep, as such links have them.
const TRACE_DELAY: &str = "20ms";
const QUEUE: &str = "1000kB";
/// Delays one way; the same both ways.
const STEPS: &str = r#"
name = "NAME"
why = "delay steps"
[[link]]
name = "radio"
rate = "10mbit"
queue = "1000kB"
delay = "25ms"
change = [
  { at = "2s", every = "8s", delay = "1000ms" },
  { at = "3s", every = "8s", delay = "50ms" },
  { at = "6s", every = "8s", delay = "500ms" },
  { at = "7s", every = "8s", delay = "25ms" },
]
"#;
/// The paper's delays each way, as `sim paper gateway-table1` has them: half of the time bad, a new
/// one each second.
const PAPER: &str = r#"
name = "paper"
why = "the paper's case"
[[link]]
name = "radio"
rate = "1mbit"
queue = "64kB"
delay = "35ms"
change = [
  { at = "1s", every = "12s", delay = "25ms" },
  { at = "2s", every = "12s", delay = "900ms" },
  { at = "3s", every = "12s", delay = "300ms" },
  { at = "4s", every = "12s", delay = "45ms" },
  { at = "5s", every = "12s", delay = "20ms" },
  { at = "6s", every = "12s", delay = "550ms" },
  { at = "7s", every = "12s", delay = "1000ms" },
  { at = "8s", every = "12s", delay = "30ms" },
  { at = "9s", every = "12s", delay = "50ms" },
  { at = "10s", every = "12s", delay = "100ms" },
  { at = "11s", every = "12s", delay = "700ms" },
  { at = "12s", every = "12s", delay = "35ms" },
]
"#;
/// The mobile host's window in the paper's case.
const PAPER_WINDOW: usize = 8_192;
/// The mobile host's window over `steps`: with one that grows as Linux's does (`steps-wide`), what
/// the sender itself queues delays more than the steps do, and few timers run out.
const WINDOW: usize = 128_000;

/// What bare Reno is to gain over delay steps, and in the paper's case.
const GAIN: f64 = 1.5;
const PAPER_GAIN: f64 = 1.8;
/// What modern senders may lose.
const NO_LOSS: f64 = 0.98;
/// What may be sent again, in percent.
const AGAIN_PERCENT: f64 = 0.05;

/// A kernel's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Sender {
    Modern,
    Bare,
}

/// What the gateway does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Off,
    Observe,
    Assist,
    Split,
}

impl Mode {
    /// Its name for the command; none without a gateway.
    fn word(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::Observe => Some("observe"),
            Self::Assist => Some("assist"),
            Self::Split => Some("split"),
        }
    }

    fn name(self) -> &'static str {
        self.word().unwrap_or("off")
    }
}

#[derive(Debug)]
struct Options {
    links: Vec<String>,
    senders: Vec<Sender>,
    congestions: Vec<String>,
    modes: Vec<Mode>,
    seconds: u64,
    repeats: usize,
    json: Option<String>,
    binary: Option<String>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut options = Self {
            links: Vec::new(),
            senders: vec![Sender::Modern, Sender::Bare],
            congestions: ["cubic", "reno", "bbr"].map(str::to_owned).to_vec(),
            modes: vec![Mode::Off, Mode::Assist, Mode::Split],
            seconds: 32,
            repeats: 1,
            json: None,
            binary: None,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} what?"));
            match *word {
                "--sender" => options.senders = list(value()?, sender)?,
                "--congestion" => {
                    options.congestions = list(value()?, |word| Ok(word.to_owned()))?;
                }
                "--mode" => options.modes = list(value()?, mode)?,
                "--seconds" => options.seconds = value()?.parse().context(USAGE)?,
                "--repeat" => options.repeats = value()?.parse().context(USAGE)?,
                "--json" => options.json = Some((*value()?).to_owned()),
                "--binary" => options.binary = Some((*value()?).to_owned()),
                link => {
                    ensure!(!link.starts_with('-'), "{USAGE}");
                    options.links.push(link.to_owned());
                }
            }
        }
        if options.links.is_empty() {
            options.links = LINKS.map(str::to_owned).to_vec();
        }
        Ok(options)
    }
}

fn list<T>(words: &str, one: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    words.split(',').map(one).collect()
}

fn sender(word: &str) -> Result<Sender> {
    match word {
        "modern" => Ok(Sender::Modern),
        "bare" => Ok(Sender::Bare),
        _ => bail!("{USAGE}"),
    }
}

fn mode(word: &str) -> Result<Mode> {
    let modes = [Mode::Off, Mode::Observe, Mode::Assist, Mode::Split];
    let found = modes.into_iter().find(|mode| mode.name() == word);
    found.context(USAGE)
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
struct Results {
    cells: Vec<Cell>,
    cost: Option<cost::Cost>,
}

impl Results {
    /// Writes the JSON, if one was asked for.
    fn keep(&self, options: &Options) -> Result<()> {
        let Some(path) = &options.json else {
            return Ok(());
        };
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {path}"))
    }
}

/// All there is to say of one link, sender and congestion control.
#[derive(Debug, Serialize)]
struct Cell {
    link: String,
    sender: Sender,
    congestion: String,
    measured: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct Measured {
    mode: Mode,
    transfers: Vec<Transfer>,
    failed: Vec<String>,
}

/// Measures and prints; `false` where a figure is missed.
pub(super) fn run(root: &Path, own: &Path, arguments: &[&str]) -> Result<bool> {
    if arguments.contains(&"--help") {
        println!("{USAGE}");
        return Ok(true);
    }
    let options = Options::parse(arguments)?;
    let binary = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary).with_context(|| binary.clone())?,
        None => own.join("tabane"),
    };
    ensure!(binary.is_file(), "{} is missing", binary.display());
    let links = options.links.iter().filter(|link| *link != COST);
    let scenarios: Result<Vec<Scenario>> = links.map(|name| link(root, name)).collect();
    let mut results = Results::default();
    for scenario in &scenarios? {
        for sender in &options.senders {
            for congestion in &options.congestions {
                let cell = cell(scenario, *sender, congestion, &binary, &options)?;
                eprintln!("bench gateway: {}", report::told(&cell));
                results.cells.push(cell);
                results.keep(&options)?;
            }
        }
    }
    let mut all_reached = true;
    if !results.cells.is_empty() {
        let (table, reached) = report::table(&results.cells);
        print!("{table}");
        all_reached &= reached;
    }
    if options.links.iter().any(|link| link == COST) {
        let cost = cost::run(&binary)?;
        let (table, reached) = cost::table(&cost);
        print!("\n{table}");
        all_reached &= reached;
        results.cost = Some(cost);
        results.keep(&options)?;
    }
    Ok(all_reached)
}

/// The network of a link's name.
fn link(root: &Path, name: &str) -> Result<Scenario> {
    let text = if name == "paper" {
        PAPER.to_owned()
    } else if name.starts_with("steps") {
        STEPS.replace("NAME", name)
    } else {
        let traces = trace_directories(&root.join("scenarios"));
        let has = |way: &str| {
            let file = format!("{name}.{way}");
            let there = |d: &std::path::PathBuf| {
                d.join(&file).exists() || d.join(format!("{file}.gz")).exists()
            };
            traces.iter().any(there).then_some(file)
        };
        let down = has("down").with_context(|| format!("no trace {name}.down\n{USAGE}"))?;
        // Where nobody recorded the other way, it is as fast as this one.
        let up = has("up").unwrap_or_else(|| down.clone());
        format!(
            "name = \"{name}\"\nwhy = \"a trace\"\n[[link]]\nname = \"radio\"\n\
             trace = {{ down = \"{down}\", up = \"{up}\" }}\n\
             delay = \"{TRACE_DELAY}\"\nqueue = \"{QUEUE}\"\n"
        )
    };
    let scratch = Scratch::new()?;
    let file = scratch.path().join("link.toml");
    std::fs::write(&file, text)?;
    let traces = trace_directories(&root.join("scenarios"));
    Ok(load_scenario(&file, None, &traces)?)
}

/// Measures one cell's modes, side by side.
fn cell(
    scenario: &Scenario,
    sender: Sender,
    congestion: &str,
    binary: &Path,
    options: &Options,
) -> Result<Cell> {
    let mut measured: Vec<Measured> = options
        .modes
        .iter()
        .map(|mode| Measured {
            mode: *mode,
            transfers: Vec::new(),
            failed: Vec::new(),
        })
        .collect();
    let span = Duration::from_secs(options.seconds);
    let window = match &*scenario.name {
        "steps" => Some(WINDOW),
        "paper" => Some(PAPER_WINDOW),
        _ => None,
    };
    for _ in 0..options.repeats {
        // All are built before any begins.
        let mut worlds = Vec::new();
        for mode in &options.modes {
            let mut world = World::up(scenario, sender, congestion)?;
            world.start(binary, *mode, &[])?;
            worlds.push(world);
        }
        let results: Vec<Result<Transfer>> = std::thread::scope(|scope| {
            let runs: Vec<_> = worlds
                .into_iter()
                .map(|world| scope.spawn(move || transfer::run(&world, sender, window, span)))
                .collect();
            let joined = runs.into_iter().map(|run| run.join().ok());
            joined
                .map(|result| result.context("a thread broke").flatten())
                .collect()
        });
        for (measured, result) in measured.iter_mut().zip(results) {
            match result {
                Ok(transfer) => measured.transfers.push(transfer),
                Err(error) => measured.failed.push(format!("{error:#}")),
            }
        }
    }
    Ok(Cell {
        link: scenario.name.clone(),
        sender,
        congestion: congestion.to_owned(),
        measured,
    })
}

impl Measured {
    fn median(&self, of: impl Fn(&Transfer) -> f64) -> Option<f64> {
        let values = self.transfers.iter().map(of).collect();
        Spread::of(values).map(|spread| spread.median)
    }
}

impl Cell {
    fn measured(&self, mode: Mode) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.mode == mode)
    }

    /// A mode's rate, of that without a gateway.
    fn gain(&self, mode: Mode) -> Option<f64> {
        let rate = |mode| self.measured(mode)?.median(|t| t.mbps);
        Some(rate(mode)? / rate(Mode::Off)?)
    }

    /// What falls short, in words.
    fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for mode in [Mode::Assist, Mode::Split] {
            let Some(measured) = self.measured(mode) else {
                continue;
            };
            let name = mode.name();
            if !measured.failed.is_empty() {
                missed.push(format!("{name} failed"));
            }
            let bound = match self.sender {
                Sender::Modern => Some(NO_LOSS),
                Sender::Bare if self.link == "steps" && self.congestion == "reno" => Some(GAIN),
                Sender::Bare if self.link == "paper" && self.congestion == "reno" => {
                    Some(PAPER_GAIN)
                }
                Sender::Bare => None,
            };
            if let (Some(gain), Some(bound)) = (self.gain(mode), bound)
                && gain < bound
            {
                missed.push(format!("{name} {gain:.2} < {bound}"));
            }
            let again = measured.median(|t| t.again_percent);
            if mode == Mode::Assist
                && let Some(again) = again.filter(|again| *again > AGAIN_PERCENT)
            {
                missed.push(format!("{name} sends {again:.2} % again"));
            }
        }
        missed
    }
}
