//! The papers' experiments keep showing what `docs/papers.md` says they show.
//!
//! Full length where that is quick, shortened where it is not. Bounds lie between what the paper
//! has and what we reach; where they are wide the comment says why.

use tabane_base::{Duration, Seed};
use tabane_core::{DatagramOrder, SchedulerKind};
use tabane_ranges::Rule;
use tabane_sim::papers::{
    Experiment, Sequence, arms,
    rmtcp::{self, DISTRIBUTION, LOWER_MS, NEAR_MS, ROUND_ROBIN},
    sbam::{self, AS_SHIPPED, Environment, MEDIA, OpenLoop},
    shake::{self, FAR, phs},
};

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

/// What the paper left open: its schedule with congestion control takes what the cards deliver.
#[test]
fn ours_take_what_the_cards_deliver() {
    use SchedulerKind::{RoundRobin, Tabane, Weighted};
    let cases = [
        (Environment::Only11, Tabane),
        (Environment::Only5, Tabane),
        (Environment::Equal, RoundRobin),
        (Environment::Equal, Weighted),
        (Environment::Equal, Tabane),
        (Environment::Unequal, RoundRobin),
        (Environment::Unequal, Weighted),
        (Environment::Unequal, Tabane),
    ];
    for (environment, scheduler) in cases {
        let sequence = sbam::ours(environment, scheduler, AS_SHIPPED, SEED);
        let goodput = sequence.goodput().as_mbps_f64();
        let share = goodput / environment.sum().as_mbps_f64();
        assert!(share > 0.95, "{environment:?} {scheduler}: {share:.3}");
    }
}

#[test]
fn as_shipped_nothing_comes_out_of_order() {
    let environments = [
        Environment::Equal,
        Environment::Delayed,
        Environment::Unequal,
    ];
    for environment in environments {
        for scheduler in [SchedulerKind::Weighted, SchedulerKind::Tabane] {
            let gap = |order| sbam::ours(environment, scheduler, order, SEED).steady_gap();
            let shipped = gap(AS_SHIPPED);
            assert!(shipped < 5, "{environment:?} {scheduler}: {shipped}");
            // Both cards together take 70 packets in 50 ms: no order of sending spares the
            // receiver those, unless packets were sent that are not written yet.
            let limit = match environment {
                Environment::Delayed => 90,
                _ => 15,
            };
            let at_once = gap(DatagramOrder::AtOnce);
            assert!(at_once < limit, "{environment:?} {scheduler}: {at_once}");
        }
    }
}

#[test]
fn arms_table_1() {
    let rule = arms::times(arms::PAPERS_RULE, arms::TRANSFER, SEED);
    let ours = arms::times(arms::ours(), arms::TRANSFER, SEED);
    for ((cell, rule), ours) in arms::TABLE.iter().zip(rule).zip(ours) {
        let alone = 8.0 * 20e6 / (cell.first.mbps as f64 * 1e6);
        let Some(second) = cell.second else {
            let share = alone / ours.0;
            // Headers leave 0.96. The default controller keeps queues of one packet, which costs
            // 1 % where a packet takes 12 ms; `bbr` reaches 0.95.
            assert!(share > 0.94, "{cell:?}: {share:.3}");
            continue;
        };
        let (rule, ours) = (rule.1.unwrap(), ours.1.unwrap());
        assert!(ours > 0.95, "{cell:?}: {ours:.3}");
        if cell.first.mbps == second.mbps {
            assert!(rule > 0.95, "{cell:?}: {rule:.3}");
        } else {
            // The paper has 0.70 to 0.74.
            assert!((0.58..0.78).contains(&rule), "{cell:?}: {rule:.3}");
        }
    }
}

