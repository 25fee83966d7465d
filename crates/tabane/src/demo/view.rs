//! What one sees while downloads run: bars that move on a terminal, else a line per second.
//!
//! Owns the stream it writes to and what stands on the screen. Frames are drawn without wrapping,
//! so that a narrow terminal cuts lines instead of losing its place.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use tabane_base::{Duration, Rate};

use crate::output::{self, bar};

/// Cells of a full bar; bars of links then add up to that of curl.
const BAR_CELLS: usize = 40;
/// Between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(1);
/// Plain lines leave out links below this, where only a router is looked for now and then.
const QUIET: Rate = Rate::from_bps(20_000);
/// Colours of the 256 that terminals have, near those of the plot.
const COLOURS: [u8; 7] = [33, 214, 35, 117, 167, 227, 175];

const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
const CLEAR_BELOW: &str = "\x1b[J";

/// Rates at one moment, for display.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rates {
    pub(crate) elapsed: Duration,
    pub(crate) received: Rate,
    /// In and out, per link.
    pub(crate) links: Vec<(Rate, Rate)>,
}

/// A view on downloads, one after the other.
pub(crate) struct View {
    out: Box<dyn Write>,
    style: Style,
    /// Longest name first in line.
    names: Vec<String>,
    /// What a full bar means.
    full: Rate,
    seconds: u32,
    title: String,
    /// Lines of the present frame.
    drawn: usize,
    /// When the last plain line was due.
    shown_at: Duration,
}

/// How to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Bars { colours: bool },
    Lines,
}

impl Style {
    /// What suits the stream; `plain` insists on lines.
    pub(crate) fn choose(stream: &impl IsTerminal, plain: bool) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if plain || !output::obeys_codes(stream) {
            return Self::Lines;
        }
        Self::Bars {
            // https://no-color.org
            colours: !is_set("NO_COLOR"),
        }
    }
}

impl View {
    /// Nothing is written yet. `full` is the rate of the longest bar.
    pub(crate) fn new(
        out: Box<dyn Write>,
        style: Style,
        names: Vec<String>,
        full: Rate,
        seconds: u32,
    ) -> Self {
        Self {
            out,
            style,
            names,
            full,
            seconds,
            title: String::new(),
            drawn: 0,
            shown_at: Duration::ZERO,
        }
    }

    /// A line that stays.
    pub(crate) fn say(&mut self, text: &str) -> io::Result<()> {
        let rise = self.rise();
        writeln!(self.out, "{rise}{text}")?;
        self.out.flush()
    }

    /// The next download begins.
    pub(crate) fn begin(&mut self, title: &str) {
        title.clone_into(&mut self.title);
        self.shown_at = Duration::ZERO;
    }

    /// The present rates.
    pub(crate) fn show(&mut self, rates: &Rates) -> Result<()> {
        match self.style {
            Style::Bars { colours } => self.draw(rates, colours)?,
            Style::Lines => self.print(rates)?,
        }
        Ok(())
    }

    /// The download is over: what is left of it is one line.
    pub(crate) fn finish(&mut self, rate: Rate) -> Result<()> {
        let bar = match self.style {
            Style::Bars { .. } => bar(rate, self.full, BAR_CELLS),
            Style::Lines => String::new(),
        };
        let line = format!(
            "{:<22}{:>7.1} Mbit/s  {bar}",
            self.title,
            rate.as_mbps_f64()
        );
        Ok(self.say(line.trim_end())?)
    }

    fn draw(&mut self, rates: &Rates, colours: bool) -> io::Result<()> {
        let mut lines = vec![format!(
            "{:<22}{:>4.1} of {} s",
            self.title,
            rates.elapsed.as_secs_f64().min(self.seconds.into()),
            self.seconds
        )];
        let width = self.names.iter().map(|name| name.chars().count()).max();
        let width = width.unwrap_or(0).max("curl".len());
        for (index, (name, (inward, outward))) in self.names.iter().zip(&rates.links).enumerate() {
            let (begin, end) = match COLOURS[index % COLOURS.len()] {
                colour if colours => (format!("\x1b[38;5;{colour}m"), "\x1b[0m"),
                _ => (String::new(), ""),
            };
            lines.push(format!(
                "  {name:<width$}  in {:>6.1} {begin}{:<BAR_CELLS$}{end}  out {:>5.1} \
                 {begin}{}{end}",
                inward.as_mbps_f64(),
                bar(*inward, self.full, BAR_CELLS),
                outward.as_mbps_f64(),
                bar(*outward, self.full, BAR_CELLS),
            ));
        }
        lines.push(format!(
            "  {:<width$}     {:>6.1} {}",
            "curl",
            rates.received.as_mbps_f64(),
            bar(rates.received, self.full, BAR_CELLS)
        ));
        let rise = self.rise();
        write!(self.out, "{rise}{NO_WRAP}{}\n{WRAP}", lines.join("\n"))?;
        self.drawn = lines.len();
        self.out.flush()
    }

