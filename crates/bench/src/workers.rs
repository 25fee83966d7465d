//! `cargo xtask bench workers`: what a relay's worker does with its processor time, alone and
//! beside another one.
//!
//! Owns what is asked: goodput for a second of a worker's processor time with one worker and with
//! two, where more than a twentieth less with two would mean that they stand in each other's way;
//! handshakes for the same, of a first crowd and of one that comes when that is there already; what
//! an idle session costs in memory. Beside the workers, one thread writes the list of clients: of a
//! crowd every eighth session is that of a new one, which takes a tenth of their time. Clients
//! share the machine, but their time is not counted: so two processors are enough to ask, and what
//! more workers come to is arithmetic.
//!
//! A second worker takes processors and caches from the clients, who then send and answer in other
//! batches, and both together meet what the machine gives to two at once. That is nobody's fault,
//! so it is measured too: two relays of one worker each, which share nothing, with half of the
//! clients each; and a loop that needs nothing but a processor, on one and on two.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::relay::{Crowd, Programs, Relay, build, source};
use super::scratch::Scratch;

const USAGE: &str = "cargo xtask bench workers [SESSIONS] [--repeat N] [--profile dev|release] \
                     [--binary FILE]";

/// Of a key, by a relay's usual limits; the crowds have keys of their own.
const OF_A_KEY: u32 = 8;
const BUSY_S: u64 = 5;
/// Runs of each, in turns: a machine that others use changes its mind meanwhile.
const REPEATS: usize = 3;
/// Path MTU discovery and the like are over by then: they take some round trips of loopback.
const SETTLE: Duration = Duration::from_secs(3);
/// How long a loop goes round that shows what the machine gives.
const LOOP: Duration = Duration::from_millis(500);
/// What is measured: its name, relays, and workers of each.
const SETTINGS: [(&str, u32, &str); 3] = [
    ("one worker", 1, "1"),
    ("two workers", 1, "2"),
    ("two relays", 2, "1"),
];
/// What was asked for (issue 21).
const LEAST_EFFICIENCY: f64 = 0.95;
const LEAST_FOR_TWO: f64 = 1.8;
const LEAST_HANDSHAKES: f64 = 3_000.0;
const MOST_KB: f64 = 32.0;

/// What one run has shown.
struct Figures {
    /// Goodput, in Mbit, for a second of its workers' processor time.
    mbit_per_cpu_s: f64,
    /// Of all workers' time, the share of the one that had most.
    largest_share: f64,
    mbps: f64,
    /// Sessions set up for a second of it, of each crowd.
    handshakes: [f64; 2],
    idle_kb: f64,
}

/// Measures and prints; `false` where something is missed.
pub(super) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let (repeats, arguments) = repeats(arguments)?;
    let (sessions, programs) = build(root, &arguments, USAGE)?;
    println!("load before         {}", load()?);
    let mut runs = [const { Vec::new() }; 3];
    let mut both = Vec::new();
    for round in 1..=repeats {
        // In turns, as the machine may change its mind.
        for (runs, (name, relays, workers)) in runs.iter_mut().zip(SETTINGS) {
            let begin = Instant::now();
            let figures = measure(&programs, sessions, relays, workers)?;
            println!(
                "{round} of {repeats}, {name:<12} {:.0} Mbit/s of a processor, {:.0} and {:.0} \
                 sessions set up for a second of it, {:.0} s",
                figures.mbit_per_cpu_s,
                figures.handshakes[0],
                figures.handshakes[1],
                begin.elapsed().as_secs_f64()
            );
            runs.push(figures);
        }
        both.push(two_processors());
    }
    println!("load after          {}", load()?);
    // Of the same round, as what the machine gives differs by a fifth from minute to minute.
    let ratio = |of: usize, to: usize| {
        let pairs = runs[of].iter().zip(&runs[to]);
        middle(pairs.map(|(of, to)| of.mbit_per_cpu_s / to.mbit_per_cpu_s))
    };
    let (for_one, machine, efficiency) = (ratio(1, 0), ratio(2, 0), ratio(1, 2));
    let [one, two, apart] = runs.map(median);
    print(&[&one, &two, &apart]);
    println!(
        "two for one           {:.2} times one's goodput, of two processors; two relays: {:.2}",
        2.0 * for_one,
        2.0 * machine
    );
    println!(
        "two processors        {:.2} times what one does alone, of a loop without memory",
        middle(both.into_iter())
    );
    println!(
        "a worker beside one   {:.1} % of what it does where nothing is shared",
        100.0 * efficiency
    );
    // What each does for its time is what contention leaves of it: N workers do
    // N / (1 + s (N - 1)) of one's work (Gunther's law without coherence).
    let serial = (1.0 / efficiency - 1.0).max(0.0);
    println!("serial share          {:.1} %", serial * 100.0);
    for workers in [4.0, 8.0, 16.0] {
        let times = workers / (1.0 + serial * (workers - 1.0));
        println!("{workers:>3} workers           {times:.1} times, by that share");
    }
    let slowest = one.handshakes.iter().chain(&two.handshakes).copied();
    Ok(efficiency >= LEAST_EFFICIENCY
        && 2.0 * for_one >= LEAST_FOR_TWO
        && slowest.fold(f64::MAX, f64::min) >= LEAST_HANDSHAKES
        && one.idle_kb.max(two.idle_kb) <= MOST_KB)
}

