//! `cargo xtask bench fetch`: never worse, at any size, also beside a bulk.
//!
//! Fetches of four sizes over each link by plain TCP, and by those that use them all; then the
//! size of a small web page while a bulk runs.

use std::path::Path;

use anyhow::Result;
use tabane_netem::Scenario;

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::ends::{Job, Task};
use super::options::Options;
use super::record::title;
use super::sheet::{Bound, Row, p95};
use super::summary::Spread;

/// What is fetched, and how often in each repeat: short ones vary more.
const SIZES: [Size; 4] = [
    Size::new("10 KB", 10_000, 10),
    Size::new("100 KB", 100_000, 10),
    Size::new("1 MB", 1_000_000, 5),
    Size::new("20 MB", 20_000_000, 2),
];

/// What is fetched beside a bulk.
const BESIDE: Size = Size::new("100 KB beside a bulk", 100_000, 20);
/// The same, alone.
const ALONE: &str = "100 KB";
/// How long the bulk is alone first, in seconds: its start is over.
const HEAD_START_S: u64 = 3;

/// Over the bond, of the best single link.
const OF_BEST_LINK: f64 = 1.0;
/// One link through us, of plain TCP on it.
const ONE_LINK: f64 = 0.98;
/// Beside a bulk, of alone on the best link.
const BESIDE_BULK: f64 = 1.5;

/// What takes longer on a contender's links is left out, in seconds.
const LONGEST_S: f64 = 30.0;

#[derive(Debug, Clone, Copy)]
struct Size {
    name: &'static str,
    bytes: u64,
    times: u32,
}

impl Size {
    const fn new(name: &'static str, bytes: u64, times: u32) -> Self {
        Self { name, bytes, times }
    }

    /// All of one repeat at full rate, in seconds.
    fn ideal_s(&self, rate_bps: u64) -> f64 {
        self.bytes as f64 * 8.0 / rate_bps as f64
    }
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
    let contenders = contenders(scenario, options);
    for repeat in 1..=options.repeats {
        for contender in &contenders {
            let rate_bps = rate_bps(contender, scenario, direction);
            let carries = |size: &&Size| size.ideal_s(rate_bps) <= LONGEST_S;
            for size in SIZES.iter().filter(carries) {
                let job = Job::alone(task(*size, direction));
                fetch(
                    &bench,
                    contender,
                    (size, &job),
                    (repeat, rate_bps),
                    &mut row,
                );
            }
            if matches!(contender, Contender::Tabane | Contender::Mptcp { .. }) {
                let job = Job::alone(task(BESIDE, direction));
                let job = job.beside_bulk(direction, HEAD_START_S);
                // It has half of the links at least, or this takes long.
                fetch(
                    &bench,
                    contender,
                    (&BESIDE, &job),
                    (repeat, rate_bps / 2),
                    &mut row,
                );
            }
        }
    }
    judge(&contenders, &mut row);
    Ok(row)
}

fn fetch(
    bench: &Bench,
    contender: &Contender,
    (size, job): (&Size, &Job),
    (repeat, rate_bps): (u64, u64),
    row: &mut Row,
) {
    let name = contender.to_string();
    // Starting and loss may make each many times as long as it should be.
    let within_s = f64::from(size.times) * (2.0 + 4.0 * size.ideal_s(rate_bps));
    let done = bench.errand(contender, job, within_s as u64);
    if let Some(spread) = done
        .as_ref()
        .ok()
        .and_then(|d| Spread::of(d.fetched_s.clone()))
    {
        eprintln!(
            "bench: {name} {repeat}, {}: {:.0} ms ({:.0}-{:.0})",
            size.name,
            spread.median * 1e3,
            spread.min * 1e3,
            spread.max * 1e3
        );
    }
    row.add(&name, size.name, repeat, done);
}

fn task(size: Size, direction: Direction) -> Task {
    Task::Fetch {
        bytes: size.bytes,
        times: size.times,
        direction,
    }
}

fn contenders(scenario: &Scenario, options: &Options) -> Vec<Contender> {
    let mut all: Vec<_> = (0..scenario.links.len())
        .map(|link| Contender::Tcp { link })
        .collect();
    all.push(Contender::Mptcp {
        congestion: "cubic",
    });
    all.push(Contender::Tabane);
    all.push(Contender::TabaneOneLink);
    all.retain(|contender| options.wants(contender));
    all
}

