//! `tabane sim paper`: the papers' tables and figures, with ours beside them.

mod document;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use tabane_base::Seed;
use tabane_sim::{
    Figure, Table,
    papers::{Experiment, Part, Report},
    svg,
};

use super::write_picture;
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
            .map(|(experiment, report)| value(*experiment, report))
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
            text(*experiment, report)
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

/// Part by part, on as many threads as the machine has: parts share nothing.
fn carry_out(chosen: &[Experiment], seed: Seed) -> Vec<(Experiment, Report)> {
    let parts_of = |experiment: &Experiment| {
        let experiment = *experiment;
        (0..experiment.parts()).map(move |part| (experiment, part))
    };
    let jobs: Vec<(Experiment, usize)> = chosen.iter().flat_map(parts_of).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let Some((experiment, part)) = jobs.get(job) else {
                return done;
            };
            done.push((job, experiment.measure(*part, seed)));
        }
    };
    let mut done: Vec<(usize, Part)> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let finished = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            // The simulator asserts what the engine promises; its words are on stderr already.
            Err(panic) => std::panic::resume_unwind(panic),
        });
        finished.flatten().collect()
    });
    done.sort_by_key(|(job, _)| *job);
    let mut parts = done.into_iter().map(|(_, part)| part);
    let report = |experiment: &Experiment| {
        let own = parts.by_ref().take(experiment.parts()).collect();
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

fn text(experiment: Experiment, report: &Report) -> String {
    let headings: Vec<&str> = report.table.headings.iter().map(String::as_str).collect();
    let mut text = format!("{experiment}: {}\n", report.title);
    for line in &report.settings {
        text += &format!("  {line}\n");
    }
    text += &format!("\n{}", output::table(&headings, &report.table.rows));
    for note in &report.notes {
        text += &format!("\n\n{note}");
    }
    text
}

fn markdown(report: &Report) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let Table { headings, rows } = &report.table;
    let rule = format!("|{}\n", "---|".repeat(headings.len()));
    let body: String = rows.iter().map(|cells| row(cells)).collect();
    format!("{}{rule}{body}", row(headings))
}

fn value(experiment: Experiment, report: &Report) -> Value {
    json!({
        "name": experiment.name(),
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
