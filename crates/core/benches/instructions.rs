//! What packets cost, for counting instructions: `cargo xtask instructions` runs it under callgrind
//! and compares with `instructions.txt`. By itself it says only how many packets there were.
//!
//! A bulk over two links of 400 and 200 Mbit/s, as the default sends it; then decisions alone.
#![allow(missing_docs, reason = "it is a program")]

use std::hint::black_box;

use tabane_base::{Duration, Instant, Rate};
use tabane_core::{SchedulerKind, Session};
use world::{Counted, World};

#[path = "support/world.rs"]
mod world;

/// Milliseconds until the windows are what they stay.
const WARM_UP: u64 = 1_500;
/// Milliseconds that are counted.
const COUNTED: u64 = 200;
/// Packets per decision, as a turn of the driver's loop would send.
const BATCH: usize = 64;

fn main() {
    let links = [
        (Rate::from_mbps(400), Duration::from_millis(4)),
        (Rate::from_mbps(200), Duration::from_millis(9)),
    ];
    let mut world = World::connected(SchedulerKind::Tabane, &links);
    let now = world.now;
    let id = world.session().open_stream(now).expect("connected");
    let data = vec![7; 65_536];
    for ms in 0..WARM_UP + COUNTED {
        if ms == WARM_UP {
            world.counted = Some(Counted::default());
        }
        world.write(id, &data);
        world.tick();
    }
    let counted = world.counted.take().unwrap_or_default();
    // All is acknowledged, so that windows leave the choice to the scheduler.
    (0..1_000).for_each(|_| world.tick());
    world.write(id, &data);
    let mut now = world.now;
    let mut decided = 0;
    for _ in 0..COUNTED {
        now += Duration::from_millis(1);
        decided += counted_decide(world.session(), now);
    }
    println!("data {}", counted.data);
    println!("answers {}", counted.answers);
    println!("decisions {decided}");
}

#[inline(never)]
fn counted_decide(session: &mut Session, now: Instant) -> usize {
    black_box(session.decide(now, BATCH))
}
