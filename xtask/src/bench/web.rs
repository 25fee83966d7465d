//! `cargo xtask bench web`: files from nginx over emulated links, by curl, aria2 and us.
//!
//! Owns the cells: those of Web SHAKE (64 kbit/s), unequal links, a link that falls silent. curl is
//! bound to each link's device in turn, the best of them counts; aria2 has its best options, bound
//! to all links (by address, which is all it can). Both of ours run: `tabane get`, and curl through
//! `tabane web`. Times are a whole program's, starting included.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tabane_netem::Scenario;

use super::process::Running;
use super::scratch::Scratch;
use super::stage::Stage;

pub(super) const USAGE: &str = "\
usage: cargo xtask bench web [CELL...] [--sizes LIST] [--repeat N] [--json FILE] [--binary FILE]
  CELL          links as kbpsxRTT joined by +, as 8000x40+3000x60; a ! behind one: it falls silent
                after 400 ms [unequal, a silent one, and two and three links of 64 kbit/s]
  --sizes LIST  in bytes, separated by commas [by cell]
  --repeat N    each so often; the mean counts [3]";

/// Cells with what is fetched in them.
const CELLS: [(&str, &[u64]); 4] = [
    (
        "8000x40+3000x60",
        &[1_000, 50_000, 200_000, 1_000_000, 8_000_000],
    ),
    ("8000x40+3000x60!", &[1_000_000]),
    ("64x100+64x100", &[1_000, 10_000, 100_000, 1_000_000]),
    ("64x100+64x100+64x100", &[1_000_000]),
];
const QUEUE: &str = "100kB";
const PROXY: &str = "127.0.0.1:4512";
/// Of the best of the others: what a mean of few runs may be beside the truth.
const SLOWER: f64 = 1.03;
/// What starting a larger program costs, beside the network.
const START: f64 = 0.03;

/// What one cell gave for one size, in seconds.
#[derive(Debug, Serialize)]
struct Measured {
    cell: String,
    bytes: u64,
    /// curl, by link.
    curl: Vec<Option<f64>>,
    aria2: Option<f64>,
    get: Option<f64>,
    web: Option<f64>,
}

#[derive(Debug)]
struct Options {
    cells: Vec<(String, Vec<u64>)>,
    repeats: u32,
    json: Option<String>,
    binary: Option<PathBuf>,
}

/// A link of a cell.
#[derive(Clone, Copy, Debug)]
struct LinkOf {
    kbps: u64,
    rtt_ms: u64,
    falls_silent: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let (mut cells, mut sizes) = (Vec::new(), None);
        let (mut repeats, mut json, mut binary) = (3, None, None);
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} what?"));
            match *word {
                "--repeat" => repeats = value()?.parse().context(USAGE)?,
                "--json" => json = Some((*value()?).to_owned()),
                "--binary" => binary = Some(PathBuf::from(value()?)),
                "--sizes" => {
                    let list = value()?.split(',').map(str::parse);
                    sizes = Some(list.collect::<Result<Vec<u64>, _>>().context(USAGE)?);
                }
                cell => {
                    ensure!(!links_of(cell).is_empty(), "{USAGE}");
                    cells.push(cell.to_owned());
                }
            }
        }
        if cells.is_empty() {
            cells = CELLS.iter().map(|(cell, _)| (*cell).to_owned()).collect();
        }
        let known = |cell: &str| {
            let found = CELLS.iter().find(|(name, _)| *name == cell);
            found.map_or(CELLS[0].1, |(_, sizes)| sizes).to_vec()
        };
        let with_sizes = |cell: String| {
            let sizes = sizes.clone().unwrap_or_else(|| known(&cell));
            (cell, sizes)
        };
        Ok(Self {
            cells: cells.into_iter().map(with_sizes).collect(),
            repeats,
            json,
            binary,
        })
    }
}

/// None where it is no cell.
fn links_of(cell: &str) -> Vec<LinkOf> {
    let link = |text: &str| {
        let (text, falls_silent) = match text.strip_suffix('!') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (kbps, rtt) = text.split_once('x')?;
        Some(LinkOf {
            kbps: kbps.parse().ok()?,
            rtt_ms: rtt.parse().ok()?,
            falls_silent,
        })
    };
    let links: Option<Vec<_>> = cell.split('+').map(link).collect();
    links.unwrap_or_default()
}

