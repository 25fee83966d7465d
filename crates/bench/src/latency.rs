//! `cargo xtask bench latency`: what a bulk does to whoever else uses the links.
//!
//! Small datagrams cross every link by themselves, and the bond beside the bulk's own connection;
//! once while nothing else is sent, then beside the bulk of each contender.

use std::path::Path;

use anyhow::Result;
use tabane_netem::{LinkSpec, LossModel, Scenario};

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::ends::{Done, Job, Task, probe};
use super::options::{Options, is_steady};
use super::record::title;
use super::sheet::{Bound, Row, p95};

/// What a bulk may add to anybody's round trip, in milliseconds.
const ADDED_MS: f64 = 25.0;

/// How often it is looked, at most.
const EVERY_MS: u64 = 20;
/// The share of a link that looking may take.
const PROBES: f64 = 0.01;

/// Of a link on which four full packets take longer than [`ADDED_MS`], no queue is asked for that
/// is shorter: a rate in bit/s.
const SLOWEST_JUDGED_BPS: u64 = 4 * 1500 * 8 * 40;

/// Nobody: the links as they are.
const IDLE: &str = "idle";
/// The probe that goes with the bulk, by what carries it.
const THROUGH: &str = "through";

const CONTENDERS: [Contender; 2] = [
    Contender::Mptcp {
        congestion: "cubic",
    },
    Contender::Tabane,
];

/// Measures one row.
pub(super) fn measure(
    scenario: &Scenario,
    direction: Direction,
    binary: &Path,
    options: &Options,
) -> Result<Row> {
    let bench = Bench::set_up(scenario, direction, binary, options)?;
    let mut row = Row::new(&title(&scenario.name, direction));
    for repeat in 1..=options.repeats {
        let idle = (IDLE, &Contender::Tabane, None);
        probe_all(&bench, scenario, idle, repeat, options.seconds, &mut row)?;
        for contender in CONTENDERS.iter().filter(|c| options.wants(c)) {
            let name = contender.to_string();
            let beside = (name.as_str(), contender, Some(direction));
            probe_all(&bench, scenario, beside, repeat, options.seconds, &mut row)?;
            eprintln!(
                "bench: {} {repeat}/{} {name}",
                scenario.name, options.repeats
            );
        }
    }
    for contender in CONTENDERS.iter().filter(|c| options.wants(c)) {
        judge(scenario, contender, &mut row);
    }
    Ok(row)
}

/// Every link and the bond at once, beside the bulk if there is one.
fn probe_all(
    bench: &Bench,
    scenario: &Scenario,
    (name, contender, bulk): (&str, &Contender, Option<Direction>),
    repeat: u64,
    seconds: u64,
    row: &mut Row,
) -> Result<()> {
    bench.prepare(contender)?;
    let _far = bench.far_end(contender)?;
    let slowest_bps = scenario.links.iter().map(rate_bps).min().unwrap_or(0);
    let probe = |every_ms| Job::alone(Task::Probe { seconds, every_ms });
    let mut through = probe(every_ms(slowest_bps));
    through.bulk = bulk;
    let mut errands = vec![(THROUGH.to_owned(), bench.start(contender, &through, 0))];
    for (link, spec) in scenario.links.iter().enumerate() {
        let alone = Contender::Tcp { link };
        let errand = bench.start(&alone, &probe(every_ms(rate_bps(spec))), 0);
        errands.push((job_of(link), errand));
    }
    for (job, errand) in errands {
        let done = errand.and_then(super::ends::Errand::finish);
        row.add(name, &job, repeat, done);
    }
    Ok(())
}

fn job_of(link: usize) -> String {
    format!("link{}", link + 1)
}

/// The slower direction's.
fn rate_bps(link: &LinkSpec) -> u64 {
    let (up, down) = (link.up.mean_rate(), link.down.mean_rate());
    up.as_bps().min(down.as_bps())
}

