//! What the ARMS experiment shows: table 1, and figure 6's bars.

use std::collections::BTreeMap;

use tabane_base::{Bytes, Seed};
use tabane_core::{ControllerKind, SchedulerKind, SessionConfig};

use super::{ArmsPath, Cell, Sender, TABLE, TRANSFER, transfer};
use crate::figure::{Curve, Figure, Panel, Style, Table};
use crate::papers::report::{Report, none};

/// The paper's rule, on the loss-driven window that SCTP has.
pub const PAPERS_RULE: Sender = Sender {
    scheduler: SchedulerKind::Cwnd,
    controller: ControllerKind::Cubic,
};
/// As shipped.
#[must_use]
pub fn ours() -> Sender {
    let SessionConfig {
        scheduler,
        controller,
        ..
    } = SessionConfig::default();
    Sender {
        scheduler,
        controller,
    }
}

/// Seconds for `bytes` in every cell, and the share of the sum of its paths alone.
pub fn times(sender: Sender, bytes: Bytes, seed: Seed) -> Vec<(f64, Option<f64>)> {
    let mut alone: BTreeMap<ArmsPath, f64> = BTreeMap::new();
    let took: Vec<f64> = TABLE
        .iter()
        .map(|cell| {
            let took = transfer(&cell.ways(), sender, bytes, seed).as_secs_f64();
            if cell.second.is_none() {
                alone.insert(cell.first, took);
            }
            took
        })
        .collect();
    let share = |cell: &Cell, took: f64| {
        let sum = 1.0 / alone.get(&cell.first)? + 1.0 / alone.get(&cell.second?)?;
        Some(1.0 / took / sum)
    };
    TABLE
        .iter()
        .zip(took)
        .map(|(cell, took)| (took, share(cell, took)))
        .collect()
}

pub(crate) fn table1(seed: Seed) -> Report {
    let shipped = ours();
    let rule = times(PAPERS_RULE, TRANSFER, seed);
    let ours = times(shipped, TRANSFER, seed);
    let mut table = Table::new(&[
        "path 1",
        "path 2",
        "paper, s",
        "rule here, s",
        "tabane, s",
        "paper, of the sum",
        "rule here",
        "tabane",
    ]);
    let percent = |share: Option<f64>| share.map_or_else(none, |share| format!("{share:.2}"));
    let name = |way: ArmsPath| format!("{} Mbit/s {} ms", way.mbps, way.rtt_ms);
    for (index, cell) in TABLE.iter().enumerate() {
        table.row(vec![
            name(cell.first),
            cell.second.map_or_else(none, name),
            format!("{:.2}", cell.paper_seconds),
            format!("{:.2}", rule[index].0),
            format!("{:.2}", ours[index].0),
            percent(cell.paper_share()),
            percent(rule[index].1),
            percent(ours[index].1),
        ]);
    }
    const TITLE: &str = "Time for 20 MByte over every pair of paths, ARMS table 1";
    Report {
        title: TITLE,
        settings: vec![
            "20 MByte over one connection, one or two paths of 1 or 2 Mbit/s, 30 or 60 ms there \
             and back"
                .to_owned(),
            "queues of 50 packets (dummynet's default; the paper does not say)".to_owned(),
            format!(
                "the paper's rule: scheduler {} with {}; ours: scheduler {} with {}",
                PAPERS_RULE.scheduler,
                PAPERS_RULE.controller,
                shipped.scheduler,
                shipped.controller
            ),
        ],
        table,
        figure: Figure {
            title: TITLE.to_owned(),
            subtitle: "20 MByte, queues of 50 packets; mean throughput, as the paper's figure 6"
                .to_owned(),
            panels: vec![bars(&rule, &ours)],
        },
        notes: vec![
            "Unequal paths: their congestion windows are nearly equal, because a queue of 50 \
             packets outweighs their delay-bandwidth products. Filling each window in turn gives \
             both paths the same rate, that of the slower: the paper's 1.80 Mbit/s."
                .to_owned(),
        ],
    }
}

/// Mean throughput by cell: the paper's, its rule's here, and ours.
fn bars(rule: &[(f64, Option<f64>)], ours: &[(f64, Option<f64>)]) -> Panel {
    let megabits = TRANSFER.bits() as f64 / 1e6;
    let curve = |name: &str, seconds: Vec<f64>| Curve {
        name: name.to_owned(),
        style: Style::Bars,
        points: seconds
            .iter()
            .enumerate()
            .map(|(i, s)| (i as f64, megabits / s))
            .collect(),
    };
    let short = |way: ArmsPath| format!("{}M {}", way.mbps, way.rtt_ms);
    let category = |cell: &Cell| {
        cell.second.map_or_else(
            || short(cell.first),
            |second| format!("{} + {}", short(cell.first), short(second)),
        )
    };
    Panel {
        y: "mean throughput, Mbit/s",
        x: "paths: Mbit/s and round trip in ms",
        categories: TABLE.iter().map(category).collect(),
        curves: vec![
            curve(
                "paper",
                TABLE.iter().map(|cell| cell.paper_seconds).collect(),
            ),
            curve(
                "the paper's rule here (cwnd)",
                rule.iter().map(|cell| cell.0).collect(),
            ),
            curve("tabane", ours.iter().map(|cell| cell.0).collect()),
        ],
        ..Panel::default()
    }
}
