//! The progress of a fetch on the terminal: a bar, and a line for each link.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Instant;

use tabane_base::{Bytes, Rate};
use tabane_fetch::Progress;

use crate::output::short;

/// Cells of the bar, where there is room.
const BAR: usize = 30;
/// The terminal's columns, where it does not say.
const COLUMNS: usize = 80;

/// Draws over what it has drawn before.
pub(super) struct Meter {
    is_shown: bool,
    /// Lines on the terminal that are ours.
    lines: usize,
    /// What there was when the fetch began: nothing of it counts as fast.
    first: Option<(Instant, u64)>,
}

impl Meter {
    /// One that is silent where `is_shown` is not.
    pub(super) const fn new(is_shown: bool) -> Self {
        Self {
            is_shown,
            lines: 0,
            first: None,
        }
    }

    /// Draws how far it is.
    pub(super) fn show(&mut self, progress: &Progress) {
        if !self.is_shown {
            return;
        }
        let now = Instant::now();
        let (began_at, before) = *self.first.get_or_insert((now, progress.received));
        let fresh = Bytes::new(progress.received.saturating_sub(before));
        let rate = Rate::of(fresh, now - began_at);
        let columns =
            terminal_size::terminal_size().map_or(COLUMNS, |(columns, _)| columns.0.into());
        let lines = picture(progress, (fresh > Bytes::ZERO).then_some(rate), columns);
        let mut text = self.erasure();
        for line in &lines {
            let _ = writeln!(text, "{line}");
        }
        self.lines = lines.len();
        put(&text);
    }

    /// Leaves the terminal as it was.
    pub(super) fn clear(&mut self) {
        if self.lines > 0 {
            put(&self.erasure());
            self.lines = 0;
        }
    }

    /// Back to where our first line begins, and everything from there on away.
    fn erasure(&self) -> String {
        match self.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\r\x1b[J"),
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A terminal that is gone is nobody's loss.
fn put(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Lines of fewer than `columns`: one that the terminal breaks would count as two.
fn picture(progress: &Progress, rate: Option<Rate>, columns: usize) -> Vec<String> {
    let room = columns.saturating_sub(1);
    let mbps = |rate: Option<Rate>| rate.map_or_else(|| "–".into(), |r| short(r.as_mbps_f64()));
    let total = match progress.length {
        Some(length) if length > 0 => {
            let percent = progress.received * 100 / length;
            let left = rate.filter(|rate| *rate > Rate::ZERO).map(|rate| {
                let rest = Bytes::new(length.saturating_sub(progress.received));
                format!(", {} s left", rate.time_for(rest).as_secs())
            });
            let text = format!(
                " {percent:>3} %  {} of {}  {} Mbit/s{}",
                Bytes::new(progress.received),
                Bytes::new(length),
                mbps(rate),
                left.unwrap_or_default()
            );
            let cells = BAR.min(room.saturating_sub(text.chars().count()));
            let filled = (progress.received * cells as u64 / length).min(cells as u64) as usize;
            format!("{}{}{text}", "█".repeat(filled), "░".repeat(cells - filled))
        }
        _ => format!("{}  {} Mbit/s", Bytes::new(progress.received), mbps(rate)),
    };
    let width = progress.links.iter().map(|link| link.name.chars().count());
    let width = width.max().unwrap_or(0);
    let mut lines = vec![total];
    for link in &progress.links {
        let state = match (link.is_gone, link.requests) {
            (true, _) => "gone".to_owned(),
            (false, 0) => "idle".to_owned(),
            (false, _) => format!("{} Mbit/s", mbps(link.rate)),
        };
        lines.push(format!(
            "  {:<width$}  {:>9}  {state}",
            link.name,
            Bytes::new(link.carried).to_string()
        ));
    }
    if let Some(trouble) = &progress.trouble {
        let text: String = trouble.chars().filter(|c| !c.is_control()).collect();
        lines.push(format!("  last trouble: {text}"));
    }
    let fit = |line: String| line.chars().take(room).collect();
    lines.into_iter().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_fetch::LinkProgress;

    #[test]
    fn a_bar_and_a_line_for_each_link() {
        let link = |name: &str, carried, requests, is_gone| LinkProgress {
            name: name.to_owned(),
            carried,
            rate: Some(Rate::from_mbps(8)),
            requests,
            is_gone,
        };
        let progress = Progress {
            received: 500_000,
            length: Some(1_000_000),
            links: vec![
                link("wlan0", 400_000, 1, false),
                link("usb0", 100_000, 0, true),
            ],
            ..Progress::default()
        };
        let lines = picture(&progress, Some(Rate::from_mbps(4)), 100);
        assert_eq!(
            lines,
            [
                "███████████████░░░░░░░░░░░░░░░  50 %  500.0 kB of 1.0 MB  4.0 Mbit/s, 1 s left",
                "  wlan0   400.0 kB  8.0 Mbit/s",
                "  usb0    100.0 kB  gone",
            ]
        );
    }

    #[test]
    fn no_line_is_as_wide_as_the_terminal() {
        let progress = Progress {
            received: 99_900_000,
            length: Some(99_990_000_000),
            trouble: Some("the server closed the connection early, ".repeat(4)),
            ..Progress::default()
        };
        for columns in [20, 40, 80, 200] {
            let lines = picture(&progress, Some(Rate::from_mbps(1)), columns);
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert!(widest.unwrap() < columns, "{columns}: {lines:?}");
        }
        let [bar, _] = &picture(&progress, Some(Rate::from_mbps(1)), 80)[..] else {
            panic!("a bar and the trouble");
        };
        assert!(bar.contains('░') && bar.ends_with(" s left"), "{bar}");
    }
}
