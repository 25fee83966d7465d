//! `cargo xtask bench cost`: processor time for a gigabit, of client and relay apart.
//!
//! One transfer of one TCP connection, as for goodput. What an end costs is its process's time, in
//! its own code and in the kernel: its UDP sockets, and its side of the program's or the server's
//! TCP connection. What iperf3 takes, and the emulator, is not in it.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tabane_netem::Scenario;

use super::bench::Bench;
use super::bond::Bond;
use super::contender::{Contender, Direction};
use super::options::Options;
use super::process::Cpu;
use super::record::title;
use super::sheet::{Bound, Row};
use super::summary::Spread;

/// Seconds of processor time that a gigabit may cost each end.
const MOST_S: f64 = 0.1;

/// One transfer.
struct Run {
    gbits: f64,
    gbps: f64,
    client: Cpu,
    relay: Cpu,
}

/// Measures one row.
pub(super) fn measure(
    scenario: &Scenario,
    direction: Direction,
    binary: &Path,
    options: &Options,
) -> Result<Row> {
    let bench = Bench::set_up(scenario, direction, binary, options)?;
    let mut row = Row::new(&title(&scenario.name, direction));
    let mut runs = Vec::new();
    for repeat in 1..=options.repeats {
        let run = transfer(&bench)?;
        eprintln!(
            "bench: {} {repeat}/{}: {:.2} Gbit/s, client {:.3} s/Gbit, relay {:.3} s/Gbit",
            title(&scenario.name, direction),
            options.repeats,
            run.gbps,
            run.client.total().as_secs_f64() / run.gbits,
            run.relay.total().as_secs_f64() / run.gbits,
        );
        runs.push(run);
    }
    let name = Contender::Tabane.to_string();
    let median = |read: &dyn Fn(&Run) -> f64| {
        Spread::of(runs.iter().map(read).collect()).map(|spread| spread.median)
    };
    let goodput = median(&|run| run.gbps);
    row.find(&name, "goodput", (goodput, "Gbit/s"), None);
    for (end, cpu) in [
        ("client", (|run| run.client) as fn(&Run) -> Cpu),
        ("relay", |run| run.relay),
    ] {
        let cost =
            |part: fn(Cpu) -> Duration| median(&|run| part(cpu(run)).as_secs_f64() / run.gbits);
        let figure = Some(Bound::AtMost(MOST_S));
        let unit = "s/Gbit";
        row.find(&name, end, (cost(Cpu::total), unit), figure);
        let kernel = format!("{end}, of it in the kernel");
        row.find(&name, kernel, (cost(|cpu| cpu.system), unit), None);
    }
    Ok(row)
}

fn transfer(bench: &Bench) -> Result<Run> {
    let contender = Contender::Tabane;
    bench.prepare(&contender)?;
    let before = bench.bond().map(Bond::relay_cpu)?;
    let (goodput, client) = bench.bulk(&contender)?;
    let relay = bench.bond().map(Bond::relay_cpu)?.since(before);
    Ok(Run {
        gbits: goodput.bytes as f64 * 8.0 / 1e9,
        gbps: goodput.bps / 1e9,
        client,
        relay,
    })
}
