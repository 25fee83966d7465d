//! A long link falls to a small part of its rate with much on its way: what the reader waits for
//! comes by the other one soon, with default settings.

#[path = "links/constant.rs"]
mod constant;

use std::fmt::Write as _;

use constant::link;
use tabane_base::{Duration, Instant, Rate, Seed};
use tabane_netem::Direction;
use tabane_sim::{LinkId, Setup, Side, Transfer, World};

const FALLS: Instant = Instant::from_millis(6_000);
const STEP: Duration = Duration::from_millis(100);
/// What is carried is looked at for so long at a time: what was held comes at once.
const SPAN: Duration = Duration::from_millis(500);
const LOOKED_AT: u32 = 60;
/// Of the rate of the link that stays.
const CARRIED: f64 = 0.75;
const WITHIN: Duration = Duration::from_millis(1_600);

/// Mbit/s and ms each way of the link that stays and of the one that falls, and to how many kbit/s.
const PAIRS: [[(u64, u64); 2]; 5] = [
    [(20, 20), (14, 290)],
    [(8, 30), (14, 290)],
    [(50, 10), (20, 150)],
    [(100, 10), (30, 60)],
    [(10, 40), (10, 100)],
];
const LEFT: Rate = Rate::from_bps(200_000);

/// After how long the reader gets as much as the link carries that stays; the longest such wait.
fn held_up(pair: [(u64, u64); 2]) -> Option<Duration> {
    let links = pair.map(|it| link(it, Duration::from_millis(200)));
    let mut world = World::new(Setup::new(Seed(9), links.to_vec()));
    world.connect_by_each_link();
    world.add(Transfer::download());
    world.run_until(FALLS);
    for direction in [Direction::Up, Direction::Down] {
        let falls = world.network_mut().link_mut(LinkId(1), direction);
        falls.set_rate(FALLS, LEFT);
    }
    world.run_until(FALLS + STEP * LOOKED_AT + SPAN);
    let outcome = world.outcome(Side::Client);
    let carried = |from| outcome.goodput_between(from, from + SPAN).as_mbps_f64();
    let stays = pair[0].0 as f64;
    let mut steps = (0..LOOKED_AT).map(|step| STEP * step).rev();
    let last = steps.find(|after| carried(FALLS + *after) < stays * CARRIED);
    Some(last.map_or(Duration::ZERO, |last| last + STEP)).filter(|it| *it < STEP * LOOKED_AT)
}

#[test]
fn a_link_that_falls_holds_up_what_others_can_bring_for_no_longer_than_it_takes_to_tell() {
    let mut table = String::from("Mbit/s and ms each way: held up for\n");
    let mut is_well = true;
    for pair in PAIRS {
        let held = held_up(pair);
        is_well &= held.is_some_and(|held| held <= WITHIN);
        let _ = writeln!(table, "{pair:?}: {held:?}");
    }
    println!("{table}");
    assert!(is_well, "{table}");
}
