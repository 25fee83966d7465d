//! Many radio links of a kind, summed up: how much of a link the default uses, how long packets
//! wait for it, what the best fixed window would have brought, and what bonds bring.
//!
//! A fixed window in hindsight is the yardstick for delay: who knows the whole run beforehand may
//! choose the window that brings most among those that make nobody wait longer than the default.

use std::fmt::Write as _;

use tabane_base::{Bytes, Duration, Seed};
use tabane_core::{ControllerKind, SessionConfig};
use tabane_netem::{Direction, Radio, RadioKind};

use super::{PACKET, RadioComparison, RadioRun, bond_of_best};
use crate::figure::{Curve, Figure, Panel, Style, Table};
use crate::papers::Report;

/// Windows that are tried, as parts of what the path holds at its mean rate.
const WINDOWS: [f64; 6] = [0.5, 0.75, 1.0, 1.5, 2.25, 3.5];
/// No session has less.
const LEAST_WINDOW: Bytes = Bytes::new(16 * 1024);
/// What bonds have brought is compared after so many seconds.
const BOND_SECONDS: [u64; 4] = [1, 3, 10, 30];
/// The links of a pair are this many seeds apart.
const PARTNER: u64 = 500;

/// What one link showed.
#[derive(Clone, Debug)]
pub struct RadioSurvey {
    comparison: RadioComparison,
    windows: Vec<RadioRun>,
    bond: Vec<f64>,
}

impl RadioSurvey {
    /// Every controller and every window over `radio` for `span`, one after the other, and a bond
    /// of it and a `walk`.
    #[must_use]
    pub fn new(radio: Radio, span: Duration) -> Self {
        let down = radio.config(Direction::Down);
        let up = radio.config(Direction::Up);
        let held = down.mean_rate().amount_in(down.delay + up.delay);
        let window = |part: f64| {
            let window = Bytes::new((held.get() as f64 * part) as u64).max(LEAST_WINDOW);
            let config = SessionConfig {
                controller: ControllerKind::Cubic,
                // What is written and not acknowledged cannot exceed this.
                send_memory: window,
                ..SessionConfig::default()
            };
            RadioRun::configured(vec![radio.link()], config, Seed(radio.seed), span)
        };
        Self {
            comparison: RadioComparison::new(radio, span),
            windows: WINDOWS.map(window).into(),
            bond: bond_of_best(pair(radio), &BOND_SECONDS.map(Duration::from_secs)),
        }
    }

    /// The default's goodput, of the best fixed window that makes nobody wait longer (95th
    /// percentile); of the smallest, where all do.
    fn of_best_window(&self) -> f64 {
        let ours = self.comparison.of(ControllerKind::Tabane);
        let is_short = |run: &&RadioRun| run.wait_p95 <= ours.wait_p95;
        let least = self.windows.first().map(|run| run.goodput);
        let best = self.windows.iter().filter(is_short).map(|run| run.goodput);
        let best = best.max().or(least).unwrap_or_default();
        ours.goodput.as_mbps_f64() / best.as_mbps_f64().max(1e-9)
    }

    /// Goodput of the better of cubic and BBR, by the logarithm of the wait in ms.
    fn point(&self, run: &RadioRun) -> (f64, f64) {
        let ours = self.comparison.of(ControllerKind::Tabane);
        let part = run.goodput.as_mbps_f64() / ours.goodput.as_mbps_f64().max(1e-9);
        let wait = (run.wait_p95.as_secs_f64() + PACKET) * 1e3;
        (wait.log10(), part * self.comparison.of_better())
    }

