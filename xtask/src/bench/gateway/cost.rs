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
use tabane_netem::Scenario;

use super::super::summary::percentile;
use super::world::{SERVICE, World};
use super::{Mode, Sender, transfer};

const SPAN: Duration = Duration::from_secs(5);
const MODES: [Mode; 3] = [Mode::Off, Mode::Assist, Mode::Split];
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

/// What was measured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Cost {
    carried_mbps: Vec<(Mode, f64)>,
    /// The 50th and 99th percentiles, from the server's write to the mobile host's read.
    waits_us: Vec<(Mode, f64, f64)>,
    flows: usize,
    flow_bytes: f64,
}

/// Measures everything.
pub(super) fn run(binary: &Path) -> Result<Cost> {
    let mut cost = Cost::default();
    for mode in MODES {
        let world = world(binary, mode)?;
        cost.carried_mbps
            .push((mode, transfer::rate(&world, SPAN)?));
        let waits = waits(&world).with_context(|| format!("latency, {}", mode.name()))?;
        let at = |share| percentile(&waits, share).unwrap_or(f64::NAN);
        cost.waits_us.push((mode, at(0.5), at(0.99)));
        eprintln!("bench gateway: cost, {}: done", mode.name());
    }
    (cost.flows, cost.flow_bytes) = memory(binary)?;
    Ok(cost)
}

fn world(binary: &Path, mode: Mode) -> Result<World> {
    let text = "name = \"wire\"\nwhy = \"cost\"\n[[link]]\nname = \"radio\"\n";
    let wire = Scenario::parse(text, None, &mut |name| Err(format!("no trace {name}")))?;
    let mut world = World::up(&wire, Sender::Modern, "cubic")?;
    world.start(binary, mode)?;
    Ok(world)
}

/// How long each message was on its way, in microseconds.
fn waits(world: &World) -> Result<Vec<f64>> {
    let listener = world.origin().run(|| TcpListener::bind(SERVICE))??;
    let server = std::thread::spawn(move || send_steadily(&listener));
    let mut stream = world.mobile().run(|| TcpStream::connect(SERVICE))??;
    let mut waits = Vec::new();
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        let mut stamp = [0; 8];
        stamp.copy_from_slice(&message[..8]);
        let away = now_ns().saturating_sub(u64::from_ne_bytes(stamp));
        waits.push(away as f64 / 1e3);
    }
    server.join().ok().context("the server's thread broke")??;
    Ok(waits)
}

fn send_steadily(listener: &TcpListener) -> Result<()> {
    // Without it, none but the coarsest pace.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (begun, mut next) = (Instant::now(), Instant::now());
    let mut message = [7; MESSAGE];
    while begun.elapsed() < SPAN {
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
    let world = world(binary, Mode::Assist)?;
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
    let mut text =
        "| what | without | assist | split | figure |\n|---|---|---|---|---|\n".to_owned();
    let carried = |mode| {
        cost.carried_mbps
            .iter()
            .find(|row| row.0 == mode)
            .map(|row| row.1)
    };
    let waits = |mode| cost.waits_us.iter().find(|row| row.0 == mode);
    let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let verdict = |reached: bool| if reached { "reached" } else { "missed" };
    let rates = MODES.map(|mode| number(carried(mode)));
    let is_fast = rates[1] >= ASSIST_MBPS && rates[2] >= SPLIT_MBPS;
    let _ = writeln!(
        text,
        "| one flow over wires, Mbit/s | {:.0} | {:.0} | {:.0} | ≥ {ASSIST_MBPS:.0}, ≥ \
         {SPLIT_MBPS:.0}: {} |",
        rates[0],
        rates[1],
        rates[2],
        verdict(is_fast)
    );
    let [p50, p99] = [1, 2].map(|which| {
        MODES.map(|mode| number(waits(mode).map(|row| if which == 1 { row.1 } else { row.2 })))
    });
    let is_quick = p99[1] - p99[0] <= ADDED_US;
    let _ = writeln!(
        text,
        "| on its way at 100 Mbit/s, median, µs | {:.0} | +{:.0} | +{:.0} | – |",
        p50[0],
        p50[1] - p50[0],
        p50[2] - p50[0]
    );
    let _ = writeln!(
        text,
        "| 99 of 100, µs | {:.0} | {:+.0} | {:+.0} | assist ≤ +{ADDED_US:.0}: {} |",
        p99[0],
        p99[1] - p99[0],
        p99[2] - p99[0],
        verdict(is_quick)
    );
    let is_small = cost.flow_bytes <= FLOW_BYTES;
    let _ = writeln!(
        text,
        "| memory of each of {} flows, bytes | – | {:.0} | – | ≤ {FLOW_BYTES:.0}: {} |",
        cost.flows,
        cost.flow_bytes,
        verdict(is_small)
    );
    (text, is_fast && is_quick && is_small)
}
