//! `cargo xtask bench startup`: how long until the links' sum is used, from the first packet on and
//! again after an outage.
//!
//! Owns what counts as there: the first moment from which on half a second brings 90 % of what the
//! links' rates come to. Peers' times stand beside ours; ours after an outage are judged.

use std::path::Path;

use anyhow::{Context, Result};
use tabane_netem::{Outage, Scenario};
use tabane_sim::{Curve, Figure, Panel, Style, svg};

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::ends::{COURSE_STEP, Course, Done, Job, Task, now_ns};
use super::options::Options;
use super::sheet::{Bound, Row, Sheet};

/// Of the sum.
const PART: f64 = 0.9;
/// For so long it must be carried, in steps.
const WINDOW: usize = 25;
/// What TCP carries of a packet of 1,500 bytes, without its headers.
const PAYLOAD: f64 = 1448.0 / 1500.0;
/// After an outage, in milliseconds.
const BACK_MS: f64 = 1_000.0;
/// A point of the picture is a mean over so many steps.
const POINT: usize = 10;

const CONTENDERS: [Contender; 3] = [
    Contender::Mptcp {
        congestion: "cubic",
    },
    Contender::Mptcp { congestion: "bbr" },
    Contender::Tabane,
];

/// Measures one row.
pub(super) fn measure(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Row> {
    let bench = Bench::set_up(scenario, Direction::Download, binary, options)?;
    let mut row = Row::new(&scenario.name);
    let seconds = options.seconds;
    let job = Job::alone(Task::Course { seconds });
    let wanted: Vec<_> = CONTENDERS.iter().filter(|c| options.wants(c)).collect();
    // By contender, and then by moment.
    let mut times = vec![vec![Vec::new(); moments(scenario).len()]; wanted.len()];
    for repeat in 1..=options.repeats {
        for (contender, times) in wanted.iter().zip(&mut times) {
            let name = contender.to_string();
            bench.prepare(contender)?;
            let began_at_ns = now_ns();
            let _far = bench.far_end(contender)?;
            let done = bench
                .start(contender, &job, 0)
                .and_then(super::ends::Errand::finish);
            eprintln!("bench: {} {repeat}: {name}", scenario.name);
            if let Some(course) = done.as_ref().ok().and_then(|done| done.course.as_ref()) {
                let late_ms = course.began_at_ns.saturating_sub(began_at_ns) as f64 / 1e6;
                for (moment, times) in moments(scenario).iter().zip(times.iter_mut()) {
                    times.push(moment.time_ms(course, late_ms, sum_bps(scenario)));
                }
            }
            row.add(&name, JOB, repeat, done);
        }
    }
    for (contender, times) in wanted.iter().zip(times) {
        for (moment, times) in moments(scenario).iter().zip(times) {
            let is_judged = contender.is_ours() && moment.is_outage;
            let bound = is_judged.then_some(Bound::AtMost(BACK_MS));
            let value = (median(times), "ms");
            row.find(&contender.to_string(), moment.name.clone(), value, bound);
        }
    }
    Ok(row)
}

const JOB: &str = "download";

/// What the links' rates come to, as a program counts.
fn sum_bps(scenario: &Scenario) -> f64 {
    scenario.rate_down().as_bps() as f64 * PAYLOAD
}

/// From when on the time is taken.
struct Moment {
    name: String,
    /// In milliseconds of the scenario's schedule; the first packet leaves when it does.
    at_ms: Option<f64>,
    is_outage: bool,
}

fn moments(scenario: &Scenario) -> Vec<Moment> {
    let start = Moment {
        name: "90 % of the sum".to_owned(),
        at_ms: None,
        is_outage: false,
    };
    let outages = scenario.links.iter().flat_map(|link| {
        let end_ms = |outage: &Outage| (outage.at + outage.lasts).as_secs_f64() * 1e3;
        link.down.outages.iter().map(move |outage| Moment {
            name: format!("{} back at 90 %", link.name),
            at_ms: Some(end_ms(outage)),
            is_outage: true,
        })
    });
    [start].into_iter().chain(outages).collect()
}

impl Moment {
    /// Of a download that began `late_ms` after the schedule; endless if it is never there.
    fn time_ms(&self, course: &Course, late_ms: f64, sum_bps: f64) -> f64 {
        let step_ms = COURSE_STEP.as_secs_f64() * 1e3;
        let from_ms = self.at_ms.map_or(0.0, |at_ms| at_ms - late_ms);
        let first = (from_ms / step_ms).max(0.0) as usize;
        let wanted = sum_bps / 8.0 * PART * COURSE_STEP.as_secs_f64() * WINDOW as f64;
        let rest = course.bytes.get(first..).unwrap_or_default();
        let is_there = |window: &[u64]| window.iter().sum::<u64>() as f64 >= wanted;
        let steps = rest.windows(WINDOW).position(is_there);
        steps.map_or(f64::INFINITY, |steps| steps as f64 * step_ms)
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times
        .get(times.len() / 2)
        .copied()
        .filter(|it| it.is_finite())
}

/// Draws the first run of each contender on each network.
pub(super) fn draw(sheet: &Sheet, path: &Path) -> Result<()> {
    let figure = Figure {
        title: "Start-up and outages".to_owned(),
        subtitle: "what has arrived at the program, means over 200 ms".to_owned(),
        panels: sheet.rows.iter().map(panel).collect(),
    };
    std::fs::write(path, svg(&figure)?).with_context(|| format!("cannot write {}", path.display()))
}

fn panel(row: &Row) -> Panel {
    let curve = |contender: &Contender| {
        let name = contender.to_string();
        let course = |done: &Done| done.course.clone();
        let course = row.done(&name, JOB).find_map(course);
        let bytes = course.map(|course| course.bytes).unwrap_or_default();
        let point = |(index, chunk): (usize, &[u64])| {
            let span = COURSE_STEP.as_secs_f64() * POINT as f64;
            let bits = chunk.iter().sum::<u64>() as f64 * 8.0;
            ((index as f64 + 0.5) * span, bits / span / 1e6)
        };
        Curve {
            name,
            style: Style::Line,
            points: bytes.chunks_exact(POINT).enumerate().map(point).collect(),
        }
    };
    Panel {
        title: row.name().to_owned(),
        x: "s",
        y: "Mbit/s",
        curves: CONTENDERS.iter().map(curve).collect(),
        ..Panel::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 Mbit/s from `from` on: 20 kB a step.
    fn course(from: usize, gap: std::ops::Range<usize>) -> Course {
        let rate = |step: usize| match step >= from && !gap.contains(&step) {
            true => 20_000,
            false => 5_000,
        };
        Course {
            began_at_ns: 0,
            bytes: (0..400).map(rate).collect(),
        }
    }

    fn moment(at_ms: Option<f64>) -> Moment {
        Moment {
            name: String::new(),
            at_ms,
            is_outage: at_ms.is_some(),
        }
    }

    #[test]
    fn the_time_is_when_the_sum_begins_to_be_carried() {
        let course = course(50, 0..0);
        let time = moment(None).time_ms(&course, 0.0, 8e6);
        // A tenth of the window may lack three quarters.
        assert!((920.0..=1_000.0).contains(&time), "{time}");
        assert_eq!(moment(None).time_ms(&course, 0.0, 10e6), f64::INFINITY);
    }

    #[test]
    fn after_an_outage_it_is_counted_from_its_end() {
        let course = course(0, 100..250);
        let back = |at_ms| moment(Some(at_ms)).time_ms(&course, 500.0, 8e6);
        // The outage ended at 3 s of the schedule, half a second before this program was there.
        let time = back(4_500.0);
        assert!((920.0..=1_000.0).contains(&time), "{time}");
        assert_eq!(back(5_600.0), 0.0);
    }
}
