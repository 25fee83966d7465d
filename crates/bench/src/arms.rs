//! `cargo xtask bench arms`: table 1 of the ARMS paper in the lab, with the real stack.
//!
//! Owns the cells: those of the paper, and what it left open (more unequal bandwidths, more than
//! two paths, a path that falls silent in the middle, one that comes in the middle). `tabane sctp
//! send` sends over emulated links to `tabane sctp recv`; beside our default, the paper's rule by
//! the letter. Of less than the paper's 20 MB, slow start takes a larger part.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tabane_netem::Scenario;

use super::process::Running;
use super::scratch::Scratch;
use super::stage::Stage;

pub(super) const USAGE: &str = "\
usage: cargo xtask bench arms [CELL...] [--bytes N] [--scheduler LIST] [--json FILE] [--binary FILE]
  CELL             links as MbpsxRTT joined by +, as 1x30+2x60; with -cut behind it the last falls
                   silent in the middle, with -add it comes then [the paper's, and ours beside them]
  --bytes N        to send per cell [20000000, as in the paper: an hour for all cells]
  --scheduler LIST of tabane, cwnd, round-robin, primary; separated by commas [tabane,cwnd]";

/// What a cell sends when nobody says.
const PAPER_BYTES: u64 = 20_000_000;
/// dummynet's default of 50 packets, as the simulator has it.
const QUEUE: &str = "75kB";

/// The paper's cells with its seconds, then those it left open.
const CELLS: [(&str, Option<f64>); 23] = [
    ("1x30", Some(175.78)),
    ("1x60", Some(180.74)),
    ("2x30", Some(90.48)),
    ("2x60", Some(95.26)),
    ("1x30+1x30", Some(92.51)),
    ("1x60+1x30", Some(92.61)),
    ("1x60+1x60", Some(93.82)),
    ("2x30+1x30", Some(84.85)),
    ("2x30+1x60", Some(84.78)),
    ("2x30+2x30", Some(46.45)),
    ("2x60+1x30", Some(84.81)),
    ("2x60+1x60", Some(84.79)),
    ("2x60+2x30", Some(47.15)),
    ("2x60+2x60", Some(47.61)),
    ("8x30", None),
    ("3x30", None),
    ("8x30+3x30", None),
    ("2x30+2x60+1x30", None),
    ("2x30+2x30+2x30", None),
    ("4x30", None),
    ("4x30+2x30+2x60+1x60", None),
    ("8x30+3x30-cut", None),
    ("8x30+3x30-add", None),
];

/// The longest silence at the receiver when a path is cut.
const SILENCE_MS: u64 = 2_000;
/// What a path that comes in the middle must carry, of all bytes.
const ADDED: f64 = 0.05;
/// Equal bandwidths, of one path.
const EQUAL: f64 = 1.9;
/// Unequal bandwidths, of the sum.
const UNEQUAL: f64 = 0.90;

#[derive(Debug, Serialize)]
struct Results {
    bytes: u64,
    cells: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct Measured {
    cell: String,
    paper_seconds: Option<f64>,
    /// Mbit/s by scheduler.
    mbps: BTreeMap<String, f64>,
    /// The longest time without a byte at the receiver, by scheduler.
    silence_ms: BTreeMap<String, u64>,
    /// What the last link carried, of all bytes, by scheduler.
    last_share: BTreeMap<String, f64>,
    failed: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Options {
    cells: Vec<String>,
    bytes: u64,
    schedulers: Vec<String>,
    json: Option<String>,
    binary: Option<String>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut options = Self {
            cells: Vec::new(),
            bytes: PAPER_BYTES,
            schedulers: vec!["tabane".to_owned(), "cwnd".to_owned()],
            json: None,
            binary: None,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} what?"));
            match *word {
                "--bytes" => options.bytes = value()?.parse().context(USAGE)?,
                "--scheduler" => {
                    options.schedulers = value()?.split(',').map(str::to_owned).collect();
                }
                "--json" => options.json = Some((*value()?).to_owned()),
                "--binary" => options.binary = Some((*value()?).to_owned()),
                cell => {
                    ensure!(!links_of(cell).is_empty(), "{USAGE}");
                    options.cells.push(cell.to_owned());
                }
            }
        }
        if options.cells.is_empty() {
            options.cells = CELLS.iter().map(|(cell, _)| (*cell).to_owned()).collect();
        }
        Ok(options)
    }
}

/// What happens when a third of the file has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incident {
    None,
    Cut,
    Add,
}

