//! `cargo xtask bench carriers`: networks that drop or police UDP, and what TLS carries there.
//!
//! Owns the networks and the figures (issue 19). UDP is dropped or policed by nftables at the
//! server's end of a link; plain TCP (BBR) over each link by itself is what the bond is compared
//! with. Nothing is remembered of a network from one measurement to the next, but where that is
//! what is measured.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::ends::{Job, Task};
use super::options::Options;
use super::process::Running;
use super::sheet::{Bound, Row, p95};
use super::stream::StreamReport;
use super::summary::Spread;

const TWIN: &str = "[[link]]\nname = \"a\"\nrate = \"50mbit\"\ndelay = \"10ms\"\n\
                    queue = \"200kB\"\n\
                    [[link]]\nname = \"b\"\nrate = \"50mbit\"\ndelay = \"10ms\"\nqueue = \"200kB\"";
/// Each a row: its name, what is asked there, its links.
const CASES: [(&str, &str, &str); 7] = [
    ("one-dropped", "UDP dropped on one of two equal links", TWIN),
    ("both-dropped", "UDP dropped on both", TWIN),
    (
        "dropped-midway",
        "UDP dropped on one link from the fourth second on",
        TWIN,
    ),
    (
        "policed",
        "UDP policed at 1 of 50 Mbit/s",
        "[[link]]\nname = \"a\"\nrate = \"50mbit\"\ndelay = \"10ms\"\nqueue = \"200kB\"",
    ),
    (
        "lossy-tls",
        "1 % lost, delays four times apart, UDP dropped",
        "[[link]]\nname = \"near\"\nrate = \"20mbit\"\ndelay = \"10ms\"\nqueue = \"150kB\"\n\
         loss = \"1%\"\n\
         [[link]]\nname = \"far\"\nrate = \"20mbit\"\ndelay = \"40ms\"\nqueue = \"250kB\"\n\
         loss = \"1%\"",
    ),
    ("echo", "an echo beside a bulk, UDP dropped", TWIN),
    (
        "wire-tls",
        "processor time: UDP, then dropped",
        "[[link]]\nname = \"a\"\n[[link]]\nname = \"b\"",
    ),
];

/// Seconds of a download after which it is to be as fast as the links.
const STARTED: usize = 5;
/// The same, and seconds until TLS carries, where UDP is policed.
const FOUND_OUT: usize = 10;
const POLICED: &str = "limit rate over 125 kbytes/second burst 100 kbytes drop";
/// When UDP is dropped in the middle of a transfer.
const MIDWAY: Duration = Duration::from_secs(4);
/// By TLS on a link: more than a dial and its handshakes take.
const CARRIED_BYTES: u64 = 500_000;
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);
const ECHO_EVERY_MS: u64 = 20;
const START_WITHIN: Duration = Duration::from_secs(20);

/// One figure of one repeat.
struct Figure {
    contender: &'static str,
    what: &'static str,
    value: f64,
    unit: &'static str,
    bound: Option<Bound>,
}

const PLAIN: &str = "tcp";
const OURS: &str = "tabane";

fn figure(what: &'static str, value: f64, unit: &'static str, bound: Bound) -> Figure {
    let (contender, bound) = (OURS, Some(bound));
    Figure {
        contender,
        what,
        value,
        unit,
        bound,
    }
}

fn told(contender: &'static str, what: &'static str, value: f64, unit: &'static str) -> Figure {
    Figure {
        contender,
        what,
        value,
        unit,
        bound: None,
    }
}

/// The rows of these names, or all.
pub(super) fn scenarios(names: &[String]) -> Result<Vec<Scenario>> {
    let known = |name: &String| CASES.iter().any(|(case, ..)| case == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let known = CASES.map(|(case, ..)| case).join(", ");
        bail!("no row is called {unknown}; there are {known}");
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|it| it == name);
    let cases = CASES.iter().filter(|(name, ..)| wanted(name));
    cases
        .map(|(name, why, links)| {
            let text = format!("name = \"{name}\"\nwhy = \"{why}\"\nduration = \"600s\"\n{links}");
            let scenario = Scenario::parse(&text, None, &mut |_| Err(String::new()));
            scenario.context("a network of the program's own")
        })
        .collect()
}

