//! Receivers with little memory on unequal paths: how much a bulk transfer keeps of what it
//! reaches with plenty.
//!
//! Every row must keep [`KEPT`] of the least of two things: what plenty of memory gives, and what
//! an ideal flow control reaches whose window is the memory. With paths of rates rᵢ and one-way
//! delays dᵢ used together, data is on its way or waits for order for as long as the slowest takes,
//! and the news that it was read takes the fastest way back; so a set S of paths carries at most
//! min(Σ rᵢ, memory / (max d + min d)), and the best set is chosen. One path alone needs no memory,
//! because its data comes in order and credit is not memory [P-6.6]. Data that arrives in step
//! beats the bound. The table is compared with `windows.txt`; changes made for a good reason are
//! accepted by `TABANE_BLESS=1 cargo test -p tabane-sim --test windows`.

use std::fmt::Write as _;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{DropReason, SessionConfig};
use tabane_netem::{LinkSpec, RateModel, Scenario};
use tabane_sim::{Setup, Side, Transfer, World};

const SCENARIOS: [&str; 6] = ["unequal", "rtt-skew", "far", "wide", "drag", "eight"];
const MEMORIES: [Bytes; 4] = [
    Bytes::kilo(64),
    Bytes::kilo(256),
    Bytes::mega(1),
    Bytes::mega(4),
];
const PLENTY: Bytes = Bytes::mega(16);
/// Delays in percent of the scenario's. One run goes by chance, as all with queues do: figures are
/// means over these, and memory the most.
const STRETCHED: [u32; 3] = [95, 100, 105];
/// What must be kept of the bound.
const KEPT: f64 = 0.95;

struct Run {
    goodput: f64,
    shed: u64,
    held: Bytes,
}

#[test]
fn little_memory_keeps_what_its_size_allows() {
    let mut table = String::from("scenario   memory  of plenty  bound   shed  held kB\n");
    let mut failures = String::new();
    for name in SCENARIOS {
        let scenarios = STRETCHED.map(|percent| stretched(load(name), percent));
        let plenty = run_all(&scenarios, PLENTY).map(|run| run.goodput);
        for memory in MEMORIES {
            let runs = run_all(&scenarios, memory);
            let mean = |of: &dyn Fn(usize) -> f64| {
                (0..STRETCHED.len()).map(of).sum::<f64>() / STRETCHED.len() as f64
            };
            let kept = mean(&|n| runs[n].goodput / plenty[n]);
            let bound = mean(&|n| (bound(&scenarios[n].links, memory) / plenty[n]).min(1.0));
            let shed = runs.iter().map(|run| run.shed).sum::<u64>() / STRETCHED.len() as u64;
            let held = runs.iter().map(|run| run.held).max().unwrap();
            let kilo = memory.get() / 1_000;
            let _ = writeln!(
                table,
                "{name:9}  {kilo:4} kB      {kept:.3}  {bound:.3}  {shed:5}  {:7}",
                held.get() / 1_000
            );
            if kept < KEPT * bound {
                let _ = writeln!(failures, "{name} with {kilo} kB: {kept:.3} of {bound:.3}");
            }
            assert!(held <= memory, "{name} with {kilo} kB held {held}");
        }
    }
    print!("{table}");
    assert!(failures.is_empty(), "\n{failures}");
    compare(&table);
}

/// The same links, with delays of so many percent.
fn stretched(mut scenario: Scenario, percent: u32) -> Scenario {
    for link in &mut scenario.links {
        for way in [&mut link.up, &mut link.down] {
            way.delay = way.delay * percent / 100;
        }
    }
    scenario
}

#[expect(
    clippy::disallowed_methods,
    reason = "the worlds are apart, and this test is who drives them"
)]
fn run_all(scenarios: &[Scenario; 3], memory: Bytes) -> [Run; 3] {
    std::thread::scope(|scope| {
        let runs = scenarios
            .each_ref()
            .map(|scenario| scope.spawn(move || run(scenario, memory)));
        runs.map(|run| run.join().expect("it ends"))
    })
}

fn run(scenario: &Scenario, memory: Bytes) -> Run {
    let mut setup = Setup::new(Seed(1), scenario.links.clone());
    setup.client = SessionConfig {
        receive_memory: memory,
        ..SessionConfig::default()
    };
    let mut world = World::new(setup);
    world.connect();
    world.add(Transfer::download());
    let end = Instant::EPOCH + scenario.duration;
    world.run_until(end);
    let session = world.session(Side::Client).expect("the transfer goes on");
    Run {
        goodput: world.outcome(Side::Client).goodput(end).as_mbps_f64(),
        shed: session.snapshot(end).drops.of(DropReason::Shed),
        held: world.receive_memory_max(Side::Client),
    }
}

/// In Mbit/s of stream data. Sets of paths from the nearest on are enough: of two sets with the
/// same slowest path the one with all nearer paths is as good or better.
fn bound(links: &[LinkSpec], memory: Bytes) -> f64 {
    /// Stream bytes per byte on the link at best: 1,440 of a packet of 1,500.
    const CEILING: f64 = 0.96;
    let mut paths: Vec<(Duration, f64)> = links.iter().map(path).collect();
    paths.sort_by_key(|(delay, _)| *delay);
    let nearest = paths[0].0;
    let alone = paths.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut sum = 0.0;
    let together = paths.iter().map(|(delay, rate)| {
        sum += rate;
        let window = Rate::of(memory, *delay + nearest).as_mbps_f64();
        window.min(sum * CEILING)
    });
    together.fold(alone * CEILING, f64::max)
}

fn path(link: &LinkSpec) -> (Duration, f64) {
    match &link.down.rate {
        RateModel::Constant(rate) => (link.down.delay, rate.as_mbps_f64()),
        other => panic!("{}: a constant rate is wanted, not {other:?}", link.name),
    }
}

#[expect(clippy::disallowed_methods, reason = "scenarios are files")]
fn load(name: &str) -> Scenario {
    let path = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the scenario ships with us");
    let no_traces = &mut |name: &str| Err(format!("{name} is not wanted here"));
    Scenario::parse(&text, None, no_traces).expect("the scenario is sound")
}

#[expect(clippy::disallowed_methods, reason = "the table of record is a file")]
fn compare(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/windows.txt");
    if std::env::var_os("TABANE_BLESS").is_some() {
        std::fs::write(path, table).expect("the tree can be written to");
        return;
    }
    let known = std::fs::read_to_string(path).expect("the table of record is committed");
    assert_eq!(table, known, "accept with TABANE_BLESS=1");
}
