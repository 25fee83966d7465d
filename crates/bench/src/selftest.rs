//! `cargo xtask bench selftest`: the Linux kernel's own multipath test, by both.
//!
//! Owns the grid of its networks and its deadline, both as the kernel's simult_flows.sh has them:
//! 16 MiB each way over two links, in the time that the sum of their rates takes and 10 % for
//! headers. The kernel's queues are 50 packets; ours also 20.

use std::path::Path;

use anyhow::{Context, Result};
use tabane_netem::Scenario;

use super::bench::Bench;
use super::contender::{Contender, Direction};
use super::ends::{Done, Job, Task};
use super::options::Options;
use super::sheet::{Bound, Row};

const BYTES: u64 = 16 * 1024 * 1024;
/// Full packets, in bytes.
const PACKET: u64 = 1500;
/// What is allowed beyond the transfer itself.
const SLACK_MS: f64 = 50.0;

const RATES: [[u64; 2]; 2] = [[10, 10], [10, 3]];
const DELAYS_MS: [[u64; 2]; 3] = [[0, 0], [1, 25], [25, 1]];
const QUEUES: [u64; 2] = [20, 50];

const CONTENDERS: [Contender; 2] = [
    Contender::Mptcp {
        congestion: "cubic",
    },
    Contender::Tabane,
];

/// All networks of the grid.
pub(super) fn scenarios() -> Result<Vec<Scenario>> {
    let mut all = Vec::new();
    for rates in RATES {
        for delays in DELAYS_MS {
            for queue in QUEUES {
                let mut text = format!(
                    "name = \"{}+{} Mbit/s, {}/{} ms, {queue} packets\"\nwhy = \"selftest\"\n",
                    rates[0], rates[1], delays[0], delays[1]
                );
                for (link, (rate, delay)) in rates.iter().zip(delays).enumerate() {
                    text += &format!(
                        "[[link]]\nname = \"link{}\"\nrate = \"{rate}mbit\"\n\
                         delay = \"{delay}ms\"\nqueue = \"{}B\"\n",
                        link + 1,
                        queue * PACKET
                    );
                }
                let scenario = Scenario::parse(&text, None, &mut |_| Err(String::new()));
                all.push(scenario.context("a network of the program's own")?);
            }
        }
    }
    Ok(all)
}

/// In seconds: `size·80/(9·Σrate)` ms with the size in bytes and the rate in kbit/s, and the slack.
fn deadline_s(bytes: u64, rate_bps: u64) -> f64 {
    let rate_kbps = rate_bps as f64 / 1e3;
    (bytes as f64 * 80.0 / (9.0 * rate_kbps) + SLACK_MS) / 1e3
}

/// Measures one row.
pub(super) fn measure(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Row> {
    let bench = Bench::set_up(scenario, Direction::Download, binary, options)?;
    let within_s = deadline_s(BYTES, scenario.rate_down().as_bps());
    let mut row = Row::new(&scenario.name);
    for repeat in 1..=options.repeats {
        for contender in CONTENDERS.iter().filter(|c| options.wants(c)) {
            for direction in [Direction::Download, Direction::Upload] {
                let fetch = Task::Fetch {
                    bytes: BYTES,
                    times: 1,
                    direction,
                };
                let done = bench.errand(contender, &Job::alone(fetch), within_s as u64);
                let name = contender.to_string();
                let took_s = done
                    .as_ref()
                    .ok()
                    .and_then(|d| d.fetched_s.first().copied());
                eprintln!(
                    "bench: {} {repeat}/{} {name} {direction}: {:.2} s of {within_s:.2}",
                    scenario.name,
                    options.repeats,
                    took_s.unwrap_or(f64::NAN)
                );
                row.add(&name, &direction.to_string(), repeat, done);
            }
        }
    }
    for contender in CONTENDERS.iter().filter(|c| options.wants(c)) {
        judge(contender, within_s, options.repeats, &mut row);
    }
    Ok(row)
}

/// Every one of `repeats` transfers must be in time.
fn judge(contender: &Contender, within_s: f64, repeats: u64, row: &mut Row) {
    let name = contender.to_string();
    for direction in [Direction::Download, Direction::Upload] {
        let job = direction.to_string();
        let took_s = |done: &Done| done.fetched_s.first().copied();
        let all: Vec<f64> = row.done(&name, &job).filter_map(took_s).collect();
        let slowest = all.iter().copied().reduce(f64::max);
        let in_time = all.iter().filter(|&&took| took <= within_s).count();
        let is_ours = contender.is_ours();
        let bound = is_ours.then_some(Bound::AtMost(within_s));
        row.find(&name, format!("{job}, slowest"), (slowest, "s"), bound);
        let value = Some(in_time as f64);
        let bound = is_ours.then_some(Bound::AtLeast(repeats as f64));
        row.find(&name, format!("{job}s in time"), (value, ""), bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_the_kernels() {
        // simult_flows.sh: 1000 * size * 8 * 10 / (Σrate * 1000 * 1000 * 9) ms.
        assert!((deadline_s(BYTES, 20_000_000) - 7.5065).abs() < 1e-3);
        assert!((deadline_s(BYTES, 13_000_000) - 11.5218).abs() < 1e-3);
    }

    #[test]
    fn the_grid_has_every_pair_and_queue() {
        let all = scenarios().unwrap();
        assert_eq!(all.len(), 12);
        let uneven = &all[8];
        assert_eq!(uneven.name, "10+3 Mbit/s, 1/25 ms, 20 packets");
        assert_eq!(uneven.rate_down().as_bps(), 13_000_000);
        assert_eq!(uneven.links[1].down.queue.get(), 30_000);
        assert_eq!(uneven.links[1].up.delay.as_millis(), 25);
    }

    #[test]
    fn one_late_or_failed_transfer_is_a_miss() {
        let mut row = Row::new("s");
        let took = |s| {
            Ok(Done {
                fetched_s: vec![s],
                ..Done::default()
            })
        };
        row.add("tabane", "download", 1, took(7.0));
        row.add("tabane", "download", 2, took(8.0));
        row.add("tabane", "upload", 1, took(7.0));
        row.add("tabane", "upload", 2, Err(anyhow::anyhow!("broken")));
        judge(&Contender::Tabane, 7.5, 2, &mut row);
        let table = serde_json::to_value(&row).unwrap();
        let values: Vec<_> = (0..4)
            .map(|n| table["findings"][n]["value"].as_f64().unwrap())
            .collect();
        assert_eq!(values, [8.0, 1.0, 7.0, 1.0]);
    }
}