impl Incident {
    /// The links' part of a cell, and its incident.
    fn of(cell: &str) -> (&str, Self) {
        match cell.rsplit_once('-') {
            Some((links, "cut")) => (links, Self::Cut),
            Some((links, "add")) => (links, Self::Add),
            _ => (cell, Self::None),
        }
    }
}

/// Rates in Mbit/s and round-trip times in ms; none where it is no cell.
fn links_of(cell: &str) -> Vec<(u64, u64)> {
    let (cell, _) = Incident::of(cell);
    let link = |text: &str| {
        let (rate, rtt) = text.split_once('x')?;
        Some((rate.parse().ok()?, rtt.parse().ok()?))
    };
    let links: Option<Vec<_>> = cell.split('+').map(link).collect();
    links.unwrap_or_default()
}

/// Measures and prints; `false` where a figure is missed.
pub(super) fn run(own: &Path, arguments: &[&str]) -> Result<bool> {
    if arguments.contains(&"--help") {
        println!("{USAGE}");
        return Ok(true);
    }
    let options = Options::parse(arguments)?;
    let binary = match &options.binary {
        Some(binary) => binary.into(),
        None => own.join("tabane"),
    };
    ensure!(binary.is_file(), "{} is missing", binary.display());
    let scratch = Scratch::new()?;
    let file = scratch.path().join("file");
    std::fs::write(&file, contents(options.bytes))?;
    let mut results = Results {
        bytes: options.bytes,
        cells: Vec::new(),
    };
    for cell in &options.cells {
        let known = CELLS.iter().find(|(name, _)| name == cell);
        let mut measured = Measured {
            cell: cell.clone(),
            paper_seconds: known.and_then(|(_, seconds)| *seconds),
            mbps: BTreeMap::new(),
            silence_ms: BTreeMap::new(),
            last_share: BTreeMap::new(),
            failed: BTreeMap::new(),
        };
        for scheduler in &options.schedulers {
            match transfer(cell, scheduler, &binary, &scratch, options.bytes) {
                Ok(done) => {
                    let Transfer {
                        mbps,
                        silence_ms,
                        last_share,
                    } = done;
                    eprintln!(
                        "bench arms: {cell} {scheduler}: {mbps:.2} Mbit/s, longest silence \
                         {silence_ms} ms, {last_share:.2} by the last link"
                    );
                    measured.mbps.insert(scheduler.clone(), mbps);
                    measured.silence_ms.insert(scheduler.clone(), silence_ms);
                    measured.last_share.insert(scheduler.clone(), last_share);
                }
                Err(error) => {
                    eprintln!("bench arms: {cell} {scheduler}: {error:#}");
                    let why = format!("{error:#}");
                    measured.failed.insert(scheduler.clone(), why);
                }
            }
        }
        results.cells.push(measured);
        if let Some(path) = &options.json {
            let text = serde_json::to_string_pretty(&results)? + "\n";
            std::fs::write(path, text).with_context(|| format!("cannot write {path}"))?;
        }
    }
    let (table, all_reached) = table(&results, &options.schedulers);
    print!("{table}");
    Ok(all_reached)
}

/// Bytes that no link compresses and no receiver mistakes.
fn contents(len: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let word = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(word).collect()
}

/// How a transfer went.
struct Transfer {
    /// As the receiver has it.
    mbps: f64,
    silence_ms: u64,
    last_share: f64,
}

