//! `cargo xtask bench web`: files from nginx over emulated links, by curl, aria2 and us.
//!
//! Owns the cells: those of Web SHAKE (64 kbit/s), unequal links, a link that falls silent. curl is
//! bound to each link's device in turn, the best of them counts; aria2 has its best options, bound
//! to all links (by address, which is all it can). Both of ours run: `tabane get`, and curl through
//! `tabane web`. Times are a whole program's, starting included.

mod neighbour;

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tabane_netem::Scenario;

use super::process::Running;
use super::scratch::Scratch;
use super::stage::Stage;
use neighbour::{Neighbour, settle};

pub(super) const USAGE: &str = "\
usage: cargo xtask bench web [CELL...] [--sizes LIST] [--repeat N] [--json FILE] [--binary FILE]
  CELL          links as kbpsxRTT joined by +, as 8000x40+3000x60; a ! behind one: it falls silent
                after 400 ms; a ~: it is a neighbour's, who lends it [unequal, a silent one, two and
                three links of 64 kbit/s, two own and two neighbours']
  --sizes LIST  in bytes, separated by commas [by cell]
  --repeat N    each so often; the mean counts [3]";

/// Cells with what is fetched in them.
const CELLS: [(&str, &[u64]); 5] = [
    (
        "8000x40+3000x60",
        &[1_000, 50_000, 200_000, 1_000_000, 8_000_000],
    ),
    ("8000x40+3000x60!", &[1_000_000]),
    ("64x200+64x200", &[1_000, 10_000, 100_000, 1_000_000]),
    ("64x200+64x200+64x200", &[1_000_000]),
    (
        "8000x40+3000x60+5000x30~+4000x50~",
        &[200_000, 1_000_000, 20_000_000],
    ),
];
const QUEUE: &str = "100kB";
/// Where nginx is reached: neighbours lend the way to the internet alone.
const SERVICE: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 1);
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
    /// Of one core, what `tabane get` took meanwhile.
    get_core: Option<f64>,
}