/// Measures and prints; `false` where we are slower than somebody.
pub(super) fn run(own: &Path, arguments: &[&str]) -> Result<bool> {
    if arguments.contains(&"--help") {
        println!("{USAGE}");
        return Ok(true);
    }
    let options = Options::parse(arguments)?;
    let binary = options.binary.clone().unwrap_or_else(|| own.join("tabane"));
    ensure!(binary.is_file(), "{} is missing", binary.display());
    let mut results = Vec::new();
    for (cell, sizes) in &options.cells {
        let bench = Bench::set_up(cell, sizes, &binary)?;
        for bytes in sizes {
            let measured = bench.measure(cell, *bytes, options.repeats)?;
            eprintln!("bench web: {measured:?}");
            results.push(measured);
            if let Some(path) = &options.json {
                let text = serde_json::to_string_pretty(&results)? + "\n";
                std::fs::write(path, text).with_context(|| format!("cannot write {path}"))?;
            }
        }
    }
    let (table, is_never_slower) = table(&results);
    print!("{table}");
    Ok(is_never_slower)
}

/// A cell's links with nginx at their far end and our proxy at the near one.
struct Bench {
    stage: Stage,
    scratch: Scratch,
    binary: String,
    /// Ended when dropped.
    _nginx: Running,
    _proxy: Running,
}

impl Bench {
    fn set_up(cell: &str, sizes: &[u64], binary: &Path) -> Result<Self> {
        let (stage, scratch) = (Stage::up(&scenario(cell)?)?, Scratch::new()?);
        let site = scratch.path().join("site");
        std::fs::create_dir(&site)?;
        for bytes in sizes {
            std::fs::write(site.join(bytes.to_string()), contents(*bytes))?;
        }
        let config = scratch.path().join("nginx.conf");
        std::fs::write(&config, nginx(scratch.path(), &stage.service().to_string()))?;
        let mut command = stage.at_server("nginx");
        command.arg("-p").arg(scratch.path()).arg("-c").arg(&config);
        let nginx = Running::start("nginx", &mut command)?;
        let binary = binary.to_string_lossy().into_owned();
        let mut command = stage.at_client(&binary);
        command.env("TABANE_CONFIG", scratch.path());
        command.args(["web", "--listen", PROXY]);
        let mut proxy = Running::start("tabane web", &mut command)?;
        proxy.wait_for_line("web proxy on", Duration::from_secs(10))?;
        Ok(Self {
            stage,
            scratch,
            binary,
            _nginx: nginx,
            _proxy: proxy,
        })
    }

    fn measure(&self, cell: &str, bytes: u64, repeats: u32) -> Result<Measured> {
        let url = format!("http://{}/{bytes}", self.stage.service());
        let names: Vec<&str> = self
            .stage
            .links()
            .iter()
            .map(|link| &*link.interface)
            .collect();
        let silent: Vec<bool> = links_of(cell)
            .iter()
            .map(|link| link.falls_silent)
            .collect();
        let out = self.scratch.path().join("got");
        let slowest = links_of(cell)
            .iter()
            .map(|link| link.kbps)
            .min()
            .unwrap_or(1);
        let within = Duration::from_secs(30 + 4 * bytes * 8 / (slowest * 1_000));
        let mean = |program: &str, arguments: &[&str]| -> Option<f64> {
            let mut sum = 0.0;
            for _ in 0..repeats {
                let mut command = self.stage.at_client(program);
                command.env("TABANE_CONFIG", self.scratch.path());
                command.args(arguments);
                match self.once(command, &out, bytes, within) {
                    Ok(seconds) => sum += seconds,
                    Err(error) => {
                        eprintln!("bench web: {cell} {bytes} {program}: {error:#}");
                        return None;
                    }
                }
            }
            Some(sum / f64::from(repeats))
        };
        let shown = out.to_string_lossy().into_owned();
        let plain = ["-sS", "-f", "-o", &shown, &url];
        let by_link = |(name, is_silent): (&&str, &bool)| {
            let interface = format!("if!{name}");
            let bound = [&["--interface", &*interface][..], &plain].concat();
            // It would only ever time out.
            (!is_silent).then(|| mean("curl", &bound)).flatten()
        };
        let all = names.join(",");
        let multiple = format!("--multiple-interface={all}");
        let folder = self.scratch.path().to_string_lossy().into_owned();
        let aria2 = [
            "-q",
            "-x16",
            "-s16",
            "-k1M",
            "--file-allocation=none",
            "--allow-overwrite=true",
            &multiple,
            "-d",
            &folder,
            "-o",
            "got",
            &url,
        ];
        Ok(Measured {
            cell: cell.to_owned(),
            bytes,
            curl: names.iter().zip(&silent).map(by_link).collect(),
            aria2: mean("aria2c", &aria2),
            get: mean(
                &self.binary,
                &["get", "-q", "--restart", "-o", &shown, &url],
            ),
            web: mean("curl", &[&["-x", PROXY][..], &plain].concat()),
        })
    }