/// Figures 6 and 7.
#[test]
fn distribution_leaves_little_waiting() {
    let [turns, dealt] = [ROUND_ROBIN, DISTRIBUTION]
        .map(|sender| rmtcp::run(NEAR_MS, sender, rmtcp::DURATION, SEED));
    for (from, to, part) in [(5.0, 30.0, 5), (30.0, 60.0, 2), (60.0, 100.0, 5)] {
        let (turns, dealt) = (turns.held_mean(from, to), dealt.held_mean(from, to));
        assert!(
            dealt.get() * part < turns.get(),
            "from {from} s: {dealt} of {turns}"
        );
    }
}

/// The ends of figure 5 and its middle, where all paths are alike; cut to 30 s.
#[test]
fn distribution_is_not_held_by_the_slowest_path() {
    let rates = |lower| {
        let senders = [ROUND_ROBIN, DISTRIBUTION, rmtcp::ours(true)];
        let run = |sender| rmtcp::run(lower, sender, Duration::from_secs(30), SEED);
        senders.map(|sender| run(sender).goodput.as_mbps_f64())
    };
    let far = *LOWER_MS.last().unwrap();
    let theories = [rmtcp::theory_slowest(far), rmtcp::theory_mean(far)];
    let [slowest, mean] = theories.map(|rate| rate.as_mbps_f64());
    let [turns, dealt, ours] = rates(far);
    assert!(is_near(turns, slowest, 0.2), "{turns} of {slowest}");
    assert!(dealt > mean && dealt > 1.15 * turns, "{dealt}, {turns}");
    assert!(ours > mean && ours > 1.15 * turns, "{ours}, {turns}");
    // Over 100 s they are within 1 %; in 30 s it matters more who is hit by cross traffic.
    let [turns, dealt, ours] = rates(rmtcp::UPPER_MS);
    assert!(is_near(dealt, turns, 0.1), "{dealt}, {turns}");
    assert!(is_near(ours, turns, 0.1), "{ours}, {turns}");
}

#[test]
fn reports_are_whole_and_repeat() {
    use Experiment::{SbamFig7, SbamFig8, SbamFig9, SbamTable2, SbamTable4};
    use Experiment::{ShakeExp1, ShakeExp2, ShakeExp3};
    let sbam = [SbamTable2, SbamTable4, SbamFig7, SbamFig8, SbamFig9];
    for experiment in sbam.into_iter().chain([ShakeExp1, ShakeExp2, ShakeExp3]) {
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

/// Experiments 1 to 3: a megabyte by two links gains 1.9, by three 2.8; F-P never loses.
#[test]
fn shake_figures_6_to_9() {
    let first_partial = Rule::FirstPartial {
        threshold: Rule::THRESHOLD,
    };
    let links = FAR.map(|delay| phs(delay, None));
    let gain = |count: usize, rule, kilo| {
        let alone = shake::throughput(&links[..1], Rule::Tabane, kilo, SEED);
        shake::throughput(&links[..count], rule, kilo, SEED) / alone
    };
    let (two, three) = (
        gain(2, Rule::FirstHead, 1_000),
        gain(3, Rule::FirstHead, 1_000),
    );
    assert!(is_near(two, 1.9, 0.05), "F-H by two: {two}");
    assert!(is_near(three, 2.8, 0.05), "F-H by three: {three}");
    for kilo in shake::SIZES {
        let small = gain(2, Rule::FirstHead, kilo);
        assert!(kilo > 8 || small < 0.9, "F-H, {kilo} kB: {small}");
        // At 32 kB hardly more than the threshold is left to be divided.
        let partial = gain(2, first_partial, kilo);
        assert!(partial > 0.93, "F-P, {kilo} kB: {partial}");
        for count in [2, 3] {
            let ours = gain(count, Rule::Tabane, kilo);
            assert!(ours > 0.999, "ours by {count}, {kilo} kB: {ours}");
        }
    }
    let (two, three) = (gain(2, Rule::Tabane, 1_000), gain(3, Rule::Tabane, 1_000));
    assert!(two > 1.93, "ours by two: {two}");
    assert!(three > 2.8, "ours by three: {three}");
}
