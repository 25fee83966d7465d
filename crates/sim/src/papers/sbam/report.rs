//! What the SBAM experiments show: tables 2 and 4, figures 7 to 9.

use tabane_base::{Rate, Seed};
use tabane_core::{DatagramOrder, SchedulerKind};

use super::{AS_SHIPPED, Environment, MEDIA, OpenLoop, Sequence, open_loop, ours};
use crate::figure::{Curve, Figure, Panel, Style, Table};
use crate::papers::report::{Report, mbps, none};

/// Spans drawn per panel: two dots each.
const SPANS_DRAWN: usize = 65;
/// Points of a curve of gaps.
const GAPS_DRAWN: usize = 100;

/// A row of tables 2 and 4.
struct Row {
    cards: &'static str,
    environment: Environment,
    sender: &'static str,
    paper: Option<f64>,
    measured: Option<Rate>,
}

pub(crate) fn table2(seed: Seed) -> Report {
    let engine =
        |environment, scheduler| Some(ours(environment, scheduler, AS_SHIPPED, seed).goodput());
    let plain = |environment| Some(open_loop(environment, OpenLoop::InTurn, MEDIA).goodput());
    let row = |cards, environment, sender, paper, measured| Row {
        cards,
        environment,
        sender,
        paper,
        measured,
    };
    let (both, one, slow) = (Environment::Equal, Environment::Only11, Environment::Only5);
    let rows = [
        row("11", one, "plain UDP (APP2)", Some(9.2), plain(one)),
        row(
            "11",
            one,
            "tabane",
            None,
            engine(one, SchedulerKind::Tabane),
        ),
        row("5.5", slow, "plain UDP (APP2)", Some(6.1), plain(slow)),
        row(
            "5.5",
            slow,
            "tabane",
            None,
            engine(slow, SchedulerKind::Tabane),
        ),
        row("11 + 11", both, "in turn (APP1)", Some(15.4), plain(both)),
        row(
            "11 + 11",
            both,
            "in turn, in the kernel (SBAM)",
            Some(15.0),
            None,
        ),
        row(
            "11 + 11",
            both,
            "round-robin",
            None,
            engine(both, SchedulerKind::RoundRobin),
        ),
        row(
            "11 + 11",
            both,
            "weighted",
            None,
            engine(both, SchedulerKind::Weighted),
        ),
        row(
            "11 + 11",
            both,
            "tabane",
            None,
            engine(both, SchedulerKind::Tabane),
        ),
    ];
    let notes = vec![
        "SBAM's row is APP1's packets sent from the kernel; the 2.6 % between them are processor \
         time, which a simulation does not have."
            .to_owned(),
    ];
    throughput("Throughput of two equal cards, SBAM table 2", &rows, notes)
}

pub(crate) fn table4(seed: Seed) -> Report {
    let environment = Environment::Unequal;
    let row = |sender, paper, measured: Rate| Row {
        cards: "11 + 5.5",
        environment,
        sender,
        paper,
        measured: Some(measured),
    };
    let plain = |sender| open_loop(environment, sender, MEDIA).goodput();
    let engine = |scheduler| ours(environment, scheduler, AS_SHIPPED, seed).goodput();
    let rows = [
        row("in turn (APP1)", Some(9.6), plain(OpenLoop::InTurn)),
        row(
            "equation 2 (APP3)",
            Some(11.7),
            plain(OpenLoop::ByBandwidth),
        ),
        row("round-robin", None, engine(SchedulerKind::RoundRobin)),
        row("weighted", None, engine(SchedulerKind::Weighted)),
        row("tabane", None, engine(SchedulerKind::Tabane)),
    ];
    let notes = vec![
        "APP3 follows what the cards deliver alone (9.2 and 6.1), not what they deliver together: \
         the slower one is overloaded and holds back the faster."
            .to_owned(),
    ];
    throughput(
        "Throughput of two unequal cards, SBAM table 4",
        &rows,
        notes,
    )
}