/// How many runs of each are wanted, and the other arguments.
fn repeats<'a>(arguments: &[&'a str]) -> Result<(usize, Vec<&'a str>)> {
    let mut rest = arguments.to_vec();
    let Some(at) = rest.iter().position(|word| *word == "--repeat") else {
        return Ok((REPEATS, rest));
    };
    let number = rest.get(at + 1).and_then(|number| number.parse().ok());
    rest.drain(at..(at + 2).min(rest.len()));
    let number = number.filter(|number| (1..=100).contains(number));
    Ok((number.context(USAGE)?, rest))
}

/// Of the machine, over the last 1, 5 and 15 minutes.
fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let words: Vec<&str> = text.split_whitespace().take(3).collect();
    Ok(words.join(" "))
}

fn print(settings: &[&Figures]) {
    let line = |name: &str, values: Vec<String>, unit: &str| {
        let values = values.iter().map(|value| format!("{value:>13}"));
        println!("{name:<20} {}  {unit}", values.collect::<String>());
    };
    let names = SETTINGS.iter().map(|(name, ..)| (*name).to_owned());
    line("", names.collect(), "");
    let row = |name: &str, unit: &str, of: &dyn Fn(&Figures) -> f64| {
        let values = settings.iter().map(|it| format!("{:.1}", of(it)));
        line(name, values.collect(), unit);
    };
    row("goodput", "Mbit/s", &|it| it.mbps);
    row("for processor time", "Mbit/s of a processor", &|it| {
        it.mbit_per_cpu_s
    });
    row("busiest worker", "% of the workers' time", &|it| {
        it.largest_share * 100.0
    });
    row("sessions set up", "for a second of it", &|it| {
        it.handshakes[0]
    });
    row("the same, later", "for a second of it", &|it| {
        it.handshakes[1]
    });
    row("an idle session", "kB", &|it| it.idle_kb);
}

/// What two threads get done at once, where one gets done 1: what the machine gives to a program
/// that shares nothing and touches little memory.
fn two_processors() -> f64 {
    let work = || {
        let (begin, mut rounds, mut state) = (Instant::now(), 0_u64, [0x9e37_79b9_u64; 8]);
        while begin.elapsed() < LOOP {
            for _ in 0..10_000 {
                state = state.map(|it| (it ^ (it >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9));
            }
            rounds += 1;
        }
        std::hint::black_box(state);
        rounds as f64
    };
    let alone = work();
    let together: f64 = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work() + other.join().unwrap_or_default()
    });
    together / alone
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The run whose efficiency is in the middle, with handshakes that are.
fn median(mut runs: Vec<Figures>) -> Figures {
    let handshakes = [0, 1].map(|crowd| middle(runs.iter().map(|run| run.handshakes[crowd])));
    runs.sort_by(|a, b| a.mbit_per_cpu_s.total_cmp(&b.mbit_per_cpu_s));
    let median = runs.swap_remove(runs.len() / 2);
    Figures {
        handshakes,
        ..median
    }
}

/// `sessions` clients twice, half of them at each of two relays.
fn measure(programs: &Programs, sessions: u32, relays: u32, workers: &str) -> Result<Figures> {
    let flags = ["--workers", workers];
    let states = (0..relays).map(|_| Scratch::new());
    let states: Vec<Scratch> = states.collect::<Result<_>>()?;
    let start = |state| Relay::start_with(programs, state, &flags);
    let relays: Vec<Relay> = states.iter().map(start).collect::<Result<_>>()?;
    let each = sessions / u32::try_from(relays.len())?;
    let sum = |of: fn(&Relay) -> Result<f64>| relays.iter().map(of).sum::<Result<f64>>();
    let by_worker = || {
        let of_each = relays.iter().map(Relay::cpu_s_by_worker);
        of_each.collect::<Result<Vec<_>>>().map(|all| all.concat())
    };
    let busy_s = || by_worker().map(|workers| workers.iter().sum::<f64>());
    let source = source()?;
    let empty = sum(Relay::memory_kb)?;
    // The first crowd stays, and is idle while the second is busy.
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    let mut handshakes = [0.0; 2];
    for (index, of_a_second) in handshakes.iter_mut().enumerate() {
        let keys = each.div_ceil(OF_A_KEY);
        let crowd = Crowd {
            sessions: each,
            busy_s: BUSY_S,
            first: u8::try_from(index as u32 * keys).context("at most 1,016 sessions")?,
        };
        let before = busy_s()?;
        let start = |relay| crowd.start(programs, relay, source);
        idle.append(&mut busy);
        busy = relays.iter().map(start).collect::<Result<Vec<_>>>()?;
        for crowd in &mut busy {
            crowd.number("connected_s")?;
        }
        *of_a_second = f64::from(sessions) / (busy_s()? - before).max(0.001);
        // What it measures of its paths afterwards is not of the next crowd's handshakes.
        std::thread::sleep(SETTLE);
    }
    let idle_kb = (sum(Relay::memory_kb)? - empty) / f64::from(2 * sessions);
    let before = by_worker()?;
    for crowd in &mut busy {
        crowd.go()?;
    }
    let (mut bytes, mut seconds) = (0.0, 0.0_f64);
    for crowd in &mut busy {
        bytes += crowd.number("bytes")?;
        seconds = seconds.max(crowd.number("seconds")?);
    }
    let after = by_worker()?;
    let by_worker: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    let cpu_s: f64 = by_worker.iter().sum();
    let mbps = bytes * 8.0 / seconds / 1e6;
    // The crowd's first second is not in its figures, but in the relay's time.
    let load = cpu_s / (seconds + 1.0);
    Ok(Figures {
        mbit_per_cpu_s: mbps / load.max(0.01),
        largest_share: by_worker.iter().copied().fold(0.0, f64::max) / cpu_s.max(0.01),
        mbps,
        handshakes,
        idle_kb,
    })
}
