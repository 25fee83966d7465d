//! What the R-M/TCP experiments show: figures 5, 6 and 7.

use tabane_base::{Bytes, Duration, Rate, Seed};
use tabane_core::{ControllerKind, SchedulerKind, SessionConfig};

use super::{
    CONNECTIONS, DURATION, LOWER_MS, Run, Sender, WINDOW, run, theory_mean, theory_slowest,
};
use crate::figure::{Curve, Figure, Panel, Style, Table};
use crate::papers::report::{Report, mbps, none};

/// Points of a curve of held bytes.
const HELD_DRAWN: usize = 250;
/// The lower path's one-way time in figures 6 and 7.
pub const NEAR_MS: u64 = 30;

/// R-M/TCP as it was: in turn, by its rate control.
pub const ROUND_ROBIN: Sender = Sender {
    scheduler: SchedulerKind::RoundRobin,
    controller: ControllerKind::RmTcp,
    windowed: true,
};
/// R-M/TCP with the paper's distribution.
pub const DISTRIBUTION: Sender = Sender {
    scheduler: SchedulerKind::Arrival,
    ..ROUND_ROBIN
};
/// Ours: as shipped, but for TCP's window of 64 KB, or for 64 KB of memory at the receivers.
#[must_use]
pub fn ours(windowed: bool) -> Sender {
    let SessionConfig {
        scheduler,
        controller,
        ..
    } = SessionConfig::default();
    Sender {
        scheduler,
        controller,
        windowed,
    }
}