/// Of the links that `contender` uses.
fn rate_bps(contender: &Contender, scenario: &Scenario, direction: Direction) -> u64 {
    let of = |link: usize| {
        let link = &scenario.links[link];
        let config = match direction {
            Direction::Download => &link.down,
            Direction::Upload => &link.up,
        };
        config.mean_rate().as_bps()
    };
    match contender {
        Contender::Tcp { link } => of(*link),
        Contender::TabaneOneLink => of(0),
        Contender::Mptcp { .. } | Contender::Tabane => (0..scenario.links.len()).map(of).sum(),
    }
}

fn judge(contenders: &[Contender], row: &mut Row) {
    let links: Vec<_> = contenders
        .iter()
        .filter(|contender| matches!(contender, Contender::Tcp { .. }))
        .map(ToString::to_string)
        .collect();
    let median = |row: &Row, contender: &str, size: &str| {
        Spread::of(row.fetches_s(contender, size)).map(|spread| spread.median)
    };
    for size in SIZES {
        let plain: Vec<_> = links
            .iter()
            .map(|link| median(row, link, size.name))
            .collect();
        let best = plain.iter().flatten().copied().reduce(f64::min);
        for contender in contenders {
            let name = contender.to_string();
            let Some(took) = median(row, &name, size.name) else {
                // Left out by its length, or failed: then its first error is in the table once.
                if contender.is_ours() && best.is_some() {
                    let bound = Some(Bound::AtLeast(OF_BEST_LINK));
                    row.find(
                        &name,
                        format!("{}, of the best link", size.name),
                        (None, ""),
                        bound,
                    );
                }
                continue;
            };
            let ms = Some(took * 1e3);
            row.find(&name, format!("{}, median", size.name), (ms, "ms"), None);
            let (peer, what, bound) = match contender {
                Contender::Tcp { .. } => continue,
                Contender::Mptcp { .. } => (best, "of the best link", None),
                Contender::Tabane => (best, "of the best link", Some(OF_BEST_LINK)),
                Contender::TabaneOneLink => (
                    plain.first().copied().flatten(),
                    "of plain TCP on it",
                    Some(ONE_LINK),
                ),
            };
            if let Some(peer) = peer {
                let what = format!("{}, {what}", size.name);
                let bound = bound.map(Bound::AtLeast);
                row.find(&name, what, (Some(peer / took), ""), bound);
            }
        }
    }
    let alone = links.iter().filter_map(|link| median(row, link, ALONE));
    let Some(alone) = alone.reduce(f64::min) else {
        return;
    };
    for contender in contenders {
        if !matches!(contender, Contender::Tabane | Contender::Mptcp { .. }) {
            continue;
        }
        let name = contender.to_string();
        let slow = p95(&row.fetches_s(&name, BESIDE.name));
        let bound = contender.is_ours().then_some(Bound::AtMost(BESIDE_BULK));
        let what = format!("{}, p95, of alone", BESIDE.name);
        row.find(&name, what, (slow.map(|slow| slow / alone), "×"), bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Done;

    #[test]
    fn the_best_link_is_the_one_that_is_quickest_at_that_size() {
        let mut row = Row::new("s");
        let mut add = |contender: &str, size: &str, fetched_s: &[f64]| {
            let done = Done {
                fetched_s: fetched_s.to_vec(),
                ..Done::default()
            };
            row.add(contender, size, 1, Ok(done));
        };
        add("tcp link1", "100 KB", &[0.2, 0.2, 0.9]);
        add("tcp link2", "100 KB", &[0.4]);
        add("tabane", "100 KB", &[0.25]);
        add("tabane link1", "100 KB", &[0.2]);
        add("tabane", BESIDE.name, &[0.1, 0.5]);
        let contenders = [
            Contender::Tcp { link: 0 },
            Contender::Tcp { link: 1 },
            Contender::Tabane,
            Contender::TabaneOneLink,
        ];
        judge(&contenders, &mut row);
        let table = serde_json::to_value(&row).unwrap();
        let judged: Vec<_> = table["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|finding| !finding["bound"].is_null())
            .map(|finding| {
                let value = finding["value"].as_f64().unwrap();
                (finding["what"].as_str().unwrap().to_owned(), value)
            })
            .collect();
        let expected = [
            ("100 KB, of the best link", 0.8),
            ("100 KB, of plain TCP on it", 1.0),
            ("100 KB beside a bulk, p95, of alone", 2.5),
        ];
        assert_eq!(
            judged,
            expected.map(|(what, value)| (what.to_owned(), value))
        );
    }

    #[test]
    fn nothing_is_fetched_that_takes_too_long() {
        assert!(SIZES[3].ideal_s(1_000_000) > LONGEST_S);
        assert!(SIZES[3].ideal_s(10_000_000) < LONGEST_S);
        assert!(SIZES[0].ideal_s(64_000) < LONGEST_S);
    }
}
