//! What the two processes had at each rest, and whether it grew.

use std::fmt;

use anyhow::Result;

use super::super::process::Running;

/// What a process had at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Resident, in units of 1000 bytes.
    memory_kb: f64,
    descriptors: f64,
    threads: f64,
}

impl Sample {
    /// `flows` descriptors stand for UDP flows, which end by themselves later.
    pub(super) fn of(process: &Running, flows: u64) -> Result<Self> {
        Ok(Self {
            memory_kb: process.memory_kb()?,
            descriptors: process.entries("fd")? - flows as f64,
            threads: process.entries("task")?,
        })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            memory_kb,
            descriptors,
            threads,
        } = self;
        write!(
            f,
            "{:.1} MB, {descriptors} fds, {threads} threads",
            memory_kb / 1e3
        )
    }
}

/// Both, over time.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    machine: Vec<Sample>,
    /// Of its present life.
    relay: Vec<Sample>,
}

/// What is judged, and what it may grow by: a part of itself, and so much.
type Measure = (&'static str, fn(&Sample) -> f64, f64, f64);
const MEASURES: [Measure; 3] = [
    ("memory, kB", |sample| sample.memory_kb, 0.1, 2_000.0),
    ("descriptors", |sample| sample.descriptors, 0.0, 3.0),
    ("threads", |sample| sample.threads, 0.0, 3.0),
];

impl Ledger {
    pub(super) fn enter(&mut self, machine: Sample, relay: Sample) {
        self.machine.push(machine);
        self.relay.push(relay);
    }

    /// What the relay had belongs to a process that is gone.
    pub(super) fn relay_restarted(&mut self) {
        self.relay.clear();
    }

    /// Prints, and says whether all stayed flat.
    pub(super) fn judge(&self) -> bool {
        if self.relay.len() < 3 {
            println!("too short: fewer than three rounds with one relay");
            return false;
        }
        println!("at rest               first third, second, last; most of each");
        let mut is_flat = true;
        for (name, samples) in [("machine", &self.machine), ("relay", &self.relay)] {
            for (what, read, part, slack) in MEASURES {
                let values: Vec<f64> = samples.iter().map(read).collect();
                let [first, second, last] = thirds(&values);
                let is_well = last <= second * (1.0 + part) + slack;
                let verdict = if is_well { "flat" } else { "GROWS" };
                let label = format!("{name}: {what}");
                println!("{label:<22}{first:.0}  {second:.0}  {last:.0}  {verdict}");
                is_flat &= is_well;
            }
        }
        is_flat
    }
}

/// The most of each third, in order of time.
fn thirds(values: &[f64]) -> [f64; 3] {
    let bound = |third: usize| values.len() * third / 3;
    [0, 1, 2].map(|third| {
        let values = values[bound(third)..bound(third + 1)].iter().copied();
        values.fold(f64::NEG_INFINITY, f64::max)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(memory: impl Fn(u32) -> f64, descriptors: impl Fn(u32) -> f64) -> Ledger {
        let mut ledger = Ledger::default();
        for round in 0..90 {
            let sample = Sample {
                memory_kb: memory(round),
                descriptors: descriptors(round),
                threads: 4.0,
            };
            ledger.enter(sample, Sample::default());
        }
        ledger
    }

    #[test]
    fn what_grows_is_told_from_what_warms_up() {
        let warming = |round: u32| 20_000.0 + 500.0 * f64::from(round.min(30));
        let leaking = |round: u32| 20_000.0 + 300.0 * f64::from(round);
        let steady = |_| 40.0;
        assert!(!Ledger::default().judge(), "nothing was seen");
        assert!(ledger(warming, steady).judge());
        assert!(!ledger(leaking, steady).judge());
        assert!(!ledger(warming, |round| 40.0 + f64::from(round / 6)).judge());
    }

    #[test]
    fn thirds_are_in_order() {
        assert_eq!(thirds(&[1.0, 5.0, 2.0, 4.0, 3.0]), [1.0, 5.0, 4.0]);
    }
}
