//! What commands print: text, tables, JSON to stdout, notes to stderr.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use serde::Serialize;
use tabane_base::Rate;

/// Why a command fails whose output is not kept.
pub(crate) const UNWRITTEN: &str = "cannot write to standard output";

/// Prints `text` and a line end. Fails, without panic, when nobody reads it.
pub(crate) fn line(text: &str) -> Result<()> {
    drawn(&printable(text))
}

/// The same of what has codes for the terminal, and nothing of anybody else's in it.
pub(crate) fn drawn(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.context(UNWRITTEN)
}

/// Prints `text` and a line end to stderr, for who reads there; if nobody does, nothing is missed.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(&text.to_string()));
}

/// Whether codes (ECMA-48) are for this stream: it is a terminal, and one that obeys them.
pub(crate) fn obeys_codes(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// What peers, servers and files say may hold codes that a terminal obeys: none passes (ECMA-48).
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_code = |c: char| c.is_control() && c != '\n' && c != '\t';
    match text.contains(is_code) {
        true => text.replace(is_code, " ").into(),
        false => text.into(),
    }
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Rows under headings, columns as wide as they need to be, without trailing spaces.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = headings
        .iter()
        .enumerate()
        .map(|(column, heading)| {
            let longest = cells(column)
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0);
            longest.max(heading.chars().count())
        })
        .collect();
    let row_text = |cells: Vec<&str>| {
        let padded = cells
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![row_text(headings.to_vec())];
    lines.extend(
        rows.iter()
            .map(|row| row_text(row.iter().map(String::as_str).collect())),
    );
    lines.join("\n")
}

/// A heading, and what stands below it in the row of an item.
pub(crate) type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// A table with a row for each item.
pub(crate) fn items<T>(items: &[T], columns: &[Column<'_, T>]) -> String {
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let row = |item| columns.iter().map(|(_, cell)| cell(item)).collect();
    let rows: Vec<Vec<String>> = items.iter().map(row).collect();
    table(&headings, &rows)
}

/// `1 stream`, `2 streams`: of things whose plural takes an s.
pub(crate) fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Three digits or so.
pub(crate) fn short(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// `wlan0 73 %, usb0 27 %`: what each had of all; those that had nothing are left out.
pub(crate) fn shares<'a>(amounts: impl Iterator<Item = (&'a str, u64)> + Clone) -> String {
    let all: u64 = amounts.clone().map(|(_, amount)| amount).sum();
    let used = amounts.filter(|(_, amount)| *amount > 0);
    let shares = used.map(|(name, amount)| {
        let percent = amount as f64 * 100.0 / all as f64;
        format!("{name} {percent:.0} %")
    });
    shares.collect::<Vec<_>>().join(", ")
}

/// A bar of `rate`, where `full` has `cells` cells; eighths of cells where it ends.
pub(crate) fn bar(rate: Rate, full: Rate, cells: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = (rate.as_bps() as f64 / full.as_bps().max(1) as f64).min(1.0);
    let eighths = (share * cells as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// How long ago something was, in the largest unit that fits.
pub(crate) fn age(seconds: u64) -> String {
    format!("{} ago", span(seconds))
}

/// In how long something will be, to the nearest unit: what lasts a week ends in 7 days a second
/// later too.
pub(crate) fn ahead(seconds: u64) -> String {
    let half_a_unit = match seconds {
        0..60 => 0,
        60..3_600 => 30,
        3_600..86_400 => 1_800,
        _ => 43_200,
    };
    format!("in {}", span(seconds + half_a_unit))
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stranger_s_code_reaches_the_terminal() {
        let said = "spoilt\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}[2K\rwhole\u{9b}1A";
        let shown = printable(said);
        assert_eq!(shown, "spoilt ]52;c;ZXZpbA==  [2K whole 1A");
        assert_eq!(printable("a\tb\nc é"), "a\tb\nc é");
    }

    #[test]
    fn one_is_singular_and_none_is_plural() {
        let texts = [0, 1, 2].map(|number| count(number, "stream"));
        assert_eq!(texts, ["0 streams", "1 stream", "2 streams"]);
    }

    #[test]
    fn bars_are_as_long_as_rates_are_high() {
        let full = Rate::from_mbps(80);
        assert_eq!(bar(Rate::from_mbps(20), full, 8), "██");
        assert_eq!(bar(Rate::from_mbps(25), full, 8), "██▌");
        assert_eq!(bar(Rate::from_mbps(99), full, 8), "████████");
        assert_eq!(bar(Rate::ZERO, full, 8), "");
        assert_eq!(bar(Rate::from_mbps(1), Rate::ZERO, 2), "██");
    }

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows = [
            vec!["a".into(), "long cell".into()],
            vec!["wider".into(), "b".into()],
        ];
        assert_eq!(
            table(&["x", "y"], &rows),
            "x      y\na      long cell\nwider  b"
        );
    }
}
