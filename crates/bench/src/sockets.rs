//! `cargo xtask bench sockets`: what a program learns from its sockets, beside plain ones.
//!
//! Owns the networks and what is asked of them: how long a connection takes, how far an upload is
//! ahead of two links, and what readers who do not read draw over a link and take from others.

use std::path::Path;

use anyhow::{Context, Result};
use tabane_netem::Scenario;

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::ends::{Done, Job, Task};
use super::options::Options;
use super::sheet::{Bound, Row};
use super::summary::Spread;

/// Two links of so many Mbit/s, for uploads.
const RATES: [u64; 3] = [1, 20, 500];
/// One link, for readers, and how many of them.
const READERS_RATE: u64 = 90;
const READERS: [usize; 3] = [1, 20, 60];
const SECONDS: u64 = 4;
const CONNECTIONS: u32 = 20;

/// Bytes ahead: so many times what a plain socket has, and this.
const AHEAD_TIMES: f64 = 2.0;
const AHEAD_BYTES: f64 = 64_000.0;
/// Over the link for a reader who does not read, in bytes.
const UNREAD_BYTES: f64 = 256_000.0;
/// Of what another download gets plainly.
const BESIDE: f64 = 0.9;
/// A connection takes so much longer than plainly, in milliseconds.
const CONNECT_MS: f64 = 1.0;

const CONTENDERS: [Contender; 2] = [Contender::Tcp { link: 0 }, Contender::Tabane];
const CONNECT: &str = "connect";
const AHEAD: &str = "ahead";

/// The networks.
pub(super) fn scenarios() -> Result<Vec<Scenario>> {
    let uploads = RATES.map(|rate| (rate, 2));
    let all = uploads.into_iter().chain([(READERS_RATE, 1)]);
    let parsed = all.map(|(rate, links)| {
        let queue = (rate * 1_000_000 / 8 / 20).max(15_000);
        let mut text = format!("name = \"{links} x {rate} Mbit/s\"\nwhy = \"sockets\"\n");
        for link in 1..=links {
            text += &format!(
                "[[link]]\nname = \"link{link}\"\nrate = \"{rate}mbit\"\n\
                 delay = \"10ms\"\nqueue = \"{queue}B\"\n"
            );
        }
        let scenario = Scenario::parse(&text, None, &mut |_| Err(String::new()));
        scenario.context("a network of the program's own")
    });
    parsed.collect()
}

/// Measures one row.
pub(super) fn measure(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Row> {
    let bench = Bench::set_up(scenario, Direction::Download, binary, options)?;
    let mut row = Row::new(&scenario.name);
    let is_of_readers = scenario.links.len() == 1;
    let mut jobs = vec![(CONNECT.to_owned(), Task::Connect { times: CONNECTIONS })];
    if is_of_readers {
        jobs.extend(READERS.map(|connections| {
            let seconds = SECONDS;
            (
                unread(connections),
                Task::Unread {
                    connections,
                    seconds,
                },
            )
        }));
    } else {
        jobs.push((AHEAD.to_owned(), Task::Ahead { seconds: SECONDS }));
    }
    for repeat in 1..=options.repeats {
        for contender in CONTENDERS.iter().filter(|c| options.wants(c)) {
            for (name, task) in &jobs {
                let done = bench.errand(contender, &Job::alone(task.clone()), 60);
                eprintln!("bench: {} {repeat}: {contender}, {name}", scenario.name);
                row.add(&contender.to_string(), name, repeat, done);
            }
        }
    }
    judge_connections(&mut row);
    match is_of_readers {
        true => READERS.iter().for_each(|n| judge_readers(*n, &mut row)),
        false => judge_ahead(&mut row),
    }
    Ok(row)
}

fn unread(connections: usize) -> String {
    format!("{connections} unread")
}

/// The median of both, plainly first.
fn both(row: &Row, job: &str, read: impl Fn(&Done) -> Option<f64>) -> [Option<f64>; 2] {
    CONTENDERS.map(|contender| row.median(&contender.to_string(), job, &read))
}

/// Puts both into the table, ours judged by what the plain one is.
fn find(
    row: &mut Row,
    (what, unit): (&str, &'static str),
    values: [Option<f64>; 2],
    bound: impl Fn(f64) -> Bound,
) {
    let [plain, ours] = CONTENDERS.map(|contender| contender.to_string());
    row.find(&plain, what, (values[0], unit), None);
    row.find(&ours, what, (values[1], unit), values[0].map(bound));
}

fn judge_connections(row: &mut Row) {
    let ms = |done: &Done| Some(Spread::of(done.connected_s.clone())?.median * 1e3);
    let values = both(row, CONNECT, ms);
    find(row, ("connect()", "ms"), values, |plain| {
        Bound::AtMost(plain + CONNECT_MS)
    });
}

fn judge_ahead(row: &mut Row) {
    let values = both(row, AHEAD, |done| done.ahead_bytes.map(|n| n as f64));
    find(row, ("written and not there", "bytes"), values, |plain| {
        Bound::AtMost(AHEAD_TIMES * plain + AHEAD_BYTES)
    });
}

fn judge_readers(connections: usize, row: &mut Row) {
    let job = unread(connections);
    let each = |done: &Done| done.unread.map(|unread| unread.bytes_each as f64);
    let values = both(row, &job, each);
    let what = format!("drawn by each of {job}");
    find(row, (&what, "bytes"), values, |_| {
        Bound::AtMost(UNREAD_BYTES)
    });
    let beside = |done: &Done| done.unread.map(|unread| unread.beside_bps / 1e6);
    let values = both(row, &job, beside);
    let what = format!("another beside {job}");
    find(row, (&what, "Mbit/s"), values, |plain| {
        Bound::AtLeast(BESIDE * plain)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_networks_are_what_their_names_say() {
        let all = scenarios().unwrap();
        let names: Vec<_> = all.iter().map(|it| it.name.as_str()).collect();
        let rates: Vec<_> = all
            .iter()
            .map(|it| it.rate_down().as_bps() / 1_000_000)
            .collect();
        assert_eq!(names[1], "2 x 20 Mbit/s");
        assert_eq!(rates, [2, 40, 1_000, 90]);
    }
}