    /// What all of them come to, kind by kind.
    #[must_use]
    pub fn report(all: &[Self]) -> Report {
        let mut headings = vec![
            "kind".to_owned(),
            "links".to_owned(),
            "of the better TCP".to_owned(),
            "waits of bbr's".to_owned(),
            "of the best window".to_owned(),
        ];
        headings.extend(BOND_SECONDS.map(|seconds| format!("bond after {seconds} s")));
        let mut table = Table {
            headings,
            rows: Vec::new(),
        };
        let mut panels = Vec::new();
        for kind in RadioKind::ALL {
            let of_kind = |survey: &&Self| survey.comparison.radio.kind == kind;
            let links: Vec<&Self> = all.iter().filter(of_kind).collect();
            if !links.is_empty() {
                table.row(row(kind.name(), &links));
                panels.push(panel(kind, &links));
            }
        }
        table.row(row("all", &all.iter().collect::<Vec<_>>()));
        Report {
            title: "Radio links made by seed: goodput and delay, one link and two",
            settings: vec![
                "goodput: the default's, of the better of cubic and bbr; of the best fixed window \
                 that makes nobody wait longer; median, worst tenth"
                    .to_owned(),
                "waits: how long packets stand on the link, of bbr's; medians of the p50 and p95"
                    .to_owned(),
                "bond: with a walk, of what the better link alone has brought by then; median, \
                 worst tenth"
                    .to_owned(),
            ],
            table,
            figure: Figure {
                title: "Goodput by delay over radio links".to_owned(),
                subtitle: "up and to the left is better; the line is of fixed windows, medians"
                    .to_owned(),
                panels,
            },
            notes: Vec::new(),
        }
    }
}

/// A link of a kind, with one that wanders.
fn pair(radio: Radio) -> [Radio; 2] {
    let other = Radio {
        kind: RadioKind::Walk,
        seed: radio.seed + PARTNER,
    };
    [radio, other]
}

fn row(name: &str, links: &[&RadioSurvey]) -> Vec<String> {
    let spread = |value: &dyn Fn(&RadioSurvey) -> f64| {
        let mut values: Vec<f64> = links.iter().map(|survey| value(survey)).collect();
        let middle = quantile(&mut values, 0.5);
        format!("{middle:.3}, {:.2}", quantile(&mut values, 0.1))
    };
    let waits: Vec<(f64, f64)> = (links.iter())
        .map(|survey| survey.comparison.waits_of_bbr())
        .collect();
    let mut p50: Vec<f64> = waits.iter().map(|wait| wait.0).collect();
    let mut p95: Vec<f64> = waits.iter().map(|wait| wait.1).collect();
    let mut wait = format!("{:.2}", quantile(&mut p50, 0.5));
    let _ = write!(wait, ", {:.2}", quantile(&mut p95, 0.5));
    let mut cells = vec![
        name.to_owned(),
        links.len().to_string(),
        spread(&|survey| survey.comparison.of_better()),
        wait,
        spread(&RadioSurvey::of_best_window),
    ];
    let bond = |index: usize| spread(&|survey| survey.bond[index]);
    cells.extend((0..BOND_SECONDS.len()).map(bond));
    cells
}

fn panel(kind: RadioKind, links: &[&RadioSurvey]) -> Panel {
    let dots = |controller: ControllerKind| Curve {
        name: controller.to_string(),
        style: Style::Dots,
        points: (links.iter())
            .map(|survey| survey.point(survey.comparison.of(controller)))
            .collect(),
    };
    let middle = |window: usize| {
        let points = links
            .iter()
            .map(|survey| survey.point(&survey.windows[window]));
        let (mut waits, mut parts): (Vec<f64>, Vec<f64>) = points.unzip();
        (quantile(&mut waits, 0.5), quantile(&mut parts, 0.5))
    };
    let windows = Curve {
        name: "fixed windows".to_owned(),
        style: Style::Line,
        points: (0..WINDOWS.len()).map(middle).collect(),
    };
    Panel {
        title: kind.name().to_owned(),
        x: "95 of 100 packets wait less, log10 of ms",
        y: "of the better of cubic and bbr",
        y_max: Some(1.2),
        curves: ControllerKind::ALL
            .map(dots)
            .into_iter()
            .chain([windows])
            .collect(),
        ..Panel::default()
    }
}

pub(super) fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((last * part) as usize).copied().unwrap_or(0.0)
}
