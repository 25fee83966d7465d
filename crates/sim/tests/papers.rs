//! The papers' experiments keep showing what `docs/papers.md` says they show.
//!
//! Full length where that is quick, shortened where it is not. Bounds lie between what the paper
//! has and what we reach; where they are wide the comment says why.

use tabane_base::Seed;
use tabane_sim::papers::sbam::{self, Environment, MEDIA, OpenLoop};
use tabane_sim::papers::{Experiment, Sequence};

const SEED: Seed = Seed(1);

fn in_turn(environment: Environment) -> Sequence {
    sbam::open_loop(environment, OpenLoop::InTurn, MEDIA)
}

fn is_near(value: f64, paper: f64, tolerance: f64) -> bool {
    (value / paper - 1.0).abs() <= tolerance
}

#[test]
fn sbam_tables_2_and_4() {
    let equal = in_turn(Environment::Equal).goodput().as_mbps_f64();
    assert!(is_near(equal, 15.4, 0.01), "APP1 {equal}");
    let unequal = in_turn(Environment::Unequal).goodput().as_mbps_f64();
    assert!(is_near(unequal, 9.6, 0.01), "APP1 {unequal}");
    let weighted = sbam::open_loop(Environment::Unequal, OpenLoop::ByBandwidth, MEDIA);
    let weighted = weighted.goodput().as_mbps_f64();
    assert!(is_near(weighted, 11.7, 0.04), "APP3 {weighted}");
}

#[test]
fn sbam_figures_7_to_9() {
    let equal = in_turn(Environment::Equal);
    assert!(
        (90..=110).contains(&equal.gap_at(1.7)),
        "{}",
        equal.gap_at(1.7)
    );
    assert!(
        equal.gap_at(1.0) < 65,
        "hardly to be seen yet: {}",
        equal.gap_at(1.0)
    );
    // "About 100, 8 %": 8 % of what has arrived by then is 165.
    let delayed = in_turn(Environment::Delayed);
    assert!(
        (100..=170).contains(&delayed.gap_at(1.5)),
        "{}",
        delayed.gap_at(1.5)
    );
    let unequal = in_turn(Environment::Unequal);
    assert!(
        (90..=110).contains(&unequal.gap_at(0.5)),
        "{}",
        unequal.gap_at(0.5)
    );
}

#[test]
fn reports_are_whole_and_repeat() {
    use Experiment::{SbamFig7, SbamFig8, SbamFig9, SbamTable2, SbamTable4};
    for experiment in [SbamTable2, SbamTable4, SbamFig7, SbamFig8, SbamFig9] {
        assert_eq!(experiment.name().parse(), Ok(experiment));
        let [report, again] = [(); 2].map(|()| experiment.run(SEED));
        assert_eq!(report.table, again.table);
        assert_eq!(report.figure, again.figure);
        assert!(!report.table.rows.is_empty() && !report.figure.panels.is_empty());
        for row in &report.table.rows {
            assert_eq!(row.len(), report.table.headings.len(), "{experiment}");
        }
    }
}