/// The means of some fetches, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    wall: f64,
    cpu: f64,
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
    is_lent: bool,
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
        let numbers = text.trim_end_matches(['!', '~']);
        let (kbps, rtt) = numbers.split_once('x')?;
        Some(LinkOf {
            kbps: kbps.parse().ok()?,
            rtt_ms: rtt.parse().ok()?,
            falls_silent: text.contains('!'),
            is_lent: text.contains('~'),
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
            let measured = bench.measure(cell, *bytes, options.repeats);
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

/// A link at work.
struct LinkAt {
    of: LinkOf,
    interface: String,
    /// Whose it is, unless it is the client's own.
    lender: Option<Neighbour>,
}

/// What is fetched.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    bytes: u64,
    /// The mean of so many counts.
    repeats: u32,
    within: Duration,
}

/// A cell's links with nginx at their far end and our proxy at the near one.
struct Bench {
    /// Ended when dropped, before the rest is.
    _nginx: Running,
    _proxy: Running,
    links: Vec<LinkAt>,
    stage: Stage,
    scratch: Scratch,
    binary: String,
}

impl Bench {
    fn set_up(cell: &str, sizes: &[u64], binary: &Path) -> Result<Self> {
        let (mut stage, scratch) = (Stage::up(&scenario(cell)?)?, Scratch::new()?);
        stage.add_service(SERVICE)?;
        let site = scratch.path().join("site");
        std::fs::create_dir(&site)?;
        for bytes in sizes {
            std::fs::write(site.join(bytes.to_string()), contents(*bytes))?;
        }
        let config = scratch.path().join("nginx.conf");
        std::fs::write(&config, nginx(scratch.path(), &SERVICE.to_string()))?;
        let mut command = stage.at_server("nginx");
        command.arg("-p").arg(scratch.path()).arg("-c").arg(&config);
        let nginx = Running::start("nginx", &mut command)?;
        let binary = binary.to_string_lossy().into_owned();
        let mut links = Vec::new();
        for (index, of) in links_of(cell).into_iter().enumerate() {
            let mut lend = || Neighbour::lend(&mut stage, index, scratch.path(), &binary);
            links.push(LinkAt {
                lender: of.is_lent.then(&mut lend).transpose()?,
                interface: stage.links()[index].interface.clone(),
                of,
            });
        }
        let mut command = stage.at_client(&binary);
        settle(&mut command, scratch.path(), "client");
        command.args(["web", "--listen", PROXY]);
        let mut proxy = Running::start("tabane web", &mut command)?;
        proxy.wait_for_line("web proxy on", Duration::from_secs(10))?;
        Ok(Self {
            _nginx: nginx,
            _proxy: proxy,
            links,
            stage,
            scratch,
            binary,
        })
    }

    fn measure(&self, cell: &str, bytes: u64, repeats: u32) -> Measured {
        let url = format!("http://{SERVICE}/{bytes}");
        let slowest = self.links.iter().map(|link| link.of.kbps).min();
        let seconds = 30 + 4 * bytes * 8 / (slowest.unwrap_or(1) * 1_000);
        let fetch = Fetch {
            bytes,
            repeats,
            within: Duration::from_secs(seconds),
        };
        let out = self.out().to_string_lossy().into_owned();
        let plain = ["-sS", "-f", "-o", &out, &url];
        let by_link = |link| self.by_link(link, &plain, fetch);
        let ours = ["get", "-q", "--restart", "-o", &out, &url];
        let wall = |took: Option<Took>| took.map(|took| took.wall);
        let get = self.mean(None, &self.binary, &ours, fetch);
        Measured {
            cell: cell.to_owned(),
            bytes,
            curl: self.links.iter().map(by_link).collect(),
            aria2: self.by_aria2(&url, fetch),
            get: wall(get),
            web: wall(self.mean(None, "curl", &[&["-x", PROXY][..], &plain].concat(), fetch)),
            get_core: get.map(|took| took.cpu / took.wall),
        }
    }

    /// By curl over one link, at the host that has it; none that falls silent, which would only
    /// ever time out.
    fn by_link(&self, link: &LinkAt, plain: &[&str], fetch: Fetch) -> Option<f64> {
        let interface = format!("if!{}", link.interface);
        let bound = [&["--interface", &*interface][..], plain].concat();
        let lender = link.lender.as_ref();
        let mean = || Some(self.mean(lender, "curl", &bound, fetch)?.wall);
        (!link.of.falls_silent).then(mean).flatten()
    }

    /// By aria2 over all links of the client's own.
    fn by_aria2(&self, url: &str, fetch: Fetch) -> Option<f64> {
        let own = self.links.iter().filter(|link| link.lender.is_none());
        let own: Vec<&str> = own.map(|link| &*link.interface).collect();
        let multiple = format!("--multiple-interface={}", own.join(","));
        let folder = self.scratch.path().to_string_lossy();
        let words = "-q -x16 -s16 -k1M --file-allocation=none --allow-overwrite=true -o got -d";
        let mut arguments: Vec<&str> = words.split(' ').collect();
        arguments.extend([&*folder, &multiple, url]);
        Some(self.mean(None, "aria2c", &arguments, fetch)?.wall)
    }

    /// What a fetch takes by `program` at the lender's or the client's; says why there are none.
    fn mean(
        &self,
        lender: Option<&Neighbour>,
        program: &str,
        arguments: &[&str],
        fetch: Fetch,
    ) -> Option<Took> {
        let mut sum = Took::default();
        for _ in 0..fetch.repeats {
            let mut command = match lender {
                Some(lender) => lender.command(program),
                None => self.stage.at_client(program),
            };
            settle(&mut command, self.scratch.path(), "client");
            command.args(arguments);
            match self.once(command, fetch) {
                Ok(took) => {
                    sum.wall += took.wall;
                    sum.cpu += took.cpu;
                }
                Err(error) => {
                    eprintln!("bench web: {} bytes by {program}: {error:#}", fetch.bytes);
                    return None;
                }
            }
        }
        let repeats = f64::from(fetch.repeats);
        Some(Took {
            wall: sum.wall / repeats,
            cpu: sum.cpu / repeats,
        })
    }

    fn out(&self) -> PathBuf {
        self.scratch.path().join("got")
    }

    /// One fetch, whose bytes are looked at.
    fn once(&self, mut command: Command, fetch: Fetch) -> Result<Took> {
        let out = self.out();
        // What an earlier one has left must not be taken for this one's.
        let _ = std::fs::remove_file(&out);
        self.stage.rest()?;
        self.stage.begin()?;
        let began_at = Instant::now();
        let program = Running::start("fetch", &mut command)?;
        let cpu = program.finish(fetch.within)?.succeeded()?.cpu.total();
        let wall = began_at.elapsed();
        ensure!(
            std::fs::read(&out)? == contents(fetch.bytes),
            "other bytes came"
        );
        Ok(Took {
            wall: wall.as_secs_f64(),
            cpu: cpu.as_secs_f64(),
        })
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
    text += " get, of the sum | of a core | |\n|---|---|---|---|---|---|---|---|---|\n";
    let mut is_never_slower = true;
    for it in results {
        let shown = |number: Option<f64>| {
            number.map_or_else(|| "–".to_owned(), |number| format!("{number:.2}"))
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
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            it.cell,
            it.bytes,
            curl.join(", "),
            shown(it.aria2),
            of_best(it.get),
            of_best(it.web),
            shown(of_sum(it)),
            shown(it.get_core),
            if is_reached { "never slower" } else { "slower" }
        );
    }
    (text, is_never_slower)
}

/// How much of the speed that curl has on all links together `tabane get` has.
fn of_sum(it: &Measured) -> Option<f64> {
    let speeds = it.curl.iter().map(|seconds| seconds.map(f64::recip));
    let sum: f64 = speeds.sum::<Option<f64>>()?;
    Some(it.get?.recip() / sum)
}
