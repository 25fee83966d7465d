//! `cargo xtask bench udp`: one flow of datagrams over all links.
//!
//! At nine tenths of the sum of the links' rates nearly all must arrive in order and in time; at
//! all of it, nine tenths must arrive. Beside it what a plain socket does with nine tenths of the
//! first link: if that misses, the machine is too busy to measure on.

use std::path::Path;

use anyhow::Result;
use tabane_netem::{LinkSpec, Scenario};

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::ends::{Done, Job, Task};
use super::options::Options;
use super::record::title;
use super::sheet::{Bound, Row};

/// Of the sum of the rates, at IP level.
const OFFERED: f64 = 0.9;
/// Of what was offered, in order and in time.
const IN_TIME: f64 = 0.99;
/// Of the sum of the rates, when all of it is offered.
const CARRIED: f64 = 0.9;

/// What the product waits for earlier datagrams of a flow by default; the slowest link's delay
/// comes on top. In milliseconds.
const DEADLINE_MS: u64 = 25;

const MOST: &str = "90 % offered";
const ALL: &str = "100 % offered";

/// Measures one row.
pub(super) fn measure(
    scenario: &Scenario,
    direction: Direction,
    binary: &Path,
    options: &Options,
) -> Result<Row> {
    let bench = Bench::set_up(scenario, direction, binary, options)?;
    let mut row = Row::new(&title(&scenario.name, direction));
    let link = Contender::Tcp { link: 0 };
    let first_bps = rates_bps(scenario, direction)[0];
    let sum_bps: u64 = rates_bps(scenario, direction).iter().sum();
    let jobs = [
        (&link, MOST, OFFERED * first_bps as f64),
        (&Contender::Tabane, MOST, OFFERED * sum_bps as f64),
        (&Contender::Tabane, ALL, sum_bps as f64),
    ];
    for repeat in 1..=options.repeats {
        for (contender, job, bps) in jobs.iter().filter(|(c, ..)| options.wants(c)) {
            let flow = Task::Flow {
                bps: *bps as u64,
                seconds: options.seconds,
                direction,
                in_time_ms: in_time_ms(scenario, direction),
            };
            let done = bench.errand(contender, &Job::alone(flow), 0);
            let name = name(contender);
            if let Some(tally) = done.as_ref().ok().and_then(|done| done.flow.as_ref()) {
                eprintln!(
                    "bench: {} {repeat}/{} {name}, {job}: {:.2} % in order and in time; {} of {} \
                     arrived, {} late, {} out of order, slowest {:.0} ms",
                    scenario.name,
                    options.repeats,
                    tally.good_share() * 100.0,
                    tally.arrived,
                    tally.offered,
                    tally.late,
                    tally.out_of_order,
                    tally.slowest_ms
                );
            }
            row.add(&name, job, repeat, done);
        }
    }
    judge(sum_bps, options, &mut row);
    Ok(row)
}

/// What carries datagrams over one link is no TCP.
fn name(contender: &Contender) -> String {
    contender.to_string().replace("tcp", "udp")
}

fn rates_bps(scenario: &Scenario, direction: Direction) -> Vec<u64> {
    let ways = scenario.links.iter().map(|link| way(link, direction));
    ways.map(|way| way.mean_rate().as_bps()).collect()
}

fn way(link: &LinkSpec, direction: Direction) -> &tabane_netem::LinkConfig {
    match direction {
        Direction::Download => &link.down,
        Direction::Upload => &link.up,
    }
}

fn in_time_ms(scenario: &Scenario, direction: Direction) -> u64 {
    let delays = scenario.links.iter().map(|link| way(link, direction).delay);
    let slowest = delays.map(|delay| delay.as_millis() as u64).max();
    slowest.unwrap_or(0) + DEADLINE_MS
}

fn judge(sum_bps: u64, options: &Options, row: &mut Row) {
    let link = Contender::Tcp { link: 0 };
    let share = |done: &Done| Some(done.flow.as_ref()?.good_share() * 100.0);
    if options.wants(&link) {
        let value = row.median(&name(&link), MOST, share);
        let what = format!("{MOST} (of the link), in order and in time");
        row.find(&name(&link), what, (value, "%"), None);
    }
    if !options.wants(&Contender::Tabane) {
        return;
    }
    let name = name(&Contender::Tabane);
    let value = row.median(&name, MOST, share);
    let what = format!("{MOST}, in order and in time");
    let bound = Some(Bound::AtLeast(IN_TIME * 100.0));
    row.find(&name, what, (value, "%"), bound);
    let slowest = row.median(&name, MOST, |done| Some(done.flow.as_ref()?.slowest_ms));
    row.find(&name, format!("{MOST}, slowest"), (slowest, "ms"), None);
    let carried = |done: &Done| Some(done.flow.as_ref()?.arrived_bps() / sum_bps as f64);
    let value = row.median(&name, ALL, carried);
    let bound = Some(Bound::AtLeast(CARRIED));
    row.find(
        &name,
        format!("{ALL}, of the sum arrived"),
        (value, ""),
        bound,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::is_steady;

    fn scenario(second: &str) -> Scenario {
        let text = format!(
            "name = \"s\"\nwhy = \"test\"\n\
             link = [{{ name = \"a\", rate = \"10mbit\", queue = \"50kB\", delay = \"5ms\" }},\n\
                     {{ name = \"b\", {second} }}]"
        );
        Scenario::parse(&text, None, &mut |_| Err(String::new())).unwrap()
    }

    #[test]
    fn in_time_is_the_slowest_link_and_the_deadline() {
        let unequal = scenario("rate = \"1mbit\", queue = \"50kB\", delay = \"60ms\"");
        assert_eq!(in_time_ms(&unequal, Direction::Download), 85);
        let rates = rates_bps(&unequal, Direction::Upload);
        assert_eq!(rates, [10_000_000, 1_000_000]);
    }

    #[test]
    fn a_link_with_outages_is_not_steady() {
        let steady = scenario("rate = \"1mbit\", queue = \"50kB\"");
        assert!(steady.links.iter().all(is_steady));
        let outage = "outage = [{ at = \"1s\", for = \"1s\" }]";
        let cut = scenario(&format!("rate = \"1mbit\", queue = \"50kB\", {outage}"));
        assert!(!is_steady(&cut.links[1]));
    }
}