/// Measures one row.
pub(super) fn measure(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Row> {
    let bench = Bench::set_up(scenario, Direction::Download, binary, options)?;
    let mut repeats = Vec::new();
    for repeat in 1..=options.repeats {
        repeats.push(once(&scenario.name, &bench)?);
        eprintln!("bench: {} {repeat}/{}", scenario.name, options.repeats);
    }
    let mut row = Row::new(&scenario.name);
    let first = repeats.first().context("no repeat")?;
    for (index, figure) in first.iter().enumerate() {
        let values = repeats.iter().map(|figures| figures[index].value);
        let median = Spread::of(values.collect()).map(|spread| spread.median);
        row.find(
            figure.contender,
            figure.what,
            (median, figure.unit),
            figure.bound,
        );
    }
    Ok(row)
}

fn once(case: &str, bench: &Bench) -> Result<Vec<Figure>> {
    match case {
        "one-dropped" => dropped(bench, &[0], 0.93),
        "both-dropped" => dropped(bench, &[0, 1], 0.90),
        "dropped-midway" => midway(bench),
        "policed" => policed(bench),
        "lossy-tls" => {
            let _walls = Walls::around(bench, &[0, 1], "drop")?;
            eta(bench, 0.85)
        }
        "echo" => echo(bench),
        "wire-tls" => wire(bench),
        case => bail!("no row is called {case}"),
    }
}

/// UDP dropped on these links: when a session is up, the first time and once that is remembered,
/// and what it carries from soon after its start.
fn dropped(bench: &Bench, links: &[usize], least: f64) -> Result<Vec<Figure>> {
    let open_s = session_up(bench)?;
    let walls = Walls::around(bench, links, "drop")?;
    bench.bond()?.forget_networks()?;
    let first_s = session_up(bench)?;
    let again_s = session_up(bench)?;
    let mut figures = vec![
        told(OURS, "a command begins, UDP passing, after", open_s, "s"),
        figure("UDP dropped, after", first_s, "s", Bound::AtMost(1.0)),
        figure("and remembered, after", again_s, "s", Bound::AtMost(1.0)),
    ];
    bench.bond()?.forget_networks()?;
    figures.extend(eta(bench, least)?);
    drop(walls);
    Ok(figures)
}

/// The bond's rate once started, of the sum of plain TCP's on each link.
fn eta(bench: &Bench, least: f64) -> Result<Vec<Figure>> {
    let mut sum = 0.0;
    for link in 0..bench.stage().links().len() {
        sum += rate(bench, &Contender::Tcp { link }, STARTED)?;
    }
    let ours = rate(bench, &Contender::Tabane, STARTED)?;
    Ok(vec![
        told(PLAIN, "links' sum from 5 s on", sum / 1e6, "Mbit/s"),
        told(OURS, "from 5 s on", ours / 1e6, "Mbit/s"),
        figure("of the sum", ours / sum, "", Bound::AtLeast(least)),
    ])
}

fn rate(bench: &Bench, contender: &Contender, from: usize) -> Result<f64> {
    bench.prepare(contender)?;
    let (goodput, _) = bench.bulk(contender)?;
    mean(&goodput.intervals_bps, from)
}

/// From one second on.
fn mean(intervals_bps: &[f64], from: usize) -> Result<f64> {
    let rest = intervals_bps.get(from..).unwrap_or_default();
    ensure!(!rest.is_empty(), "this takes more than {from} s: --seconds");
    Ok(rest.iter().sum::<f64>() / rest.len() as f64)
}

/// How long it takes from `tabane run` to the command's first word.
fn session_up(bench: &Bench) -> Result<f64> {
    bench.prepare(&Contender::Tabane)?;
    let mut command = bench.client(&Contender::Tabane, "echo")?;
    command.arg("up");
    let begun = Instant::now();
    let mut running = Running::start("tabane run", &mut command)?;
    running.wait_for_line("up", START_WITHIN)?;
    let took = begun.elapsed();
    running.finish(START_WITHIN)?.succeeded()?;
    Ok(took.as_secs_f64())
}

fn midway(bench: &Bench) -> Result<Vec<Figure>> {
    bench.bond()?.forget_networks()?;
    bench.prepare(&Contender::Tabane)?;
    let (server, near) = (bench.stage().server(), bench.stage().links()[0].client);
    let (report, back_s) = std::thread::scope(|scope| {
        let walled = scope.spawn(move || {
            std::thread::sleep(MIDWAY);
            let walls = Walls::before(server, &[near], "drop")?;
            let begun = Instant::now();
            while walls.carried_by_tls()? < CARRIED_BYTES {
                ensure!(
                    begun.elapsed() < START_WITHIN,
                    "the link is not back by TLS"
                );
                std::thread::sleep(LOOK);
            }
            let took = begun.elapsed();
            // The walls stand until the stream is over.
            Ok::<_, anyhow::Error>((walls, took.as_secs_f64()))
        });
        let streamed: Result<StreamReport> = bench.stream(&Contender::Tabane).map(|it| it.0);
        let walled = walled.join().ok().context("a thread broke")?;
        Ok::<_, anyhow::Error>((streamed?, walled?.1))
    })?;
    let lost = report.sent_bytes - report.verified_bytes;
    Ok(vec![
        figure(
            "longest silence",
            report.silence_ms_max,
            "ms",
            Bound::AtMost(400.0),
        ),
        figure("bytes lost", lost as f64, "", Bound::AtMost(0.0)),
        figure("link back by TLS after", back_s, "s", Bound::AtMost(3.0)),
    ])
}

fn policed(bench: &Bench) -> Result<Vec<Figure>> {
    let _walls = Walls::around(bench, &[0], POLICED)?;
    bench.bond()?.forget_networks()?;
    let plain = rate(bench, &Contender::Tcp { link: 0 }, FOUND_OUT)?;
    bench.prepare(&Contender::Tabane)?;
    let (goodput, _) = bench.bulk(&Contender::Tabane)?;
    let seconds = &goodput.intervals_bps;
    let is_fast = |bps: &f64| *bps >= plain / 2.0;
    let found = seconds.iter().position(is_fast).unwrap_or(seconds.len());
    let ours = mean(seconds, FOUND_OUT)?;
    let again = rate(bench, &Contender::Tabane, 2)?;
    Ok(vec![
        told(PLAIN, "from 10 s on", plain / 1e6, "Mbit/s"),
        told(OURS, "from 10 s on", ours / 1e6, "Mbit/s"),
        figure(
            "TLS carries after",
            found as f64,
            "s",
            Bound::AtMost(FOUND_OUT as f64),
        ),
        figure("of plain TCP", ours / plain, "", Bound::AtLeast(0.9)),
        told(OURS, "from 2 s on, once remembered", again / 1e6, "Mbit/s"),
    ])
}

fn echo(bench: &Bench) -> Result<Vec<Figure>> {
    let _walls = Walls::around(bench, &[0, 1], "drop")?;
    bench.bond()?.forget_networks()?;
    let seconds = bench.seconds();
    let every_ms = ECHO_EVERY_MS;
    let probe = Job::alone(Task::Probe { seconds, every_ms });
    let p95_ms = |job: &Job| {
        let done = bench.errand(&Contender::Tabane, job, 0)?;
        let probed = done.probed.context("no echo")?;
        let slow = p95(&probed.round_trips_ms).context("no echo came back")?;
        Ok::<_, anyhow::Error>((slow, done.bulk_bps.unwrap_or_default()))
    };
    let (idle, _) = p95_ms(&probe)?;
    let (busy, bulk) = p95_ms(&probe.beside_bulk(Direction::Download, 2))?;
    Ok(vec![
        told(OURS, "p95 of an echo, idle", idle, "ms"),
        figure(
            "added beside a bulk",
            busy - idle,
            "ms",
            Bound::AtMost(50.0),
        ),
        told(OURS, "the bulk", bulk / 1e6, "Mbit/s"),
    ])
}

fn wire(bench: &Bench) -> Result<Vec<Figure>> {
    let udp = rate(bench, &Contender::Tabane, 1)?;
    let _walls = Walls::around(bench, &[0, 1], "drop")?;
    let tls = rate(bench, &Contender::Tabane, 1)?;
    bench.bond()?.forget_networks()?;
    Ok(vec![
        told(OURS, "by UDP", udp / 1e6, "Mbit/s"),
        told(OURS, "by TLS", tls / 1e6, "Mbit/s"),
        figure("TLS, of UDP", tls / udp, "", Bound::AtLeast(0.5)),
    ])
}

/// What keeps UDP from passing links, until it is dropped.
struct Walls {
    netns: Netns,
}

impl Walls {
    /// `verdict` is said of all UDP that comes or goes by these links.
    fn around(bench: &Bench, links: &[usize], verdict: &str) -> Result<Self> {
        let near = links.iter().map(|link| bench.stage().links()[*link].client);
        Self::before(bench.stage().server(), &near.collect::<Vec<_>>(), verdict)
    }

    /// The same of what comes from these addresses, or goes there.
    fn before(netns: &Netns, near: &[Ipv4Addr], verdict: &str) -> Result<Self> {
        let netns = netns.clone();
        let walls = Self { netns };
        let chain = |name: &str| format!("add chain inet walls {name} {{ type filter hook");
        let mut rules = vec![
            "add table inet walls".to_owned(),
            "add counter inet walls tls".to_owned(),
            format!("{} input priority 0; }}", chain("in")),
            format!("{} output priority 0; }}", chain("out")),
        ];
        for near in near {
            rules.extend([
                format!("add rule inet walls in ip saddr {near} meta l4proto udp {verdict}"),
                format!("add rule inet walls out ip daddr {near} meta l4proto udp {verdict}"),
                format!("add rule inet walls out ip daddr {near} tcp sport 443 counter name tls"),
            ]);
        }
        for rule in rules {
            walls.nft(&rule)?;
        }
        Ok(walls)
    }

    /// Bytes that went to the client by TLS on these links.
    fn carried_by_tls(&self) -> Result<u64> {
        let text = self.nft("list counter inet walls tls")?;
        let mut words = text.split_whitespace().skip_while(|word| *word != "bytes");
        let bytes = words.nth(1).context("nft counts nothing")?;
        Ok(bytes.parse()?)
    }

    fn nft(&self, rule: &str) -> Result<String> {
        let mut command: Command = self.netns.command("nft");
        let output = command.arg(rule).output().context("cannot start nft")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nft {rule}: {}", said.trim());
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Walls {
    fn drop(&mut self) {
        // The namespace takes them away with it otherwise.
        let _ = self.nft("delete table inet walls");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_network_and_can_be_asked_for() {
        let all = scenarios(&[]).unwrap();
        assert_eq!(all.len(), CASES.len());
        let one = scenarios(&["policed".to_owned()]).unwrap();
        assert_eq!((one.len(), one[0].links.len()), (1, 1));
        let error = scenarios(&["police".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("there are one-dropped"), "{error}");
    }

    #[test]
    fn rates_are_those_from_a_second_on() {
        assert_eq!(mean(&[9.0, 1.0, 3.0], 1).unwrap(), 2.0);
        assert!(mean(&[9.0], 1).is_err());
    }
}