    fn print(&mut self, rates: &Rates) -> io::Result<()> {
        if rates.elapsed < self.shown_at + PLAIN_INTERVAL {
            return Ok(());
        }
        self.shown_at += PLAIN_INTERVAL;
        let links = self.names.iter().zip(&rates.links);
        let active =
            |(_, (inward, outward)): &(&String, &(Rate, Rate))| (*inward).max(*outward) >= QUIET;
        let links: Vec<String> = links
            .filter(active)
            .map(|(name, (inward, outward))| {
                let [inward, outward] = [inward, outward].map(|rate| rate.as_mbps_f64());
                format!("{name} {inward:.1} in {outward:.1} out")
            })
            .collect();
        writeln!(
            self.out,
            "{}, {} s: {}; curl {:.1} Mbit/s",
            self.title,
            rates.elapsed.as_secs(),
            links.join(", "),
            rates.received.as_mbps_f64()
        )?;
        self.out.flush()
    }

    /// What brings the cursor to where the present frame begins, and wipes it.
    fn rise(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\r{CLEAR_BELOW}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[derive(Clone, Default)]
    struct Screen(Rc<RefCell<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn rates(millis: u64) -> Rates {
        Rates {
            elapsed: Duration::from_millis(millis),
            received: Rate::from_mbps(30),
            links: [20, 10]
                .map(|mbps| (Rate::from_mbps(mbps), Rate::from_mbps(1)))
                .into(),
        }
    }

    fn shown(style: Style, times: &[u64]) -> String {
        let screen = Screen::default();
        let names = vec!["wifi".to_owned(), "lte".to_owned()];
        let out = Box::new(screen.clone());
        let mut view = View::new(out, style, names, Rate::from_mbps(60), 8);
        view.begin("curl over all");
        for time in times {
            view.show(&rates(*time)).unwrap();
        }
        view.finish(Rate::from_mbps(30)).unwrap();
        let bytes = screen.0.borrow().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_come_once_a_second_and_without_escapes() {
        let text = shown(Style::Lines, &[0, 400, 1_010, 1_100, 1_900, 2_050, 3_000]);
        assert!(!text.contains('\x1b'), "{text:?}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "curl over all, 1 s: wifi 20.0 in 1.0 out, lte 10.0 in 1.0 out; curl 30.0 Mbit/s",
                "curl over all, 2 s: wifi 20.0 in 1.0 out, lte 10.0 in 1.0 out; curl 30.0 Mbit/s",
                "curl over all, 3 s: wifi 20.0 in 1.0 out, lte 10.0 in 1.0 out; curl 30.0 Mbit/s",
                "curl over all            30.0 Mbit/s",
            ]
        );
    }

    /// What a terminal would show: understands exactly what we send.
    fn render(text: &str) -> Vec<String> {
        let mut rows: Vec<String> = vec![String::new()];
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if let Some(escape) = rest.strip_prefix("\x1b[") {
                let end = escape.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                let (argument, kind) = (&escape[..end], &escape[end..=end]);
                match kind {
                    "A" => rows.truncate(rows.len() - argument.parse::<usize>().unwrap()),
                    "J" => rows.last_mut().unwrap().clear(),
                    "l" | "h" | "m" => {}
                    other => panic!("{other}"),
                }
                rest = &escape[end + 1..];
                continue;
            }
            match first {
                '\n' => rows.push(String::new()),
                '\r' => {}
                c => rows.last_mut().unwrap().push(c),
            }
            rest = &rest[first.len_utf8()..];
        }
        rows
    }

    #[test]
    fn frames_replace_each_other() {
        for colours in [false, true] {
            let style = Style::Bars { colours };
            let text = shown(style, &[100, 200, 300]);
            let frames = text.matches("wifi").count();
            assert_eq!(frames, 3, "{text:?}");
            let rows = render(&text);
            assert_eq!(rows.len(), 2, "{rows:?}");
            assert!(rows[0].starts_with("curl over all"), "{rows:?}");
            assert_eq!(text.contains("38;5"), colours);
        }
    }
}
