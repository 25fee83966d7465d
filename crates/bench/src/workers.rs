//! `cargo xtask bench workers`: what a relay's worker does with its processor time, alone and
//! beside another one.
//!
//! Owns what is asked: goodput for a second of the relay's processor time with one worker and with
//! two, where more than a twentieth less with two would mean that they stand in each other's way;
//! handshakes for the same, of a first crowd and of one that comes when that is there already; what
//! an idle session costs in memory. Clients share the machine, but their time is not counted: so
//! two processors are enough to ask, and what more workers come to is arithmetic.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::relay::{Crowd, Programs, Relay, build, source};
use super::scratch::Scratch;

const USAGE: &str = "cargo xtask bench workers [SESSIONS] [--profile dev|release] [--binary FILE]";

/// Of a key, by a relay's usual limits; the crowds have keys of their own.
const OF_A_KEY: u32 = 8;
const BUSY_S: u64 = 10;
/// Runs of each, in turns: a machine that others use changes its mind meanwhile.
const REPEATS: usize = 3;
/// Path MTU discovery and the like are over by then.
const SETTLE: Duration = Duration::from_secs(5);
/// What was asked for (issue 21).
const LEAST_EFFICIENCY: f64 = 0.95;
const LEAST_HANDSHAKES: f64 = 3_000.0;
const MOST_KB: f64 = 32.0;

/// What one run has shown.
struct Figures {
    /// Goodput, in Mbit, for a second of the relay's processor time.
    mbit_per_cpu_s: f64,
    /// Of all the relay's time, the share of the thread that had most.
    largest_share: f64,
    mbps: f64,
    /// Sessions set up for a second of it, of each crowd.
    handshakes: [f64; 2],
    idle_kb: f64,
}

/// Measures and prints; `false` where something is missed.
pub(super) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let (sessions, programs) = build(root, arguments, USAGE)?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    println!("load before         {}", load.trim());
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        one.push(measure(&programs, sessions, "1")?);
        two.push(measure(&programs, sessions, "2")?);
    }
    let (one, two) = (median(one), median(two));
    println!("                       one worker  two workers");
    let row = |name: &str, unit: &str, of: &dyn Fn(&Figures) -> f64| {
        println!("{name:<22} {:>11.1} {:>12.1}  {unit}", of(&one), of(&two));
    };
    row("goodput", "Mbit/s", &|it| it.mbps);
    row("for processor time", "Mbit/s of a processor", &|it| {
        it.mbit_per_cpu_s
    });
    row("busiest thread", "% of the relay's time", &|it| {
        it.largest_share * 100.0
    });
    row("sessions set up", "for a second of it", &|it| {
        it.handshakes[0]
    });
    row("the same, later", "for a second of it", &|it| {
        it.handshakes[1]
    });
    row("an idle session", "kB", &|it| it.idle_kb);
    let efficiency = two.mbit_per_cpu_s / one.mbit_per_cpu_s;
    // What each does for its time is what contention leaves of it: N workers do
    // N / (1 + s (N - 1)) of one's work (Gunther's law without coherence).
    let serial = (1.0 / efficiency - 1.0).max(0.0);
    println!(
        "two for one           {:.2} times one's goodput, of two processors",
        2.0 * efficiency
    );
    println!("serial share          {:.1} %", serial * 100.0);
    for workers in [4.0, 8.0, 16.0] {
        let times = workers / (1.0 + serial * (workers - 1.0));
        println!("{workers:>3} workers           {times:.1} times, by that share");
    }
    let slowest = one.handshakes.iter().chain(&two.handshakes).copied();
    Ok(efficiency >= LEAST_EFFICIENCY
        && slowest.fold(f64::MAX, f64::min) >= LEAST_HANDSHAKES
        && one.idle_kb.max(two.idle_kb) <= MOST_KB)
}

/// The run whose efficiency is in the middle.
fn median(mut runs: Vec<Figures>) -> Figures {
    runs.sort_by(|a, b| a.mbit_per_cpu_s.total_cmp(&b.mbit_per_cpu_s));
    runs.swap_remove(runs.len() / 2)
}

fn measure(programs: &Programs, sessions: u32, workers: &str) -> Result<Figures> {
    let scratch = Scratch::new()?;
    let relay = Relay::start_with(programs, &scratch, &["--workers", workers])?;
    let source = source()?;
    let empty = relay.memory_kb()?;
    let mut crowds = Vec::new();
    let mut handshakes = [0.0; 2];
    for (index, of_a_second) in handshakes.iter_mut().enumerate() {
        let keys = sessions.div_ceil(OF_A_KEY);
        let crowd = Crowd {
            sessions,
            busy_s: BUSY_S,
            first: u8::try_from(index as u32 * keys).context("at most 1,016 sessions")?,
        };
        let before = relay.cpu_s()?;
        let mut crowd = crowd.start(programs, &relay, source)?;
        crowd.number("connected_s")?;
        *of_a_second = f64::from(sessions) / (relay.cpu_s()? - before).max(0.01);
        crowds.push(crowd);
    }
    std::thread::sleep(SETTLE);
    let idle_kb = (relay.memory_kb()? - empty) / f64::from(2 * sessions);
    let before = relay.cpu_s_by_thread()?;
    let mut busy = crowds.pop().context("there are two")?;
    busy.go()?;
    let bytes = busy.number("bytes")?;
    let seconds = busy.number("seconds")?;
    let after = relay.cpu_s_by_thread()?;
    // Threads for files and names come and go, and cost nothing here.
    let by_thread: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    let cpu_s: f64 = by_thread.iter().sum();
    let mbps = bytes * 8.0 / seconds / 1e6;
    // The crowd's first second is not in its figures, but in the relay's time.
    let load = cpu_s / (seconds + 1.0);
    Ok(Figures {
        mbit_per_cpu_s: mbps / load.max(0.01),
        largest_share: by_thread.iter().copied().fold(0.0, f64::max) / cpu_s.max(0.01),
        mbps,
        handshakes,
        idle_kb,
    })
}