/// So often that it takes no more than its share of a link.
fn every_ms(rate_bps: u64) -> u64 {
    let bits = probe::PACKET as f64 * 8.0;
    let ms = bits * 1e3 / (rate_bps as f64 * PROBES).max(1.0);
    EVERY_MS.max(ms.ceil() as u64)
}

/// Whether all that is lost on the link is lost in its queue.
fn loses_nothing(link: &LinkSpec) -> bool {
    let is_lossless = |way: &tabane_netem::LinkConfig| way.loss == LossModel::None;
    is_steady(link) && is_lossless(&link.up) && is_lossless(&link.down)
}

fn judge(scenario: &Scenario, contender: &Contender, row: &mut Row) {
    let name = contender.to_string();
    let is_ours = contender.is_ours();
    let slow = |done: &Done| p95(&done.probed.as_ref()?.round_trips_ms);
    let added =
        |row: &Row, job: &str| Some(row.median(&name, job, slow)? - row.median(IDLE, job, slow)?);
    let bound = is_ours.then_some(Bound::AtMost(ADDED_MS));
    for (link, spec) in scenario.links.iter().enumerate() {
        let value = added(row, &job_of(link));
        let bound = bound.filter(|_| rate_bps(spec) >= SLOWEST_JUDGED_BPS);
        let what = format!("added on link{}, p95", link + 1);
        row.find(&name, what, (value, "ms"), bound);
    }
    if is_ours {
        let value = added(row, THROUGH);
        row.find(&name, "added through it, p95", (value, "ms"), bound);
        let all: Vec<_> = row.done(&name, THROUGH).collect();
        let lost: u64 = all
            .iter()
            .filter_map(|d| Some(d.probed.as_ref()?.lost))
            .sum();
        let value = (!all.is_empty()).then_some(lost as f64);
        let none = scenario.links.iter().all(loses_nothing);
        let none = none.then_some(Bound::AtMost(0.0));
        row.find(&name, "lost through it", (value, ""), none);
    }
    let mbps = row.median(&name, THROUGH, |done| Some(done.bulk_bps? / 1e6));
    row.find(&name, "the bulk beside", (mbps, "Mbit/s"), None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::probe::Probed;

    fn probed(ms: f64, lost: u64) -> Result<Done> {
        let probed = Probed {
            sent: 100,
            lost,
            round_trips_ms: vec![ms; 100],
        };
        Ok(Done {
            probed: Some(probed),
            bulk_bps: Some(5e6),
            ..Done::default()
        })
    }

    #[test]
    fn what_is_added_is_judged_and_a_slow_link_is_only_told() {
        let text = "name = \"s\"\nwhy = \"test\"\n\
            link = [{ name = \"a\", rate = \"10mbit\", queue = \"50kB\" },\n\
                    { name = \"b\", rate = \"1mbit\", queue = \"50kB\" }]";
        let scenario = Scenario::parse(text, None, &mut |_| Err(String::new())).unwrap();
        let mut row = Row::new("s");
        for (job, idle, busy) in [("link1", 20.0, 55.0), ("link2", 20.0, 90.0)] {
            row.add(IDLE, job, 1, probed(idle, 0));
            row.add("tabane", job, 1, probed(busy, 0));
        }
        row.add(IDLE, THROUGH, 1, probed(21.0, 0));
        row.add("tabane", THROUGH, 1, probed(40.0, 2));
        judge(&scenario, &Contender::Tabane, &mut row);
        let table = serde_json::to_value(&row).unwrap();
        let values: Vec<_> = (0..5)
            .map(|n| table["findings"][n]["value"].as_f64().unwrap())
            .collect();
        assert_eq!(values, [35.0, 70.0, 19.0, 2.0, 5.0]);
        let is_bound = |n: usize| !table["findings"][n]["bound"].is_null();
        assert_eq!(
            [0, 1, 2, 3, 4].map(is_bound),
            [true, false, true, true, false]
        );
    }

    #[test]
    fn slow_links_are_looked_at_less_often() {
        assert_eq!(every_ms(50_000_000), 20);
        assert_eq!(every_ms(64_000), 1050);
    }
}
