//! docs/papers.md: the page's tables and pictures are what the experiments give.
//!
//! Owns the places that are filled in: a table stands between `<!-- NAME:begin -->` and
//! `<!-- NAME:end -->`, a picture is papers/NAME.svg beside the page. The prose between them is
//! people's. The tests here measure anew what is quick to measure and compare.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tabane_sim::{
    papers::{Experiment, Report},
    svg,
};

use super::super::write_picture;
use super::markdown;
use crate::failure::Failure;
use crate::output;
use tabane_store::atomic_file;

/// Fills in what the reports say, and names the files it wrote.
pub(super) fn write(directory: &Path, reports: &[(Experiment, Report)]) -> Result<()> {
    let page = directory.join("papers.md");
    let text = fs::read_to_string(&page).with_context(|| format!("cannot read {page:?}"))?;
    let mut filled = text.clone();
    for (experiment, report) in reports {
        filled = with_table(&filled, *experiment, report).ok_or_else(|| {
            let what = format!("{page:?} has no place for {experiment}: expected the lines");
            Failure::usage(format!(
                "{what} {} and {}",
                begin(*experiment),
                end(*experiment)
            ))
        })?;
    }
    for (experiment, report) in reports {
        let path = directory.join("papers").join(format!("{experiment}.svg"));
        write_picture(&path, &svg(&report.figure)?)?;
        output::line(&path.display().to_string())?;
    }
    if filled != text {
        atomic_file::replace(&page, filled.as_bytes(), atomic_file::PUBLIC)?;
    }
    output::line(&page.display().to_string())
}

fn begin(experiment: Experiment) -> String {
    format!("<!-- {experiment}:begin -->\n")
}

fn end(experiment: Experiment) -> String {
    format!("<!-- {experiment}:end -->")
}

/// The page with an experiment's table in its place, if it has one.
fn with_table(page: &str, experiment: Experiment, report: &Report) -> Option<String> {
    let (before, rest) = page.split_once(&begin(experiment))?;
    let (_, after) = rest.split_once(&end(experiment))?;
    let (begin, end) = (begin(experiment), end(experiment));
    Some(format!("{before}{begin}{}{end}{after}", markdown(report)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tabane_base::Seed;
    use tabane_sim::papers::{Part, rmtcp};

    use super::super::carry_out;
    use super::*;

    /// What the committed page is made with: the command's default.
    const SEED: Seed = Seed(1);
    /// A page of so many pictures should not be heavy.
    const MAX_PICTURE: usize = 60_000;
    const REMAKE: &str = "if that is wanted: cargo run --release -p tabane -- sim paper all \
                          --write docs, and look at what changed";

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    fn page() -> String {
        fs::read_to_string(docs().join("papers.md")).unwrap()
    }

    fn drawn(experiment: Experiment) -> String {
        fs::read_to_string(docs().join(format!("papers/{experiment}.svg"))).unwrap()
    }

    /// What stands in an experiment's place.
    fn table(page: &str, experiment: Experiment) -> Option<&str> {
        let (_, rest) = page.split_once(&begin(experiment))?;
        Some(rest.split_once(&end(experiment))?.0)
    }

    #[test]
    fn every_experiment_has_its_table_and_a_light_picture() {
        let page = page();
        for experiment in Experiment::ALL {
            let rows = table(&page, experiment).unwrap_or_default().lines().count();
            assert!(rows > 3, "{experiment}: {rows} lines");
            let picture = format!("](papers/{experiment}.svg)");
            assert!(page.contains(&picture), "{experiment}: not shown");
            let size = drawn(experiment).len();
            assert!(size < MAX_PICTURE, "{experiment}: {size} bytes");
        }
    }

    #[test]
    fn the_page_shows_what_the_experiments_give_today() {
        let page = page();
        let mut quick = Experiment::ALL.to_vec();
        quick.retain(|experiment| *experiment != Experiment::RmtcpFig5);
        for (experiment, report) in carry_out(&quick, SEED) {
            let table = table(&page, experiment).unwrap();
            assert_eq!(table, markdown(&report), "{experiment}: {REMAKE}");
            let is_same = drawn(experiment) == svg(&report.figure).unwrap();
            assert!(is_same, "{experiment}.svg is another: {REMAKE}");
        }
    }

    /// Figure 5 has 28 points of some seconds each: the first of each curve stands for them.
    #[test]
    fn the_page_shows_the_points_of_figure_5() {
        let experiment = Experiment::RmtcpFig5;
        let page = page();
        let row = table(&page, experiment).unwrap().lines().nth(2).unwrap();
        let curves = experiment.parts() / rmtcp::LOWER_MS.len();
        let cells: Vec<&str> = row.split('|').map(str::trim).skip(2).take(curves).collect();
        std::thread::scope(|scope| {
            for (curve, cell) in cells.iter().enumerate() {
                scope.spawn(move || {
                    let part = curve * rmtcp::LOWER_MS.len();
                    let Part::Point(rate) = experiment.measure(part, SEED) else {
                        panic!("a point of a curve")
                    };
                    assert_eq!(*cell, format!("{:.2}", rate.as_mbps_f64()), "{REMAKE}");
                });
            }
        });
    }

    #[test]
    fn a_table_goes_to_its_place_and_nowhere_else() {
        let report = Experiment::SbamTable4.run(SEED);
        let page = "a\n<!-- sbam-table4:begin -->\nold\n<!-- sbam-table4:end -->\nb\n";
        let filled = with_table(page, Experiment::SbamTable4, &report).unwrap();
        let table = markdown(&report);
        assert_eq!(filled, page.replace("old\n", &table));
        assert_eq!(with_table(page, Experiment::SbamTable2, &report), None);
    }
}
