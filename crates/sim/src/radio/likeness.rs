//! How like recorded links the made ones are: which rates they have, and how long those last.
//!
//! Two pictures tell most of what a congestion controller meets. Rates by how often they are
//! reached, of the link's median, say how far they swing; the correlation of the rate's logarithm
//! with itself, by how much later, says how fast.

use tabane_base::Duration;
use tabane_netem::{Direction, Radio, RadioKind, RateModel, Trace};

use crate::figure::{Curve, Figure, Panel, Style};

/// Rates are means over so long.
const STEP: Duration = Duration::from_millis(100);
/// Points of a distribution.
const QUANTILES: usize = 40;
/// The few moments of higher rates would hide the rest.
const RATE_MOST: f64 = 5.0;
/// How much later, in steps.
const LAGS: [usize; 12] = [1, 2, 3, 5, 7, 10, 14, 20, 30, 50, 70, 100];
/// Kinds whose rate is what swings; the others have a trouble of another sort.
const SWINGING: [RadioKind; 3] = [RadioKind::Walk, RadioKind::Steps, RadioKind::Handovers];

/// Recorded links beside made ones of these seeds, towards the client.
#[must_use]
pub fn radio_likeness(recorded: &[(String, Trace)], seeds: &std::ops::Range<u64>) -> Figure {
    let mut panels = [
        Panel {
            title: "How often a rate is reached".to_owned(),
            x: "part of the time",
            y: "of the link's median rate, 5 at most",
            ..Panel::default()
        },
        Panel {
            title: "How long a rate lasts".to_owned(),
            x: "s later",
            y: "correlation of the logarithm",
            y_max: Some(1.0),
            ..Panel::default()
        },
    ];
    let mut add = |name: &str, style: Style, [rates, lasting]: [Vec<(f64, f64)>; 2]| {
        for (panel, points) in panels.iter_mut().zip([rates, lasting]) {
            let name = name.to_owned();
            panel.curves.push(Curve {
                name,
                style,
                points,
            });
        }
    };
    for (name, trace) in recorded {
        add(name, Style::Dashed, shape(&rates(trace)));
    }
    for kind in SWINGING {
        let made = |seed| match (Radio { kind, seed }).config(Direction::Down).rate {
            RateModel::Trace(trace) => Some(shape(&rates(&trace))),
            RateModel::Constant(_) => None,
        };
        let shapes: Vec<_> = seeds.clone().filter_map(made).collect();
        add(
            kind.name(),
            Style::Line,
            [0, 1].map(|of| medians(&shapes, of)),
        );
    }
    Figure {
        title: "Rates of recorded and of made radio links".to_owned(),
        subtitle: format!(
            "means over 100 ms; of each made kind the medians of seeds {} to {}",
            seeds.start,
            seeds.end.saturating_sub(1)
        ),
        panels: panels.into(),
    }
}

fn rates(trace: &Trace) -> Vec<f64> {
    let amounts = trace.amounts(STEP).into_iter();
    amounts.map(|amount| amount.get() as f64).collect()
}

/// Both curves of one link.
fn shape(rates: &[f64]) -> [Vec<(f64, f64)>; 2] {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * sorted.len().saturating_sub(1) as f64;
        sorted.get(place as usize).copied().unwrap_or_default()
    };
    let median = at(0.5).max(1.0);
    let quantile = |index: usize| {
        let part = index as f64 / QUANTILES as f64;
        (part, (at(part) / median).min(RATE_MOST))
    };
    // A silence has no logarithm: it is taken for a packet.
    let logs: Vec<f64> = rates.iter().map(|rate| rate.max(1_500.0).ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
    let with = |lag: usize| {
        let later = logs.get(lag..).unwrap_or_default();
        let sum: f64 = logs
            .iter()
            .zip(later)
            .map(|(a, b)| (a - mean) * (b - mean))
            .sum();
        sum / later.len().max(1) as f64
    };
    let whole = with(0).max(1e-9);
    [
        (0..=QUANTILES).map(quantile).collect(),
        LAGS.map(|lag| (lag as f64 * STEP.as_secs_f64(), with(lag) / whole))
            .into(),
    ]
}

/// Point by point over all links of a kind.
fn medians(shapes: &[[Vec<(f64, f64)>; 2]], of: usize) -> Vec<(f64, f64)> {
    let first = shapes.first().map(|shape| shape[of].as_slice());
    let places = first.unwrap_or_default().iter().enumerate();
    let point = |(place, (x, _)): (usize, &(f64, f64))| {
        let mut values: Vec<f64> = shapes.iter().map(|shape| shape[of][place].1).collect();
        (*x, super::survey::quantile(&mut values, 0.5))
    };
    places.map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_link_has_one_rate_and_a_jumping_one_has_two() {
        let steady = shape(&[9_000.0; 600]);
        assert!(steady[0].iter().all(|(_, rate)| (rate - 1.0).abs() < 1e-9));
        // Ten steps at one rate, ten at twice that.
        let jumps: Vec<f64> = (0..600)
            .map(|i| 9_000.0 * f64::from(1 + i / 10 % 2))
            .collect();
        let [rates, lasting] = shape(&jumps);
        let ends = [rates[0].1, rates[QUANTILES].1];
        assert!((ends[1] / ends[0] - 2.0).abs() < 1e-9, "{ends:?}");
        let at = |seconds: f64| {
            lasting
                .iter()
                .find(|point| point.0 >= seconds - 1e-9)
                .map(|it| it.1)
        };
        assert!(at(0.1) > Some(0.7) && at(1.0) < Some(-0.9), "{lasting:?}");
    }
}