fn throughput(title: &'static str, rows: &[Row], notes: Vec<String>) -> Report {
    let mut table = Table::new(&[
        "cards",
        "sender",
        "paper, Mbit/s",
        "here, Mbit/s",
        "of what the cards deliver",
    ]);
    let (mut paper, mut here) = (Vec::new(), Vec::new());
    for (place, row) in rows.iter().enumerate() {
        let sum = row.environment.sum();
        let share = |rate: Rate| {
            format!(
                "{:.1} %",
                100.0 * rate.as_bps() as f64 / sum.as_bps() as f64
            )
        };
        table.row(vec![
            row.cards.to_owned(),
            row.sender.to_owned(),
            row.paper.map_or_else(none, |paper| format!("{paper:.1}")),
            row.measured.map_or_else(none, mbps),
            row.measured.map_or_else(none, share),
        ]);
        paper.extend(row.paper.map(|value| (place as f64, value)));
        here.extend(row.measured.map(|rate| (place as f64, rate.as_mbps_f64())));
    }
    let bars = |name: &str, points| Curve {
        name: name.to_owned(),
        style: Style::Bars,
        points,
    };
    let panel = Panel {
        y: "throughput, Mbit/s",
        categories: rows
            .iter()
            .map(|row| format!("{}: {}", row.cards, row.sender))
            .collect(),
        curves: vec![bars("paper", paper), bars("here", here)],
        ..Panel::default()
    };
    let figure = Figure {
        title: title.to_owned(),
        subtitle: "5.5 MB over UDP; cards deliver what the paper measured".to_owned(),
        panels: vec![panel],
    };
    Report {
        title,
        settings: settings(),
        table,
        figure,
        notes,
    }
}

fn settings() -> Vec<String> {
    vec![
        "5.5 MB of UDP payload in packets of 1,400 bytes".to_owned(),
        "cards alone: 9.2 (11 Mbit/s mode) and 6.1 Mbit/s (5.5 mode), as measured in the paper"
            .to_owned(),
        "cards in one machine: 7.7 and 8.03 (11 mode), 4.8 Mbit/s (5.5 mode): half of what the \
         paper's alternating sender got, and 4 % between two cards so that figure 7 drifts"
            .to_owned(),
        "interface queues of 50 packets (FreeBSD's IFQ_MAXLEN)".to_owned(),
    ]
}

/// Which figure: its number, its network, and what the paper says of it.
const FIGURES: [(u8, Environment, &str, &str, f64); 3] = [
    (
        7,
        Environment::Equal,
        "11 and 11 Mbit/s, no delay",
        "about 100 at 1.7 s",
        1.7,
    ),
    (
        8,
        Environment::Delayed,
        "11 Mbit/s, 50 ms, and 11 Mbit/s",
        "about 100 (8 %) at 1.5 s",
        1.5,
    ),
    (
        9,
        Environment::Unequal,
        "11 and 5.5 Mbit/s, no delay",
        "about 100 at 0.5 s",
        0.5,
    ),
];