impl Transfer {
    /// What both ends say of `bytes` bytes.
    fn told(sent: &str, received: &str, bytes: u64) -> Result<Self> {
        let report: serde_json::Value = serde_json::from_str(received)?;
        ensure!(
            report["confirmed"] == true,
            "the receiver has not confirmed it"
        );
        let sent: serde_json::Value = serde_json::from_str(sent)?;
        let carried = |link: &serde_json::Value| link["sent_bytes"].as_f64();
        let last_link = sent["links"].as_array().and_then(|links| links.last());
        Ok(Self {
            mbps: report["mbit_per_s"]
                .as_f64()
                .context("the receiver told no rate")?,
            silence_ms: report["longest_silence_ms"]
                .as_u64()
                .context("nor a silence")?,
            last_share: last_link.and_then(carried).unwrap_or(0.0) / bytes as f64,
        })
    }
}

/// Sends the file over a cell's links.
fn transfer(
    cell: &str,
    scheduler: &str,
    binary: &Path,
    scratch: &Scratch,
    bytes: u64,
) -> Result<Transfer> {
    let links = links_of(cell);
    let (_, incident) = Incident::of(cell);
    let stage = Stage::up(&scenario(&links)?)?;
    let last = links.len() - 1;
    if incident == Incident::Add {
        stage.plug(last, false)?;
    }
    let program = binary.to_string_lossy();
    let received = scratch.path().join("received");
    let mut receive = stage.at_server(&program);
    receive.args(["sctp", "recv", "--json"]).arg(&received);
    let receiver = Running::start("tabane sctp recv", &mut receive)?;
    let to: Vec<String> = match incident {
        // The address that every link leads to, also one that is not there yet.
        Incident::Add => vec![stage.service().to_string()],
        Incident::None | Incident::Cut => stage
            .links()
            .iter()
            .map(|link| link.server.to_string())
            .collect(),
    };
    let mut send = stage.at_client(&program);
    send.env("TABANE_CONFIG", scratch.path());
    send.args([
        "sctp",
        "send",
        "--json",
        "--scheduler",
        scheduler,
        "--to",
        &to.join(","),
    ]);
    send.arg(scratch.path().join("file"));
    let sender = Running::start("tabane sctp send", &mut send)?;
    // Ten times as long as the slowest link alone should take.
    let slowest = links.iter().map(|(rate, _)| *rate).min().unwrap_or(1);
    let within = Duration::from_secs(60 + 10 * bytes * 8 / (slowest * 1_000_000));
    if incident != Incident::None {
        await_bytes(&received.with_extension("part"), bytes / 3, within)?;
    }
    match incident {
        Incident::None => {}
        Incident::Cut => stage.silence(last, true),
        Incident::Add => stage.plug(last, true)?,
    }
    let sent = sender.finish(within)?.succeeded()?;
    let finished = receiver.finish(Duration::from_secs(30))?.succeeded()?;
    Transfer::told(&sent.stdout, &finished.stdout, bytes)
}

/// Waits until so much has arrived.
fn await_bytes(part: &Path, bytes: u64, within: Duration) -> Result<()> {
    /// How often it is looked at.
    const STEP: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + within;
    while std::fs::metadata(part).map_or(0, |metadata| metadata.len()) < bytes {
        ensure!(Instant::now() < deadline, "not even a third has arrived");
        std::thread::sleep(STEP);
    }
    Ok(())
}

fn scenario(links: &[(u64, u64)]) -> Result<Scenario> {
    let mut text = "name = \"arms\"\nwhy = \"table 1\"\nduration = \"1000s\"\n".to_owned();
    for (index, (rate, rtt)) in links.iter().enumerate() {
        write!(
            text,
            "[[link]]\nname = \"path{index}\"\nrate = \"{rate}mbit\"\ndelay = \"{}ms\"\n\
             queue = \"{QUEUE}\"\n",
            rtt / 2
        )?;
    }
    let mut no_trace = |name: &str| Err(format!("no trace {name}"));
    Ok(Scenario::parse(&text, None, &mut no_trace)?)
}

