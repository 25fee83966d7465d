//! Random operations on a world, and what must hold whatever they are.
//!
//! A seed draws links, settings and a list of operations. While they run the world checks every
//! byte, every timer and the driving contract; afterwards the network heals and everything that
//! was begun must end. Most worlds are small, so that there are many of them; every sixteenth is
//! large. What fails is cut down to the fewest operations that fail, and printed.
//!
//! - `TABANE_SEED=7 cargo test -p tabane-sim --test random` runs one seed alone and prints what it
//!   does.
//! - `TABANE_SEEDS=1000..2000` runs these and goes on after failures; how fast is printed.
//!
//! Without either a fixed part is run, and a range that is another one each time.

mod adversary;
mod checks;
mod operations;
mod plan;

use std::hash::BuildHasher;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use plan::Plan;

/// Seeds tried on every run.
const FIXED: Range<u64> = 0..1_500;
/// Seeds beside them, drawn anew each time: what takes half a minute on a quiet core, and less than
/// three on a busy one.
const FRESH: u64 = 4_500;
/// Seeds that once found something.
const REGRESSIONS: [u64; 7] = [575, 102_511, 118_687, 219_663, 325_947, 350_006, 606_040];

#[test]
fn whatever_happens_every_byte_arrives_once_and_in_order() {
    if let Some(seed) = variable("TABANE_SEED") {
        plan(seed.parse().expect("a number")).play(true);
        return;
    }
    if let Some(seeds) = variable("TABANE_SEEDS") {
        let (from, to) = seeds.split_once("..").expect("from..to");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        return run_all(number(from)..number(to));
    }
    let fresh = fresh_seeds();
    println!("fresh seeds: {fresh}..{}", fresh + FRESH);
    let seeds = REGRESSIONS.into_iter().chain(FIXED);
    for seed in seeds.chain(fresh..fresh + FRESH) {
        if let Err(text) = try_out(seed) {
            panic!("{text}");
        }
    }
}

/// Where they begin: far from the fixed ones, and short enough to be typed.
#[expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "they differ from run to run, and are printed"
)]
fn fresh_seeds() -> u64 {
    1_000_000 + std::hash::RandomState::new().hash_one("fresh") % 1_000_000_000
}

#[expect(clippy::disallowed_methods, reason = "how seeds are chosen")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[expect(clippy::disallowed_methods, reason = "how fast it goes is of interest")]
fn run_all(seeds: Range<u64>) {
    let began = std::time::Instant::now();
    let mut failed = 0;
    let (from, to) = (seeds.start, seeds.end);
    for seed in seeds {
        if let Err(text) = try_out(seed) {
            failed += 1;
            println!("{text}");
        }
        let done = seed + 1 - from;
        if done.is_multiple_of(1_000) || seed + 1 == to {
            let speed = done as f64 / began.elapsed().as_secs_f64();
            println!("{done} seeds, {failed} failed, {speed:.0} a second");
        }
    }
    assert_eq!(failed, 0, "failures are listed above");
}

/// Seeds that once found something stand for what they stood for then.
fn plan(seed: u64) -> Plan {
    let plan = Plan::draw(seed);
    match REGRESSIONS.contains(&seed) {
        true => plan,
        false => plan.with_more(),
    }
}

/// Runs a seed; what to do about it if it fails.
fn try_out(seed: u64) -> Result<(), String> {
    let plan = plan(seed);
    let Some(why) = failure(&plan) else {
        return Ok(());
    };
    // Each try tells the same once more.
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let least = plan.shrink(|plan| failure(plan).is_some());
    set_hook(hook);
    Err(format!(
        "seed {seed}: {why}\nthe least that fails:\n{least}\n\
         again: TABANE_SEED={seed} cargo test -p tabane-sim --test random"
    ))
}

fn failure(plan: &Plan) -> Option<String> {
    let failure = catch_unwind(AssertUnwindSafe(|| plan.play(false))).err()?;
    let text = failure.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| failure.downcast_ref::<&str>().copied());
    Some(text.unwrap_or("?").to_owned())
}
