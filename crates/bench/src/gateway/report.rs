//! Cells as a person reads them: a line each while they come, a table at the end.

use std::fmt::Write as _;

use super::transfer::Transfer;
use super::{Cell, Mode, Sender};

/// A cell in a line, for whoever waits.
pub(super) fn told(cell: &Cell) -> String {
    let mut text = format!("{} {:?} {}:", cell.link, cell.sender, cell.congestion);
    for measured in &cell.measured {
        let number = |of: fn(&Transfer) -> f64| measured.median(of).unwrap_or(f64::NAN);
        let _ = write!(
            text,
            " {} {:.2} Mbit/s, {:.2} % again, {} timeouts, {} undone, goodput {:.4};",
            measured.mode.name(),
            number(|t| t.mbps),
            number(|t| t.again_percent),
            number(|t| t.timeouts as f64),
            number(|t| t.undone as f64),
            number(|t| t.goodput),
        );
        for why in &measured.failed {
            let _ = write!(text, " failed: {why};");
        }
    }
    text
}

pub(super) fn table(cells: &[Cell]) -> (String, bool) {
    let modes: Vec<Mode> = cells.first().map_or_else(Vec::new, |cell| {
        cell.measured.iter().map(|measured| measured.mode).collect()
    });
    let mut text = "| link | sender | TCP |".to_owned();
    for mode in &modes {
        let _ = write!(
            text,
            " {0}, Mbit/s | of off | sent again, % | timeouts, undone | useful, % |",
            mode.name()
        );
    }
    text += " figure |\n|---|---|---|";
    text += &"---|---|---|---|---|".repeat(modes.len());
    text += "---|\n";
    let mut all_reached = true;
    for cell in cells {
        let sender = match cell.sender {
            Sender::Modern => "modern",
            Sender::Bare => "bare",
        };
        let _ = write!(text, "| {} | {sender} | {} |", cell.link, cell.congestion);
        for measured in &cell.measured {
            let value = |of: fn(&Transfer) -> f64| measured.median(of);
            let Some(mbps) = value(|t| t.mbps) else {
                text += " failed | – | – | – | – |";
                continue;
            };
            let number = |of| value(of).unwrap_or(f64::NAN);
            let gain = cell.gain(measured.mode).unwrap_or(f64::NAN);
            let _ = write!(
                text,
                " {mbps:.2} | {gain:.2} | {:.2} | {:.0}, {:.0} | {:.1} |",
                number(|t| t.again_percent),
                number(|t| t.timeouts as f64),
                number(|t| t.undone as f64),
                number(|t| 100.0 * t.goodput),
            );
        }
        let missed = cell.missed();
        all_reached &= missed.is_empty();
        let verdict = if missed.is_empty() {
            "reached".to_owned()
        } else {
            format!("missed: {}", missed.join(", "))
        };
        let _ = writeln!(text, " {verdict} |");
    }
    (text, all_reached)
}