/// Figures 7, 8 and 9.
///
/// # Panics
/// For any other number.
pub(crate) fn figure(number: u8, seed: Seed) -> Report {
    let (_, environment, network, paper, at) = *FIGURES
        .iter()
        .find(|(known, ..)| *known == number)
        .expect("the paper's figures are 7, 8 and 9");
    let engine = |scheduler, order| ours(environment, scheduler, order, seed);
    let (weighted, tabane) = (SchedulerKind::Weighted, SchedulerKind::Tabane);
    let sequences = [
        (
            "in turn (the paper)",
            open_loop(environment, OpenLoop::InTurn, MEDIA),
        ),
        ("weighted", engine(weighted, AS_SHIPPED)),
        ("tabane", engine(tabane, AS_SHIPPED)),
        ("weighted, at once", engine(weighted, DatagramOrder::AtOnce)),
        ("tabane, at once", engine(tabane, DatagramOrder::AtOnce)),
    ];
    let mut table = Table::new(&[
        "sender",
        "gap in the paper",
        &format!("gap here at {at} s"),
        "gap here, steady",
        "goodput, Mbit/s",
    ]);
    for (index, (name, sequence)) in sequences.iter().enumerate() {
        table.row(vec![
            (*name).to_owned(),
            if index == 0 { paper.to_owned() } else { none() },
            sequence.gap_at(at).to_string(),
            sequence.steady_gap().to_string(),
            mbps(sequence.goodput()),
        ]);
    }
    let title = match number {
        7 => "Sequence numbers by arrival, equal cards, SBAM figure 7",
        8 => "Sequence numbers by arrival, one card delayed, SBAM figure 8",
        _ => "Sequence numbers by arrival, unequal cards, SBAM figure 9",
    };
    let figure = Figure {
        title: title.to_owned(),
        subtitle: format!("{network}; 5.5 MB over UDP in packets of 1,400 bytes"),
        panels: panels(&sequences),
    };
    let notes = vec![
        "The gap is how many numbers an arriving packet is behind the newest that has arrived; \
         steady: within it nine of ten spans of 20 ms after the first quarter. In turn, a full \
         interface queue of 50 packets on one side and an empty one on the other are 100 numbers."
            .to_owned(),
        "weighted and tabane as shipped: the receiver hands datagrams out in the order in which \
         they were written, within 25 ms beyond the slowest path's time. At once: as they come \
         (--udp-order at-once), what scheduling alone does."
            .to_owned(),
    ];
    Report {
        title,
        settings: settings(),
        table,
        figure,
        notes,
    }
}

/// Senders whose arrivals have a panel; of the others the gap is shown.
const DRAWN: usize = 3;

/// A panel of arrivals for each of the first senders, and one with the gaps of all.
fn panels(sequences: &[(&str, Sequence)]) -> Vec<Panel> {
    let mut panels = Vec::new();
    let last = sequences
        .iter()
        .map(|(_, sequence)| sequence.len())
        .max()
        .unwrap_or(0);
    for (index, (name, sequence)) in sequences.iter().take(DRAWN).enumerate() {
        let spans = sequence.extremes();
        let step = spans.len().div_ceil(SPANS_DRAWN).max(1);
        let ends = |&(at, low, high): &(f64, u64, u64)| [(at, low as f64), (at, high as f64)];
        let dots = spans.iter().step_by(step).flat_map(ends).collect();
        // Empty curves keep each sender's colour the same in all panels.
        let mut curves = vec![Curve::thinned("", &[], 1); index];
        curves.push(Curve {
            name: (*name).to_owned(),
            style: Style::Dots,
            points: dots,
        });
        panels.push(Panel {
            title: format!("{name}: lowest and highest number in 20 ms"),
            x: "time since sending began, s",
            y: "sequence number",
            y_max: Some(last as f64),
            curves,
            ..Panel::default()
        });
    }
    let gap = |(name, sequence): &(&str, Sequence)| {
        let gaps = sequence.gaps();
        let points: Vec<(f64, f64)> = gaps.iter().map(|&(at, gap)| (at, gap as f64)).collect();
        let size = points.len().div_ceil(GAPS_DRAWN).max(1);
        let widest = |chunk: &[(f64, f64)]| {
            (
                chunk[0].0,
                chunk.iter().map(|point| point.1).fold(0.0, f64::max),
            )
        };
        let points = points.chunks(size).map(widest).collect();
        Curve {
            name: (*name).to_owned(),
            style: Style::Line,
            points,
        }
    };
    panels.push(Panel {
        title: "how far behind the newest packet others arrive".to_owned(),
        x: "time since sending began, s",
        y: "gap, packets",
        curves: sequences.iter().map(gap).collect(),
        ..Panel::default()
    });
    panels
}
