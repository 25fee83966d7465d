//! The shipped scenario files in virtual time: what a bulk transfer reaches with default settings.
//!
//! Two guards. Lower bounds, a bit under what is reached, fail when something breaks. And the whole
//! table is compared with `scenarios.txt`, so that a change of behaviour shows in review: figures
//! that changed for a good reason are accepted by `TABANE_BLESS=1 cargo test -p tabane-sim`.

use std::fmt::Write as _;
use std::io::Read as _;

use tabane_base::{Duration, Instant, Seed};
use tabane_netem::{Direction, Scenario};
use tabane_sim::{LinkId, Setup, Side, Transfer, World};

/// Stream bytes per byte on the link at best: 1,440 of a packet of 1,500.
const CEILING: f64 = 0.96;

/// What must be reached on a scenario.
struct Row {
    scenario: &'static str,
    direction: Direction,
    /// Share of the links' rates, after what headers cost.
    share_min: f64,
    /// The longest time without a byte for the reader, once the transfer has begun.
    silence_max: Duration,
}

const fn row(scenario: &'static str, share_min: f64, silence_ms: u64) -> Row {
    let silence_max = Duration::from_millis(silence_ms);
    Row {
        scenario,
        direction: Direction::Down,
        share_min,
        silence_max,
    }
}

const fn upload(scenario: &'static str, share_min: f64, silence_ms: u64) -> Row {
    Row {
        direction: Direction::Up,
        ..row(scenario, share_min, silence_ms)
    }
}

const ROWS: [Row; 18] = [
    row("twin", 0.98, 60),
    row("unequal", 0.97, 120),
    row("four", 0.97, 150),
    row("sbam-a", 0.98, 60),
    row("sbam-b", 0.94, 150),
    row("sbam-c", 0.98, 60),
    row("lossy", 0.96, 120),
    row("rtt-skew", 0.93, 350),
    row("bloat", 0.97, 120),
    row("eight", 0.96, 250),
    row("drag", 0.97, 120),
    row("far", 0.95, 250),
    row("wide", 0.97, 150),
    row("cut", 0.73, 250),
    row("lte", 0.95, 700),
    row("leo", 0.85, 220),
    upload("twin", 0.98, 60),
    upload("unequal", 0.97, 120),
];

#[test]
fn bulk_transfers_reach_what_they_reached_before() {
    let mut table = String::from(
        "scenario  dir   Mbit/s  share  silence  held kB  queue p95 ms  lost kB  again kB\n",
    );
    let mut failures = String::new();
    for row in &ROWS {
        match load(row.scenario) {
            Some(scenario) => run(row, &scenario, &mut table, &mut failures),
            None => println!("{} skipped: its traces are not here", row.scenario),
        }
    }
    print!("{table}");
    assert!(failures.is_empty(), "\n{failures}");
    compare(&table);
}

fn run(row: &Row, scenario: &Scenario, table: &mut String, failures: &mut String) {
    let mut world = World::new(Setup::new(Seed(1), scenario.links.clone()));
    world.connect();
    let (name, reader, sender, transfer, rate) = match row.direction {
        Direction::Down => (
            "down",
            Side::Client,
            Side::Server,
            Transfer::download(),
            scenario.rate_down(),
        ),
        Direction::Up => (
            "up",
            Side::Server,
            Side::Client,
            Transfer::upload(),
            scenario.rate_up(),
        ),
    };
    world.add(transfer);
    let end = Instant::EPOCH + scenario.duration;
    world.run_until(end);
    let outcome = world.outcome(reader);
    let goodput = outcome.goodput(end);
    let share = goodput.as_bps() as f64 / rate.as_bps() as f64 / CEILING;
    let paths = world.paths(sender);
    let kilo = |bytes: u64| bytes.div_ceil(1_000);
    let links = (0..world.network().len()).map(LinkId);
    let waits = links.map(|link| world.network().queueing_delay(link, row.direction, 0.95));
    let _ = writeln!(
        table,
        "{:9} {name:4} {:7.2}  {share:.3}  {:4} ms  {:7}  {:12.1}  {:7}  {:8}",
        row.scenario,
        goodput.as_mbps_f64(),
        outcome.silence_max().as_millis(),
        kilo(world.receive_memory_max(reader).get()),
        waits.max().unwrap_or_default().as_secs_f64() * 1e3,
        kilo(paths.iter().map(|path| path.path.lost.get()).sum()),
        kilo(paths.iter().map(|path| path.path.reinjected.get()).sum()),
    );
    let id = format!("{} {name}", row.scenario);
    if share < row.share_min {
        let _ = writeln!(
            failures,
            "{id}: share {share:.3}, at least {} wanted",
            row.share_min
        );
    }
    if outcome.silence_max() > row.silence_max {
        let _ = writeln!(failures, "{id}: silent for {:?}", outcome.silence_max());
    }
}

/// `None` when the scenario wants traces that are not here.
#[expect(clippy::disallowed_methods, reason = "scenarios and traces are files")]
fn load(name: &str) -> Option<Scenario> {
    let path = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the scenario ships with us");
    let mut missing = false;
    let scenario = Scenario::parse(&text, None, &mut |name| {
        let path = format!(
            "{}/../../../shared/traces/{name}.gz",
            env!("CARGO_MANIFEST_DIR")
        );
        let packed = std::fs::read(path).map_err(|error| {
            missing = true;
            error.to_string()
        })?;
        let mut text = String::new();
        let read = flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text);
        read.map_err(|error| error.to_string()).map(|_| text)
    });
    match scenario {
        Ok(scenario) => Some(scenario),
        Err(_) if missing => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "the table of record is a file")]
fn compare(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios.txt");
    if std::env::var_os("TABANE_BLESS").is_some() {
        std::fs::write(path, table).expect("the tree can be written to");
        return;
    }
    let known = std::fs::read_to_string(path).expect("the table of record is committed");
    let changed: Vec<_> = table
        .lines()
        // Without traces a row is missing here; none may be missing there.
        .filter(|line| !known.lines().any(|other| other == *line))
        .collect();
    assert!(
        changed.is_empty(),
        "these rows differ from scenarios.txt (accept with TABANE_BLESS=1):\n{}",
        changed.join("\n")
    );
}