/// In the order of the figure.
fn senders() -> [(&'static str, Sender); 4] {
    [
        ("round robin", ROUND_ROBIN),
        ("distribution", DISTRIBUTION),
        ("tabane, 64 KB window", ours(true)),
        ("tabane, 64 KB memory", ours(false)),
    ]
}

fn settings() -> Vec<String> {
    vec![
        format!("{CONNECTIONS} connections for 100 s; each receiver's window {WINDOW}"),
        "upper path 60 ms one way, lower path 30 to 120 ms".to_owned(),
        "5 TCP Reno flows cross each path from 30 s to 60 s, with ns-2's window of 20 packets"
            .to_owned(),
        "chosen, because figure 4 is lost: bottlenecks of 20 (upper) and 25 Mbit/s (lower) with \
         ns-2's queues of 50 packets"
            .to_owned(),
    ]
}

/// Measured points of figure 5: those of the first sender, then of the second…
pub(crate) const POINTS: usize = 4 * LOWER_MS.len();

/// One of them.
pub(crate) fn figure5_point(point: usize, seed: Seed) -> Rate {
    let (_, sender) = senders()[point / LOWER_MS.len()];
    run(LOWER_MS[point % LOWER_MS.len()], sender, DURATION, seed).goodput
}

/// The figure of all its points.
pub(crate) fn figure5(points: &[Rate]) -> Report {
    const TITLE: &str = "Throughput by the lower path's delay, R-M/TCP figure 5";
    let (measured, _) = points.as_chunks::<{ LOWER_MS.len() }>();
    let names = senders().map(|(name, _)| name);
    let curves: Vec<(&str, [Rate; 7])> = names.into_iter().zip(measured.iter().copied()).collect();
    let theories = [
        (
            "(11) window / slowest path's round trip",
            LOWER_MS.map(theory_slowest),
        ),
        ("(12) window / mean round trip", LOWER_MS.map(theory_mean)),
    ];
    let mut headings = vec!["lower path, ms"];
    headings.extend(curves.iter().map(|(name, _)| *name));
    headings.extend(["(11) slowest", "(12) mean"]);
    let mut table = Table::new(&headings);
    for (index, lower) in LOWER_MS.into_iter().enumerate() {
        let all = curves
            .iter()
            .map(|(_, rates)| rates)
            .chain(theories.iter().map(|t| &t.1));
        let cells = all.map(|rates| mbps(rates[index]));
        table.row([lower.to_string()].into_iter().chain(cells).collect());
    }
    let curve = |name: &str, rates: &[Rate; 7], style| Curve {
        name: name.to_owned(),
        style,
        points: LOWER_MS
            .iter()
            .zip(rates)
            .map(|(ms, r)| (*ms as f64, r.as_mbps_f64()))
            .collect(),
    };
    let solid = curves
        .iter()
        .map(|(name, rates)| curve(name, rates, Style::Line));
    let dashed = theories
        .iter()
        .map(|(name, rates)| curve(name, rates, Style::Dashed));
    let panel = Panel {
        x: "one-way time of the lower path, ms (upper: 60)",
        y: "throughput per connection, Mbit/s",
        curves: solid.chain(dashed).collect(),
        ..Panel::default()
    };
    Report {
        title: TITLE,
        settings: settings(),
        table,
        figure: Figure {
            title: TITLE.to_owned(),
            subtitle:
                "5 connections, 100 s, windows of 64 KB, 5 Reno flows per path from 30 to 60 s"
                    .to_owned(),
            panels: vec![panel],
        },
        notes: vec![
            "Acknowledgements return on the faster path, not on both in turn as the equations \
             assume: measured curves may lie above them."
                .to_owned(),
            "With 64 KB of memory and not of window, our senders go beyond what the receiver could \
             hold if all of it came out of order; what does not fit is sent again."
                .to_owned(),
        ],
    }
}

pub(crate) fn figure6(seed: Seed) -> Report {
    const TITLE: &str = "Bytes in the receive window, round robin, R-M/TCP figure 6";
    held(
        TITLE,
        ("round robin", ROUND_ROBIN),
        "always much of the window",
        seed,
    )
}

pub(crate) fn figure7(seed: Seed) -> Report {
    const TITLE: &str = "Bytes in the receive window, distribution, R-M/TCP figure 7";
    let paper = "near zero, with peaks at the start and at 30 s";
    held(TITLE, ("distribution", DISTRIBUTION), paper, seed)
}

fn held(
    title: &'static str,
    (name, sender): (&'static str, Sender),
    paper: &str,
    seed: Seed,
) -> Report {
    let runs = [(name, sender), senders()[2]].map(|(name, sender)| {
        let run = run(NEAR_MS, sender, DURATION, seed);
        (name, run)
    });
    let mut table = Table::new(&[
        "sender",
        "held in the paper",
        "here, mean 5 to 30 s",
        "30 to 60 s",
        "60 to 100 s",
        "most",
    ]);
    for (index, (name, run)) in runs.iter().enumerate() {
        let most = run
            .held
            .iter()
            .map(|(_, held)| *held)
            .max()
            .unwrap_or_default();
        let mean = |from, to| kilo(run.held_mean(from, to));
        table.row(vec![
            (*name).to_owned(),
            if index == 0 { paper.to_owned() } else { none() },
            mean(5.0, 30.0),
            mean(30.0, 60.0),
            mean(60.0, 100.0),
            kilo(most),
        ]);
    }
    Report {
        title,
        settings: settings(),
        table,
        figure: Figure {
            title: title.to_owned(),
            subtitle: "lower path 30 ms, upper 60; the first of 5 connections; the most in each \
                       0.4 s"
                .to_owned(),
            panels: panels(&runs),
        },
        notes: Vec::new(),
    }
}

fn kilo(bytes: Bytes) -> String {
    format!("{:.1} kB", bytes.get() as f64 / 1e3)
}

fn panels(runs: &[(&str, Run)]) -> Vec<Panel> {
    let panel = |(index, (name, run)): (usize, &(&str, Run))| {
        let points = peaks(&run.held, DURATION);
        let mut curves = vec![Curve::thinned("", &[], 1); index];
        curves.push(Curve {
            name: (*name).to_owned(),
            style: Style::Line,
            points,
        });
        Panel {
            title: (*name).to_owned(),
            x: "time, s",
            y: "waiting for order, kB",
            y_max: Some(WINDOW.get() as f64 / 1e3),
            curves,
            ..Panel::default()
        }
    };
    runs.iter().enumerate().map(panel).collect()
}

/// The most in each of [`HELD_DRAWN`] spans, in kB.
fn peaks(held: &[(f64, Bytes)], duration: Duration) -> Vec<(f64, f64)> {
    let span = duration.as_secs_f64() / HELD_DRAWN as f64;
    let mut peaks: Vec<(f64, f64)> = Vec::new();
    for (at, bytes) in held {
        let start = (at / span).floor() * span;
        let kilo = bytes.get() as f64 / 1e3;
        match peaks.last_mut().filter(|(known, _)| *known == start) {
            Some((_, most)) => *most = most.max(kilo),
            None => peaks.push((start, kilo)),
        }
    }
    peaks
}
