//! What the gateway costs: how much it carries on wires, how long packets wait for it, what a flow
//! takes of memory.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use tabane_linux::raise_priority;
use tabane_netem::Scenario;

use super::super::process::Running;
use super::super::summary::{Spread, percentile};
use super::world::{SERVICE, World};
use super::{Mode, Sender, transfer};

const SPAN: Duration = Duration::from_secs(5);
/// What is compared.
const WAYS: [Setup; 5] = [
    Setup::new("off", Mode::Off, &[]),
    Setup::new("observe", Mode::Observe, &[]),
    Setup::new("assist", Mode::Assist, &[]),
    Setup::new("assist --poll 100", Mode::Assist, &["--poll", "100"]),
    Setup::new("split", Mode::Split, &[]),
];
/// Where assist is among them; it polls in the next.
const ASSIST: usize = 2;
/// Latency is measured in turns, so that what else the machine does meets all modes alike.
const ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_secs(1);
/// Mbit/s that assist and split are to carry.
const ASSIST_MBPS: f64 = 1_500.0;
const SPLIT_MBPS: f64 = 8_000.0;

/// 100 Mbit/s in messages of one segment.
const MESSAGE: usize = 1_250;
const EVERY: Duration = Duration::from_micros(100);
/// What assist may add at the 99th percentile.
const ADDED_US: f64 = 50.0;

/// As many as are promised, or as there are descriptors for.
const FLOWS: usize = 10_000;
/// What each fetches, so that it has been assisted.
const ANSWER: usize = 1_000;
/// Nothing is owed any more after it.
const SETTLE: Duration = Duration::from_secs(1);
/// Bytes a flow may take beside its copies.
const FLOW_BYTES: f64 = 2_048.0;
/// For what else the bench has open.
const DESCRIPTORS_SPARE: usize = 500;

/// A gateway, or none.
#[derive(Clone, Copy, Debug)]
struct Setup {
    name: &'static str,
    mode: Mode,
    flags: &'static [&'static str],
}