    /// Seconds of one fetch, whose bytes are looked at.
    fn once(&self, mut command: Command, out: &Path, bytes: u64, within: Duration) -> Result<f64> {
        // What an earlier one has left must not be taken for this one's.
        let _ = std::fs::remove_file(out);
        self.stage.rest()?;
        self.stage.begin()?;
        let began_at = Instant::now();
        let program = Running::start("fetch", &mut command)?;
        program.finish(within)?.succeeded()?;
        let took = began_at.elapsed();
        ensure!(std::fs::read(out)? == contents(bytes), "other bytes came");
        Ok(took.as_secs_f64())
    }
}

/// Bytes that no two places share.
fn contents(len: u64) -> Vec<u8> {
    let mut state = len;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn nginx(at: &Path, address: &str) -> String {
    let at = at.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary
        .iter()
        .map(|name| format!("{name}_temp_path {at}/{name}; "))
        .collect();
    format!(
        "daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; {temporary} sendfile on;\n\
         server {{ listen {address}:80; root {at}/site; }} }}\n"
    )
}

fn scenario(cell: &str) -> Result<Scenario> {
    let mut text = "name = \"web\"\nwhy = \"files\"\nduration = \"1000s\"\n".to_owned();
    for (index, link) in links_of(cell).iter().enumerate() {
        let LinkOf { kbps, rtt_ms, .. } = link;
        write!(
            text,
            "[[link]]\nname = \"path{index}\"\nrate = \"{kbps}kbit\"\ndelay = \"{}ms\"\n\
             queue = \"{QUEUE}\"\n",
            rtt_ms / 2
        )?;
        if link.falls_silent {
            text += "[[link.outage]]\nat = \"400ms\"\nfor = \"900s\"\n";
        }
    }
    let mut no_trace = |name: &str| Err(format!("no trace {name}"));
    Ok(Scenario::parse(&text, None, &mut no_trace)?)
}

fn table(results: &[Measured]) -> (String, bool) {
    let mut text = "Seconds; in brackets, of the best link by curl.\n\n".to_owned();
    text += "| links (kbit/s x RTT) | bytes | curl, by link | aria2 | tabane get | tabane web |";
    text += " |\n|---|---|---|---|---|---|---|\n";
    let mut is_never_slower = true;
    for it in results {
        let shown = |seconds: Option<f64>| {
            seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.2}"))
        };
        let least = it.curl.iter().flatten().copied().reduce(f64::min);
        let of_best = |seconds: Option<f64>| match (seconds, least) {
            (Some(seconds), Some(least)) => format!("{seconds:.2} ({:.2})", seconds / least),
            _ => shown(seconds),
        };
        let others = [least, it.aria2];
        let best = others.into_iter().flatten().reduce(f64::min);
        let is_fast = |seconds: Option<f64>| match (seconds, best) {
            (Some(seconds), Some(best)) => seconds <= best * SLOWER + START,
            (seconds, _) => seconds.is_some(),
        };
        let is_reached = is_fast(it.get) && is_fast(it.web);
        is_never_slower &= is_reached;
        let curl: Vec<String> = it.curl.iter().map(|seconds| shown(*seconds)).collect();
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            it.cell,
            it.bytes,
            curl.join(", "),
            shown(it.aria2),
            of_best(it.get),
            of_best(it.web),
            if is_reached { "never slower" } else { "slower" }
        );
    }
    (text, is_never_slower)
}
