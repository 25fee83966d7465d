//! What links of radio must look like: recorded ones, and each as its seed says.

use super::*;

/// Opportunities per 100 ms.
fn rates(config: &LinkConfig) -> Vec<f64> {
    let RateModel::Trace(trace) = &config.rate else {
        panic!("{config:?} has no trace");
    };
    let amounts = trace.amounts(Duration::from_millis(100)).into_iter();
    amounts
        .map(|amount| amount.get() as f64 / OPPORTUNITY.get() as f64)
        .collect()
}

/// Coefficient of variation, and the correlation with 0.1 s and 3 s later.
fn shape(rates: &[f64]) -> (f64, f64, f64) {
    let n = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / n;
    let with = |lag: usize| {
        let pairs = rates.iter().zip(&rates[lag..]);
        pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / (n - lag as f64)
    };
    (with(0).sqrt() / mean, with(1) / with(0), with(30) / with(0))
}

/// The recorded cellular links: variation 0.4 to 1.2, after 0.1 s 0.6 to 0.9, after 3 s 0 to 0.7.
#[test]
fn walks_look_like_recorded_links() {
    let seeds = 0..40;
    let count = seeds.end as f64;
    let mut mean = (0.0, 0.0, 0.0);
    for seed in seeds {
        let radio = Radio {
            kind: RadioKind::Walk,
            seed,
        };
        let (variation, soon, later) = shape(&rates(&radio.config(Direction::Down)));
        assert!((0.2..1.5).contains(&variation), "{radio}: {variation}");
        mean = (
            mean.0 + variation / count,
            mean.1 + soon / count,
            mean.2 + later / count,
        );
    }
    assert!((0.4..0.9).contains(&mean.0), "variation {mean:?}");
    assert!((0.7..0.95).contains(&mean.1), "after 0.1 s {mean:?}");
    assert!((0.1..0.6).contains(&mean.2), "after 3 s {mean:?}");
}

#[test]
fn a_seed_is_a_link_and_names_are_understood() {
    for kind in RadioKind::ALL {
        let radio = Radio { kind, seed: 7 };
        assert_eq!(radio.to_string().parse(), Ok(radio));
        assert_eq!(radio.link(), radio.link());
        assert_ne!(radio.link(), Radio { kind, seed: 8 }.link());
        let (up, down) = (radio.link().up, radio.link().down);
        let share = up.mean_rate().as_mbps_f64() / down.mean_rate().as_mbps_f64();
        let is_narrow = kind == RadioKind::Narrow;
        assert_eq!(share < 0.15, is_narrow, "{radio}: {share}");
    }
    for text in ["walk", "walk/", "walk/x", "run/1", "walk/-1"] {
        assert!(text.parse::<Radio>().is_err(), "{text}");
    }
}

#[test]
fn outages_are_silent_and_handovers_change_the_delay() {
    let outages = Radio {
        kind: RadioKind::Outages,
        seed: 3,
    };
    let down = outages.config(Direction::Down);
    let silent = rates(&down).iter().filter(|rate| **rate == 0.0).count();
    assert!(silent > 0 || !down.outages.is_empty());
    let handovers = Radio {
        kind: RadioKind::Handovers,
        seed: 3,
    };
    let config = handovers.config(Direction::Down);
    assert!(config.changes.iter().all(|change| change.delay.is_some()));
    assert!(config.changes.len() >= 4, "{config:?}");
}