impl Setup {
    const fn new(name: &'static str, mode: Mode, flags: &'static [&'static str]) -> Self {
        Self { name, mode, flags }
    }
}

/// What was measured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Cost {
    carried_mbps: Vec<(&'static str, f64)>,
    waits: Vec<Waits>,
    flows: usize,
    flow_bytes: f64,
}

/// From the server's write to the mobile host's read: medians of all rounds' percentiles.
#[derive(Debug, Serialize)]
struct Waits {
    way: &'static str,
    p50_us: f64,
    p99_us: f64,
    /// Each round's.
    p99_us_of_rounds: Vec<f64>,
    /// Processor time of the gateway's process, of one core.
    cpu: f64,
}

/// Measures everything.
pub(super) fn run(binary: &Path) -> Result<Cost> {
    let mut cost = Cost::default();
    let worlds: Result<Vec<World>> = WAYS.iter().map(|way| world(binary, *way)).collect();
    let worlds = worlds?;
    for (way, world) in WAYS.iter().zip(&worlds) {
        let mbps = transfer::rate(world, SPAN)?;
        cost.carried_mbps.push((way.name, mbps));
        eprintln!("bench gateway: cost, {}: {mbps:.0} Mbit/s", way.name);
    }
    cost.waits = waits_in_turns(&worlds)?;
    drop(worlds);
    (cost.flows, cost.flow_bytes) = memory(binary)?;
    Ok(cost)
}

fn waits_in_turns(worlds: &[World]) -> Result<Vec<Waits>> {
    let mut rounds = WAYS.map(|_| Vec::new());
    let cpu = |world: &World| {
        let cpu = |gateway: &Running| gateway.cpu().total();
        world.gateway().map_or(Duration::ZERO, cpu)
    };
    let before: Vec<Duration> = worlds.iter().map(cpu).collect();
    for _ in 0..ROUNDS {
        for ((way, world), rounds) in WAYS.iter().zip(worlds).zip(&mut rounds) {
            let waits = waits(world).with_context(|| format!("latency, {}", way.name))?;
            let at = |share| percentile(&waits, share).unwrap_or(f64::NAN);
            rounds.push((at(0.5), at(0.99)));
        }
    }
    let spent = worlds.iter().zip(before).map(|(world, before)| {
        let spent = cpu(world).saturating_sub(before);
        spent.as_secs_f64() / (ROUND * ROUNDS as u32).as_secs_f64()
    });
    let of_ways = WAYS.iter().zip(rounds).zip(spent);
    let waits = of_ways.map(|((way, rounds), cpu)| {
        let median = |values: Vec<f64>| Spread::of(values).map_or(f64::NAN, |s| s.median);
        let waits = Waits {
            way: way.name,
            p50_us: median(rounds.iter().map(|round| round.0).collect()),
            p99_us: median(rounds.iter().map(|round| round.1).collect()),
            p99_us_of_rounds: rounds.iter().map(|round| round.1).collect(),
            cpu,
        };
        eprintln!("bench gateway: cost, {waits:?}");
        waits
    });
    Ok(waits.collect())
}

fn world(binary: &Path, way: Setup) -> Result<World> {
    let text = "name = \"wire\"\nwhy = \"cost\"\n[[link]]\nname = \"radio\"\n";
    let wire = Scenario::parse(text, None, &mut |name| Err(format!("no trace {name}")))?;
    let mut world = World::up(&wire, Sender::Modern, "cubic")?;
    world.start(binary, way.mode, way.flags)?;
    Ok(world)
}

/// How long each message was on its way, in microseconds. Both ends run before all ordinary
/// threads, as hosts with processors of their own would: what is measured is the way, and not for
/// how long three programs queue for the cores of one machine.
fn waits(world: &World) -> Result<Vec<f64>> {
    let listener = world.origin().run(|| TcpListener::bind(SERVICE))??;
    let server = std::thread::spawn(move || send_steadily(&listener));
    let mut stream = world.mobile().run(|| TcpStream::connect(SERVICE))??;
    let client = std::thread::spawn(move || -> Result<Vec<f64>> {
        raise_priority()?;
        let mut waits = Vec::new();
        let mut message = [0; MESSAGE];
        while stream.read_exact(&mut message).is_ok() {
            let mut stamp = [0; 8];
            stamp.copy_from_slice(&message[..8]);
            let away = now_ns().saturating_sub(u64::from_ne_bytes(stamp));
            waits.push(away as f64 / 1e3);
        }
        Ok(waits)
    });
    server.join().ok().context("the server's thread broke")??;
    client.join().ok().context("the client's thread broke")?
}

fn send_steadily(listener: &TcpListener) -> Result<()> {
    // Without it, none but the coarsest pace.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    raise_priority()?;
    let (begun, mut next) = (Instant::now(), Instant::now());
    let mut message = [7; MESSAGE];
    while begun.elapsed() < ROUND {
        message[..8].copy_from_slice(&now_ns().to_ne_bytes());
        stream.write_all(&message)?;
        next += EVERY;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// The machine's clock, the same for both ends.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// How many flows this process may have both ends of.
fn flows() -> Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.and_then(|most| usize::try_from(most).ok());
    let flows = most.map_or(FLOWS, |most| {
        FLOWS.min(most.saturating_sub(DESCRIPTORS_SPARE) / 2)
    });
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )
    .context("too few descriptors")?;
    Ok(flows)
}

/// How many flows there were, and what each took of memory when nothing was owed to any.
fn memory(binary: &Path) -> Result<(usize, f64)> {
    let flows = flows()?;
    let world = world(binary, WAYS[ASSIST])?;
    let listener = world.origin().run(|| TcpListener::bind(SERVICE))??;
    let server = std::thread::spawn(move || -> std::io::Result<Vec<TcpStream>> {
        let answer = |stream: std::io::Result<TcpStream>| {
            let mut stream = stream?;
            stream.write_all(&[7; ANSWER])?;
            Ok(stream)
        };
        listener.incoming().take(flows).map(answer).collect()
    });
    let gateway = world.gateway().context("the gateway runs")?;
    let before = gateway.memory_kb()?;
    let open = || -> std::io::Result<Vec<TcpStream>> {
        let fetch = |_| {
            let mut stream = TcpStream::connect(SERVICE)?;
            stream.read_exact(&mut [0; ANSWER])?;
            Ok(stream)
        };
        (0..flows).map(fetch).collect()
    };
    let clients = world.mobile().run(open)??;
    let servers = server.join().ok().context("the server's thread broke")??;
    std::thread::sleep(SETTLE);
    let after = gateway.memory_kb()?;
    drop((clients, servers));
    Ok((flows, (after - before) * 1e3 / flows as f64))
}

/// For a terminal or a README; whether all figures are reached.
pub(super) fn table(cost: &Cost) -> (String, bool) {
    let mut text = "| what |".to_owned();
    for way in WAYS {
        let _ = write!(text, " {} |", way.name);
    }
    text += &format!(" figure |\n|---|{}---|\n", "---|".repeat(WAYS.len()));
    let mut all_reached = true;
    let mut row = |what: &str, cells: Vec<String>, figure: Option<(String, bool)>| {
        let figure = figure.map_or_else(
            || "–".to_owned(),
            |(figure, reached)| {
                all_reached &= reached;
                format!("{figure}: {}", if reached { "reached" } else { "missed" })
            },
        );
        let _ = writeln!(text, "| {what} | {} | {figure} |", cells.join(" | "));
    };
    let carried: Vec<f64> = cost.carried_mbps.iter().map(|row| row.1).collect();
    let is_fast = carried.get(ASSIST).is_some_and(|mbps| *mbps >= ASSIST_MBPS)
        && carried.last().is_some_and(|mbps| *mbps >= SPLIT_MBPS);
    let figure = format!("assist ≥ {ASSIST_MBPS:.0}, split ≥ {SPLIT_MBPS:.0}");
    let cells = carried.iter().map(|mbps| format!("{mbps:.0}")).collect();
    row(
        "one flow over wires, Mbit/s",
        cells,
        Some((figure, is_fast)),
    );
    let added = |of: fn(&Waits) -> f64| -> Vec<f64> {
        let without = cost.waits.first().map_or(f64::NAN, of);
        let added = cost.waits.iter().skip(1).map(|waits| of(waits) - without);
        std::iter::once(without).chain(added).collect()
    };
    let cells = |added: &[f64]| -> Vec<String> {
        let (without, added) = (added.iter().take(1), added.iter().skip(1));
        let without = without.map(|us| format!("{us:.0}"));
        without.chain(added.map(|us| format!("{us:+.0}"))).collect()
    };
    let what = "on its way at 100 Mbit/s, median, µs";
    row(what, cells(&added(|waits| waits.p50_us)), None);
    let p99 = added(|waits| waits.p99_us);
    let is_quick = p99.get(ASSIST).is_some_and(|us| *us <= ADDED_US);
    let figure = format!("assist ≤ +{ADDED_US:.0}");
    row("99 of 100, µs", cells(&p99), Some((figure, is_quick)));
    let cpu = cost
        .waits
        .iter()
        .map(|waits| format!("{:.0}", 100.0 * waits.cpu));
    row("processor time meanwhile, % of a core", cpu.collect(), None);
    let mut cells = WAYS.map(|_| "–".to_owned());
    cells[ASSIST] = format!("{:.0}", cost.flow_bytes);
    let figure = (format!("≤ {FLOW_BYTES:.0}"), cost.flow_bytes <= FLOW_BYTES);
    let what = format!("memory of each of {} flows, bytes", cost.flows);
    row(&what, cells.to_vec(), Some(figure));
    (text, all_reached)
}
