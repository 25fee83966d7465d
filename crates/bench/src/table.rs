//! The tables: aligned for a terminal, or Markdown for the README.

use std::fmt::Write;

use super::contender::measures_stream;
use super::figure::{self, Judgement};
use super::record::{Measurement, Record, ScenarioRecord};
use super::summary::{Cell, Spread, Summary, of};

/// All tables of a run, and what must be known beside them.
pub(super) fn print(record: &Record, markdown: bool) -> String {
    let (streams, bulks): (Vec<_>, Vec<_>) = record
        .scenarios
        .iter()
        .partition(|scenario| measures_stream(&scenario.name));
    let mut text = heading(record);
    let layout = if markdown {
        markdown_table
    } else {
        plain_table
    };
    if !bulks.is_empty() {
        text.push_str(&layout(&bulk_rows(&bulks, record, markdown)));
    }
    if !streams.is_empty() {
        text.push('\n');
        text.push_str(&layout(&stream_rows(&streams)));
    }
    let _ = writeln!(text, "\n{}", figure::total(&record.scenarios));
    if !markdown {
        for scenario in &record.scenarios {
            for note in Summary::new(scenario).notes {
                let _ = writeln!(text, "{}: {note}", scenario.title());
            }
        }
    }
    text
}

fn heading(record: &Record) -> String {
    let conditions = &record.conditions;
    let date = conditions
        .date
        .as_ref()
        .map_or_else(String::new, |date| format!("{date}, "));
    let directions = conditions.directions.iter().map(ToString::to_string);
    let directions = directions.collect::<Vec<_>>().join(" and ");
    let (seconds, repeats) = (conditions.seconds, conditions.repeats);
    let (cpus, cpu, kernel) = (conditions.cpus, &conditions.cpu, &conditions.kernel);
    format!(
        "Mbit/s, {directions} of one TCP connection over {seconds} s, start-up included; median of \
         {repeats} (min-max)\n{date}{cpus} × {cpu}, Linux {kernel}, {}\n\n",
        conditions.tabane
    )
}

fn bulk_rows(scenarios: &[&ScenarioRecord], record: &Record, markdown: bool) -> Vec<Vec<String>> {
    let mut heads = vec!["scenario"];
    heads.extend([
        "each link by TCP",
        "sum",
        "MPTCP cubic",
        "MPTCP bbr",
        "tabane",
    ]);
    heads.extend(["η", "of MPTCP", "one link", "figures"]);
    if !markdown {
        heads.push("CPU s/Gbit");
    }
    let mut rows = vec![heads.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for scenario in scenarios {
        let summary = Summary::new(scenario);
        let is_measured = summary.links.iter().any(|cell| *cell != Cell::Absent);
        let links: Vec<String> = summary.links.iter().map(short).collect();
        let links = if is_measured {
            links.join(" + ")
        } else {
            short(&Cell::Absent)
        };
        // What wires give together is what the processor gives: no aggregate to compare with.
        let is_wire = scenario.rate_bps.is_none();
        let mut row = vec![
            scenario.title(),
            links,
            mbps(summary.links_sum().filter(|_| !is_wire)),
            full(&summary.mptcp_cubic),
            full(&summary.mptcp_bbr),
            full(&summary.tabane),
            ratio(summary.eta().filter(|_| !is_wire)),
            ratio(summary.against_mptcp()),
            ratio(summary.one_link_ratio()),
            Judgement::of(scenario).told(),
        ];
        if !markdown {
            let seconds = record.conditions.seconds;
            let cost = |m: &Measurement| m.cpu_s_per_gbit(seconds);
            let costs = of(scenario, "tabane").filter_map(cost).collect();
            row.push(ratio(Spread::of(costs).map(|spread| spread.median)));
        }
        rows.push(row);
    }
    rows
}

fn stream_rows(scenarios: &[&ScenarioRecord]) -> Vec<Vec<String>> {
    let heads = [
        "scenario",
        "carried by",
        "Mbit/s",
        "longest silence",
        "no byte lost",
        "figures",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for scenario in scenarios {
        let summary = Summary::new(scenario);
        let contenders = [
            ("mptcp cubic", &summary.mptcp_cubic),
            ("mptcp bbr", &summary.mptcp_bbr),
            ("tabane", &summary.tabane),
        ];
        for (contender, goodput) in contenders {
            if *goodput == Cell::Absent {
                continue;
            }
            let verdict = match contender {
                "tabane" => Judgement::of(scenario).told(),
                _ => "–".to_owned(),
            };
            let reports = || of(scenario, contender).filter_map(|m| m.stream.as_ref());
            let silences = Spread::of(reports().map(|report| report.silence_ms_max).collect());
            let all = of(scenario, contender).count();
            let intact = reports().filter(|report| report.intact).count();
            rows.push(vec![
                scenario.name.clone(),
                contender.to_owned(),
                full(goodput),
                silences.map_or_else(
                    || "–".to_owned(),
                    |s| format!("{:.0} ms ({:.0}-{:.0})", s.median, s.min, s.max),
                ),
                format!("{intact} of {all}"),
                verdict,
            ]);
        }
    }
    rows
}

/// The longest reason that a cell gives; notes give all of it.
const REASON: usize = 40;

fn failed(reason: &str) -> String {
    let first: String = reason.chars().take(REASON).collect();
    format!("failed: {}", first.replace('|', "/"))
}

fn short(cell: &Cell) -> String {
    match cell {
        Cell::Absent => "–".to_owned(),
        Cell::Failed(reason) => failed(reason),
        Cell::Measured(spread) => number(spread.median),
    }
}

fn full(cell: &Cell) -> String {
    match cell {
        Cell::Absent => "–".to_owned(),
        Cell::Failed(reason) => failed(reason),
        Cell::Measured(Spread { median, min, max }) => {
            format!("{} ({}-{})", number(*median), number(*min), number(*max))
        }
    }
}

/// Three digits or so, in Mbit/s.
fn number(bps: f64) -> String {
    let mbps = bps / 1e6;
    match mbps {
        _ if mbps >= 1000.0 => format!("{mbps:.0}"),
        _ if mbps >= 1.0 => format!("{mbps:.1}"),
        _ => format!("{mbps:.3}"),
    }
}

fn mbps(bps: Option<f64>) -> String {
    bps.map_or_else(|| "–".to_owned(), number)
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

pub(super) fn plain_table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub(super) fn markdown_table(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_say_what_became_of_it() {
        let spread = Spread {
            median: 47.94e6,
            min: 47e6,
            max: 1234e6,
        };
        assert_eq!(full(&Cell::Measured(spread)), "47.9 (47.0-1234)");
        assert_eq!(full(&Cell::Absent), "–");
        assert_eq!(full(&Cell::Failed("a | b".to_owned())), "failed: a / b");
        assert_eq!(mbps(Some(64e3)), "0.064");
    }

    #[test]
    fn columns_align_and_markdown_has_its_rule() {
        let rows = [["a", "bb"], ["ccc", "η"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(plain_table(&rows), "a    bb\nccc  η\n");
        assert_eq!(
            markdown_table(&rows),
            "| a | bb |\n|---|---|\n| ccc | η |\n"
        );
    }
}
