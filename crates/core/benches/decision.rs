//! What deciding costs per packet with eight paths: scheduler and pacers, on a session that has
//! measured its paths by a transfer over links of 40 to 5 Mbit/s and 5 to 75 ms.
//!
//! `cargo bench -p tabane-core --bench decision`; the goal is 300 ns. Cutting data into pieces is
//! not part of it, in advance or not.
#![allow(missing_docs, reason = "criterion's macros write functions")]
#![expect(
    clippy::disallowed_methods,
    reason = "what takes time is measured by the clock"
)]

use std::hint::black_box;
use std::time::Instant as Clock;

use criterion::{Criterion, criterion_group, criterion_main};
use tabane_base::{Bytes, Duration, Rate};
use tabane_core::SchedulerKind;
use world::World;

#[path = "support/world.rs"]
mod world;

const PATHS: u64 = 8;
/// Packets per call, as a turn of the driver's loop would send.
const BATCH: usize = 64;

/// A session that has used all its paths and has nothing under way, but much to send.
fn measured(scheduler: SchedulerKind) -> World {
    let link = |n| {
        let rate = Rate::from_mbps(5 * (PATHS - n));
        (rate, Duration::from_millis(5 + 10 * n))
    };
    let links: Vec<_> = (0..PATHS).map(link).collect();
    let mut world = World::connected(scheduler, &links);
    let now = world.now;
    let id = world.session().open_stream(now).expect("connected");
    let data = vec![7; 65_536];
    for _ in 0..4_000 {
        world.write(id, &data);
        world.tick();
    }
    // What was written leaves and is acknowledged; then the next waits.
    for _ in 0..3_000 {
        world.tick();
    }
    world.write(id, &data);
    let now = world.now;
    let paths = world.session().snapshot(now).paths;
    let active = paths.iter().filter(|path| path.in_flight == Bytes::ZERO);
    assert_eq!(active.count() as u64, PATHS, "{scheduler}: paths are busy");
    world
}

fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision per packet, 8 paths");
    for scheduler in SchedulerKind::ALL {
        let mut world = measured(scheduler);
        let mut now = world.now;
        group.bench_function(scheduler.name(), |b| {
            b.iter_custom(|packets| {
                let begun = Clock::now();
                let mut decided = 0;
                while decided < packets {
                    // As long as the links take for a batch.
                    now += Duration::from_millis(1);
                    decided += black_box(world.session().decide(now, BATCH)) as u64;
                }
                begun
                    .elapsed()
                    .mul_f64(packets as f64 / decided.max(1) as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
