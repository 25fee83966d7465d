//! What a demonstration has found: for people as a table, for machines as JSON.

use serde::Serialize;
use tabane_base::Rate;
use tabane_lab::Health;
use tabane_netem::Scenario;
use tabane_sim::Download;

/// Packets that left the emulator late are told of when they are more than one in so many: below
/// it, the figures do not move.
const LATE_SHARE: u64 = 100;

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) scenario: String,
    /// "namespaces" or "loopback".
    pub(crate) world: &'static str,
    /// Why it is not the better world.
    pub(crate) reservation: Option<String>,
    /// Each download's.
    pub(crate) seconds: u32,
    pub(crate) links: Vec<LinkSummary>,
    /// Of the links alone.
    pub(crate) sum_bps: u64,
    /// All links at once.
    pub(crate) bond_bps: u64,
    /// Of the sum.
    pub(crate) bond_share: f64,
    /// Bytes of the download over all links, each of them checked.
    pub(crate) bond_bytes: u64,
    pub(crate) emulator: EmulatorSummary,
    pub(crate) svg: String,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LinkSummary {
    pub(crate) name: String,
    /// What the scenario gives it towards the client, counted at IP level.
    pub(crate) rate_bps: u64,
    pub(crate) delay_us: u64,
    /// Goodput over it alone.
    pub(crate) alone_bps: u64,
    /// Its part of the goodput over all.
    pub(crate) in_bond_bps: u64,
}

/// Whether the machine kept up with the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EmulatorSummary {
    /// Packets through it in the last download.
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
    pub(crate) late: u64,
}

impl Summary {
    pub(crate) fn link_summaries(
        scenario: &Scenario,
        alone: &[Download],
        together: &Download,
    ) -> Vec<LinkSummary> {
        let links = scenario.links.iter().zip(alone).zip(together.parts());
        links
            .map(|((link, alone), part)| LinkSummary {
                name: link.name.clone(),
                rate_bps: link.down.mean_rate().as_bps(),
                delay_us: u64::try_from(link.down.delay.as_micros()).unwrap_or(u64::MAX),
                alone_bps: alone.rate().as_bps(),
                in_bond_bps: part.as_bps(),
            })
            .collect()
    }

    /// Each link, all links, and how the two compare.
    pub(crate) fn table(&self) -> String {
        let names = self.links.iter().map(|link| link.name.chars().count());
        let width = names.chain(["together".len()]).max().unwrap_or(0);
        let mut lines = vec![format!(
            "{:<width$}  alone, Mbit/s  at once, Mbit/s",
            "link"
        )];
        let mbps = |bps: u64| Rate::from_bps(bps).as_mbps_f64();
        let row = |name: &str, alone: u64, at_once: u64| {
            let [alone, at_once] = [alone, at_once].map(mbps);
            format!("{name:<width$}  {alone:>13.1}  {at_once:>15.1}")
        };
        let links = self.links.iter();
        lines.extend(links.map(|link| row(&link.name, link.alone_bps, link.in_bond_bps)));
        let best = self.links.iter().map(|link| link.alone_bps).max();
        lines.push(format!(
            "{}  {:.1} % of the sum, {:.2} × the best link",
            row("together", self.sum_bps, self.bond_bps),
            100.0 * self.bond_share,
            self.bond_bps as f64 / best.unwrap_or(0).max(1) as f64,
        ));
        lines.join("\n")
    }
}

impl EmulatorSummary {
    pub(crate) fn new(health: Health, packets: u64) -> Self {
        Self {
            packets,
            dropped: health.receive_drops + health.send_drops,
            late: health.late,
        }
    }

    /// A line, if the machine was too busy for the figures to count.
    pub(crate) fn warning(self) -> Option<String> {
        let keeps_up = self.dropped == 0 && self.late * LATE_SHARE <= self.packets;
        (!keeps_up).then(|| {
            format!(
                "this machine was too busy to play the links exactly ({} of {} packets dropped, \
                 {} times late): the figures may be too low",
                self.dropped, self.packets, self.late
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_compares_the_bond_with_the_sum_and_the_best_link() {
        let link = |name: &str, alone_bps, in_bond_bps| LinkSummary {
            name: name.to_owned(),
            rate_bps: 30_000_000,
            delay_us: 10_000,
            alone_bps,
            in_bond_bps,
        };
        let emulator = EmulatorSummary {
            packets: 10_000,
            dropped: 0,
            late: 100,
        };
        let summary = Summary {
            scenario: "home".to_owned(),
            world: "namespaces",
            reservation: None,
            seconds: 8,
            links: vec![
                link("wifi", 28_600_000, 28_200_000),
                link("lte", 9_500_000, 9_300_000),
            ],
            sum_bps: 38_100_000,
            bond_bps: 37_500_000,
            bond_share: 37.5 / 38.1,
            bond_bytes: 37_500_000,
            emulator,
            svg: "tabane-demo.svg".to_owned(),
        };
        assert_eq!(
            summary.table(),
            "link      alone, Mbit/s  at once, Mbit/s\n\
             wifi               28.6             28.2\n\
             lte                 9.5              9.3\n\
             together           38.1             37.5  98.4 % of the sum, 1.31 × the best link"
        );
        assert_eq!(emulator.warning(), None);
        let late = EmulatorSummary {
            late: 101,
            ..emulator
        };
        assert!(late.warning().is_some());
    }
}