fn table(results: &Results, schedulers: &[String]) -> (String, bool) {
    let alone = |link: &str, scheduler: &str| {
        let cell = results.cells.iter().find(|cell| cell.cell == link)?;
        cell.mbps.get(scheduler).copied()
    };
    let mut text = format!("{} bytes a cell; seconds as for 20 MB\n\n", results.bytes);
    text += "| paths (Mbit/s x RTT) | paper, s |";
    for scheduler in schedulers {
        text += &format!(" {scheduler}, s | of one path, of the sum |");
    }
    text += " figure |\n|---|---|";
    text += &"---|---|".repeat(schedulers.len());
    text += "---|\n";
    let mut all_reached = true;
    for cell in &results.cells {
        let paper = cell
            .paper_seconds
            .map_or_else(|| "–".to_owned(), |s| format!("{s:.1}"));
        text += &format!("| {} | {paper} |", cell.cell);
        let (names, incident) = Incident::of(&cell.cell);
        let links: Vec<&str> = names.split('+').collect();
        let mut verdict = "–".to_owned();
        for scheduler in schedulers {
            let Some(mbps) = cell.mbps.get(scheduler).copied() else {
                text += " failed | – |";
                all_reached &= scheduler != "tabane";
                continue;
            };
            let seconds = PAPER_BYTES as f64 * 8.0 / 1e6 / mbps;
            // What paths give alone is told by the default, which uses one as anybody would.
            if incident != Incident::None {
                text += &format!(" {seconds:.1} | – |");
                if scheduler == "tabane" {
                    let (reached, figure) = after_incident(cell, incident, scheduler);
                    all_reached &= reached;
                    verdict = figure;
                }
                continue;
            }
            let singles: Option<Vec<f64>> = links.iter().map(|l| alone(l, "tabane")).collect();
            let singles = singles.filter(|_| links.len() > 1);
            let Some(singles) = singles else {
                text += &format!(" {seconds:.1} | – |");
                continue;
            };
            let best = singles.iter().copied().fold(0.0, f64::max);
            let sum: f64 = singles.iter().sum();
            let (of_best, of_sum) = (mbps / best, mbps / sum);
            text += &format!(" {seconds:.1} | {of_best:.2}, {of_sum:.2} |");
            if scheduler == "tabane" {
                let reached = reaches(&links, of_best, of_sum);
                all_reached &= reached;
                verdict = if reached { "reached" } else { "missed" }.to_owned();
            }
        }
        text += &format!(" {verdict} |\n");
    }
    (text, all_reached)
}

/// Whether the figure of a cell with an incident is reached, and in words.
fn after_incident(cell: &Measured, incident: Incident, scheduler: &str) -> (bool, String) {
    let silence = cell.silence_ms.get(scheduler).copied().unwrap_or(0);
    let share = cell.last_share.get(scheduler).copied().unwrap_or(0.0);
    let (reached, what) = match incident {
        Incident::None => (true, String::new()),
        Incident::Cut => (silence <= SILENCE_MS, format!("{silence} ms of silence")),
        Incident::Add => (share >= ADDED, format!("the new path carried {share:.2}")),
    };
    let word = if reached { "reached" } else { "missed" };
    (reached, format!("{word}: {what}"))
}

fn reaches(links: &[&str], of_best: f64, of_sum: f64) -> bool {
    let rate = |link: &&str| link.split('x').next().map(str::to_owned);
    let first = links.first().and_then(rate);
    let is_equal = links.iter().all(|link| rate(link) == first);
    match (is_equal, links.len()) {
        (true, 2) => of_best >= EQUAL,
        _ => of_sum >= UNEQUAL && of_best >= 1.0,
    }
}
