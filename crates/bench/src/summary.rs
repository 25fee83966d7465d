//! From repeated measurements to the figures: medians, spreads, ratios.

use super::record::{Measurement, ScenarioRecord};

/// A figure over the repeats that succeeded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// What became of one contender.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    /// It was not asked for.
    Absent,
    /// Of any number of repeats, all failed; why the first did.
    Failed(String),
    /// In bit/s; of all repeats, some may have failed.
    Measured(Spread),
}

/// One row.
#[derive(Debug, Clone)]
pub(super) struct Summary {
    /// Plain TCP over each single link.
    pub(super) links: Vec<Cell>,
    pub(super) mptcp_cubic: Cell,
    pub(super) mptcp_bbr: Cell,
    pub(super) tabane: Cell,
    /// The product over the first link alone.
    pub(super) one_link: Cell,
    /// What must be known beside the figures.
    pub(super) notes: Vec<String>,
}

impl Cell {
    pub(super) fn median(&self) -> Option<f64> {
        match self {
            Self::Measured(spread) => Some(spread.median),
            Self::Absent | Self::Failed(_) => None,
        }
    }
}

impl Spread {
    /// None of nothing.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }
}

/// The smallest value that is not exceeded by `share` of all; none of nothing.
pub(super) fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

impl Summary {
    pub(super) fn new(record: &ScenarioRecord) -> Self {
        let links = (1..=record.links.len()).map(|n| cell(record, &format!("tcp link{n}")));
        Self {
            links: links.collect(),
            mptcp_cubic: cell(record, "mptcp cubic"),
            mptcp_bbr: cell(record, "mptcp bbr"),
            tabane: cell(record, "tabane"),
            one_link: cell(record, "tabane link1"),
            notes: notes(record),
        }
    }

    /// What the links give one by one, if all of them could be measured.
    pub(super) fn links_sum(&self) -> Option<f64> {
        self.links.iter().map(Cell::median).sum()
    }

    /// The better of the two controllers.
    pub(super) fn mptcp_best(&self) -> Option<f64> {
        let both = [self.mptcp_cubic.median(), self.mptcp_bbr.median()];
        both.into_iter().flatten().reduce(f64::max)
    }

    /// Of the links' sum.
    pub(super) fn eta(&self) -> Option<f64> {
        Some(self.tabane.median()? / self.links_sum()?)
    }

    /// Of the better multipath TCP.
    pub(super) fn against_mptcp(&self) -> Option<f64> {
        Some(self.tabane.median()? / self.mptcp_best()?)
    }

    /// Of the best single link's plain TCP, if all of them could be measured.
    pub(super) fn against_best_link(&self) -> Option<f64> {
        let links: Option<Vec<f64>> = self.links.iter().map(Cell::median).collect();
        Some(self.tabane.median()? / links?.into_iter().reduce(f64::max)?)
    }

    /// One link through us, of plain TCP on it.
    pub(super) fn one_link_ratio(&self) -> Option<f64> {
        Some(self.one_link.median()? / self.links.first()?.median()?)
    }
}

pub(super) fn of<'a>(
    record: &'a ScenarioRecord,
    contender: &'a str,
) -> impl Iterator<Item = &'a Measurement> {
    record
        .measurements
        .iter()
        .filter(move |measured| measured.contender == contender)
}

fn cell(record: &ScenarioRecord, contender: &str) -> Cell {
    let good = |m: &Measurement| m.goodput_bps.filter(|_| m.error.is_none());
    match Spread::of(of(record, contender).filter_map(good).collect()) {
        Some(spread) => Cell::Measured(spread),
        None => match of(record, contender).find_map(|measured| measured.error.clone()) {
            Some(error) => Cell::Failed(error),
            None => Cell::Absent,
        },
    }
}

/// Failures beside successes, multipath that was none, and an emulator that did not keep up.
fn notes(record: &ScenarioRecord) -> Vec<String> {
    let mut notes = Vec::new();
    for measured in &record.measurements {
        let what = format!("{} {}", measured.contender, measured.repeat);
        if let Some(error) = &measured.error {
            notes.push(format!("{what} failed: {error}"));
            continue;
        }
        let Some(carried) = &measured.carried else {
            continue;
        };
        let (used, all) = (carried.links_used(), record.links.len());
        let is_multipath =
            measured.contender.starts_with("mptcp") || measured.contender == "tabane";
        if is_multipath && used < all {
            notes.push(format!("{what} used {used} of {all} links"));
        }
        if carried.emulator.has_dropped() {
            notes.push(format!(
                "{what}: the emulator dropped packets, the machine is too slow"
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Contender;
    use crate::contender::Direction;
    use crate::iperf::Goodput;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        let median = |values: &[f64]| Spread::of(values.to_vec()).map(|spread| spread.median);
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let spread = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.min, spread.max), (1.0, 3.0));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.95), Some(95.0));
        assert_eq!(percentile(&[3.0, 1.0], 0.95), Some(3.0));
        assert_eq!(percentile(&[3.0, 1.0], 0.5), Some(1.0));
        assert_eq!(percentile(&[], 0.95), None);
    }

    fn goodput(mbps: f64) -> Goodput {
        Goodput {
            bps: mbps * 1e6,
            bytes: 1,
            intervals_bps: Vec::new(),
        }
    }

    #[test]
    fn ratios_come_from_medians_and_failures_are_left_out() {
        let scenario = tabane_netem::Scenario::parse(
            "name = \"s\"\nwhy = \"test\"\nlink = [{ name = \"a\" }, { name = \"b\" }]",
            None,
            &mut |_| Err(String::new()),
        );
        let mut record = ScenarioRecord::new(&scenario.unwrap(), Direction::Download);
        let mut add = |contender: Contender, repeat, mbps| {
            record
                .measurements
                .push(Measurement::bulk(&contender, repeat, goodput(mbps)));
        };
        for repeat in 1..=3 {
            add(Contender::Tcp { link: 0 }, repeat, 40.0);
            add(Contender::Tcp { link: 1 }, repeat, 10.0);
            add(
                Contender::Mptcp {
                    congestion: "cubic",
                },
                repeat,
                30.0,
            );
            add(Contender::Mptcp { congestion: "bbr" }, repeat, 50.0);
            add(Contender::Tabane, repeat, 48.0 + repeat as f64 / 2.0);
        }
        let late = anyhow::anyhow!("late");
        record
            .measurements
            .push(Measurement::failed(&Contender::Tabane, 4, &late));
        record
            .measurements
            .push(Measurement::failed(&Contender::TabaneOneLink, 1, &late));
        let summary = Summary::new(&record);
        assert_eq!(summary.links_sum(), Some(50e6));
        assert_eq!(summary.eta(), Some(0.98));
        assert_eq!(summary.against_mptcp(), Some(0.98));
        assert_eq!(summary.against_best_link(), Some(1.225));
        assert_eq!(summary.one_link, Cell::Failed("late".to_owned()));
        assert_eq!(summary.one_link_ratio(), None);
        assert_eq!(summary.notes.len(), 2, "{:?}", summary.notes);
    }
}
