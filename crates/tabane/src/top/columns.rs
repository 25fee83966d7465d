//! The columns of the table, and which of them a narrow screen leaves out.

use super::app::{History, Row};
use crate::commands::status::{megabits, millis, none, percent};

/// Heights of a column of a sparkline.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A column: narrow screens keep the first ones in the order of `importance`.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: usize,
    importance: u8,
    pub(super) is_text: bool,
    pub(super) value: fn(&Row, &History, usize) -> String,
}

const fn number(
    title: &'static str,
    width: usize,
    importance: u8,
    value: fn(&Row, &History, usize) -> String,
) -> Column {
    Column {
        title,
        width,
        importance,
        is_text: false,
        value,
    }
}

const fn text(
    title: &'static str,
    width: usize,
    importance: u8,
    value: fn(&Row, &History, usize) -> String,
) -> Column {
    Column {
        title,
        width,
        importance,
        is_text: true,
        value,
    }
}

/// Together 79 wide, with the blanks between them.
const COLUMNS: [Column; 11] = [
    text("link", 9, 0, |row, _, _| row.name.clone()),
    text("state", 7, 2, |row, _, _| row.state.to_owned()),
    number("Mbit in", 7, 1, |row, _, _| {
        megabits(row.traffic.received_bps)
    }),
    text("", 9, 8, |_, history, width| {
        sparkline(history.received_bps.iter().copied(), width)
    }),
    number("out", 6, 3, |row, _, _| megabits(row.traffic.sent_bps)),
    text("", 6, 10, |_, history, width| {
        sparkline(history.sent_bps.iter().copied(), width)
    }),
    number("RTT ms", 6, 4, |row, _, _| millis(row.rtt_ms)),
    number("queue", 5, 9, |row, _, _| millis(row.queue_ms)),
    number("loss", 5, 7, |row, _, _| portion(row.traffic.loss)),
    number("share", 5, 5, |row, _, _| portion(row.share)),
    number("wt", 4, 6, |row, _, _| {
        row.weight.map_or_else(none, |weight| weight.to_string())
    }),
];

/// Those that fit `width`, from left to right; at least the first.
pub(super) fn fitting(width: usize) -> Vec<Column> {
    let mut columns: Vec<Column> = COLUMNS.into();
    while columns.len() > 1 && total(&columns) > width {
        let least = columns
            .iter()
            .enumerate()
            .max_by_key(|(_, column)| column.importance)
            .map_or(0, |(at, _)| at);
        columns.remove(least);
    }
    // What is left goes to the pictures, and half as much to names.
    let spare = width.saturating_sub(total(&columns));
    let pictures = columns
        .iter()
        .filter(|column| column.title.is_empty())
        .count();
    for column in &mut columns {
        if column.title.is_empty() {
            column.width += spare / (pictures + 1);
        } else if column.importance == 0 {
            column.width += (spare / (pictures + 1)).min(8);
        }
    }
    columns
}

fn total(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width + 1).sum::<usize>() - 1
}

/// Exactly `column.width` wide.
pub(super) fn cell(column: &Column, text: &str) -> String {
    let width = column.width;
    let shown: String = match text.chars().count() > width {
        true => text
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect(),
        false => text.to_owned(),
    };
    match column.is_text {
        true => format!("{shown:<width$}"),
        false => format!("{shown:>width$}"),
    }
}

/// The newest `width` samples, as high as they are of the highest of them.
fn sparkline(samples: impl DoubleEndedIterator<Item = u64>, width: usize) -> String {
    let newest: Vec<u64> = samples.rev().take(width).collect();
    let highest = newest.iter().copied().max().unwrap_or(0).max(1);
    let bar = |sample: u64| {
        let step = u128::from(sample) * (BARS.len() as u128 - 1) / u128::from(highest);
        BARS[usize::try_from(step).unwrap_or(0).min(BARS.len() - 1)]
    };
    let bars: String = newest.iter().rev().map(|sample| bar(*sample)).collect();
    format!("{bars:>width$}")
}

fn portion(part: Option<f64>) -> String {
    part.map_or_else(none, |part| percent(part, 0).replace(' ', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_screens_keep_what_matters_most() {
        let titles =
            |width| -> Vec<&str> { fitting(width).iter().map(|column| column.title).collect() };
        assert_eq!(titles(79).len(), COLUMNS.len());
        assert_eq!(titles(40), ["link", "state", "Mbit in", "out", "RTT ms"]);
        assert_eq!(titles(5), ["link"]);
        for width in 9..300 {
            let taken = total(&fitting(width));
            assert!(taken <= width, "{width}: {taken}");
        }
    }

    #[test]
    fn a_sparkline_is_as_wide_as_told_and_survives_the_largest_number() {
        assert_eq!(sparkline([0, 50, 100].into_iter(), 5), "  ▁▄█");
        assert_eq!(sparkline([9, 9, 0, u64::MAX].into_iter(), 2), "▁█");
        assert_eq!(sparkline([].into_iter(), 3), "   ");
    }
}
