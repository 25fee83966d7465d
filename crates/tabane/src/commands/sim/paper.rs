//! `tabane sim paper`: the papers' tables and figures, with ours beside them.

mod document;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use tabane_base::Seed;
use tabane_sim::{
    Figure, Table,
    papers::{Experiment, Part, Report},
    svg,
};

use super::{on_all_processors, write_picture};
use crate::failure::Failure;
use crate::output;

/// Reproduce a table or figure of the papers, with the paper's algorithm and ours
///
/// Each has the paper's own settings; what a paper does not say is chosen and told. docs/papers.md
/// has all of them.
#[derive(Debug, Args)]
pub(crate) struct PaperArgs {
    /// Which one; `list` names them, `all` makes all
    #[arg(value_name = "NAME")]
    name: String,
    /// Draw it into a file; with `all`, a directory for NAME.svg of each
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print it as JSON, curves included
    #[arg(long)]
    json: bool,
    /// Print it as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Put the table into DIR/papers.md and the picture into DIR/papers: how this project's own
    /// docs/papers.md is made
    #[arg(long, value_name = "DIR", conflicts_with_all = ["svg", "json", "markdown"])]
    write: Option<PathBuf>,
    /// Decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = Seed(1))]
    seed: Seed,
}

pub(super) fn run(args: &PaperArgs) -> Result<ExitCode> {
    let chosen: Vec<Experiment> = match args.name.as_str() {
        "list" => return list(args),
        "all" => Experiment::ALL.to_vec(),
        name => vec![
            name.parse()
                .map_err(|error| Failure::usage(format!("{error}")))?,
        ],
    };
    let reports = carry_out(&chosen, args.seed);
    if let Some(directory) = &args.write {
        document::write(directory, &reports)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (experiment, report) in &reports {
        if let Some(path) = &args.svg {
            let path = place(path, *experiment, args.name == "all");
            write_picture(&path, &svg(&report.figure)?)?;
        }
    }
    if args.json {
        let values: Vec<Value> = reports
            .iter()
            .map(|(experiment, report)| value(experiment.name(), report))
            .collect();
        match &values[..] {
            [one] if args.name != "all" => output::json(one)?,
            all => output::json(&all)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (index, (experiment, report)) in reports.iter().enumerate() {
        if index > 0 {
            output::line("")?;
        }
        let text = if args.markdown {
            markdown(report)
        } else {
            text(experiment.name(), report)
        };
        output::line(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &PaperArgs) -> Result<ExitCode> {
    if args.json {
        let values = Experiment::ALL.map(|e| json!({ "name": e.name(), "about": e.about() }));
        output::json(&values)?;
    } else {
        let row = |e: Experiment| vec![e.name().to_owned(), e.about().to_owned()];
        let rows: Vec<_> = Experiment::ALL.into_iter().map(row).collect();
        output::line(&output::table(&["name", "what it shows"], &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Part by part, side by side.
fn carry_out(chosen: &[Experiment], seed: Seed) -> Vec<(Experiment, Report)> {
    let parts_of = |experiment: &Experiment| {
        let experiment = *experiment;
        (0..experiment.parts()).map(move |part| (experiment, part))
    };
    let jobs: Vec<(Experiment, usize)> = chosen.iter().flat_map(parts_of).collect();
    let measure = |(experiment, part): &(Experiment, usize)| experiment.measure(*part, seed);
    let mut parts = on_all_processors(&jobs, measure).into_iter();
    let report = |experiment: &Experiment| {
        let own: Vec<Part> = parts.by_ref().take(experiment.parts()).collect();
        (*experiment, experiment.report(own))
    };
    chosen.iter().map(report).collect()
}

fn place(svg: &Path, experiment: Experiment, all: bool) -> PathBuf {
    if all {
        svg.join(format!("{experiment}.svg"))
    } else {
        svg.to_owned()
    }
}

pub(super) fn text(name: &str, report: &Report) -> String {
    let headings: Vec<&str> = report.table.headings.iter().map(String::as_str).collect();
    let mut text = format!("{name}: {}\n", report.title);
    for line in &report.settings {
        text += &format!("  {line}\n");
    }
    text += &format!("\n{}", output::table(&headings, &report.table.rows));
    for note in &report.notes {
        text += &format!("\n\n{note}");
    }
    text
}

pub(super) fn markdown(report: &Report) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let Table { headings, rows } = &report.table;
    let rule = format!("|{}\n", "---|".repeat(headings.len()));
    let body: String = rows.iter().map(|cells| row(cells)).collect();
    format!("{}{rule}{body}", row(headings))
}

pub(super) fn value(name: &str, report: &Report) -> Value {
    json!({
        "name": name,
        "title": report.title,
        "settings": report.settings,
        "table": { "headings": report.table.headings, "rows": report.table.rows },
        "panels": panels(&report.figure),
        "notes": report.notes,
    })
}

fn panels(figure: &Figure) -> Vec<Value> {
    let panel = |panel: &tabane_sim::Panel| {
        let named = panel.curves.iter().filter(|curve| !curve.name.is_empty());
        let curves: Vec<Value> = named
            .map(|curve| json!({ "name": curve.name, "points": curve.points }))
            .collect();
        json!({
            "title": panel.title,
            "x": panel.x,
            "y": panel.y,
            "categories": panel.categories,
            "curves": curves,
        })
    };
    figure.panels.iter().map(panel).collect()
}
