//! A download over several links: the rate over all of them by time, one band per link, with what
//! each reaches alone beside it.

use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{
    ChartBuilder, Color, DashedLineSeries, IntoDrawingArea, LineSeries, RGBColor, SVGBackend,
};
use plotters::style::{BLACK, WHITE};
use tabane_base::{Bytes, Duration, Rate};

use super::{Area, Chart, DrawError, Drawn, FAINT, GREY, INK, font};
use crate::download::{Download, DownloadSample};

const SIZE: (u32, u32) = (1_000, 540);
/// Height of the title's part, width of the legend's.
const TITLE_HEIGHT: u32 = 76;
const LEGEND_WIDTH: u32 = 270;
/// Inside the legend: where swatches and texts begin, how wide swatches are.
const LEGEND_LEFT: i32 = 12;
const LEGEND_TEXT: i32 = LEGEND_LEFT + 36;
const SWATCH: i32 = 26;
/// What is left for the rows of the links, and how high each may be.
const LEGEND_ROWS_HEIGHT: i32 = 330;
const MAX_ROW: i32 = 50;
const MIN_ROW: i32 = 10;
/// Each point of a curve is a mean over so much time, and no curve has more points than this.
const BIN: Duration = Duration::from_millis(250);
const BINS_MAX: u32 = 120;

/// Told apart by the colour-blind (Okabe and Ito 2008), in an order in which neighbours differ in
/// grey as well.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
    RGBColor(204, 121, 167),
];

/// What is to be seen.
#[derive(Debug)]
pub struct DownloadFigure<'a> {
    /// Heading.
    pub title: String,
    /// Settings in a line.
    pub subtitle: String,
    /// Per link: its name and what it reaches alone.
    pub alone: Vec<(&'a str, Rate)>,
    /// What the links do when alone, in words.
    pub alone_by: &'a str,
    /// What they reach together.
    pub together: &'a Download,
}

/// Curves over time, in Mbit/s at the middle of each bin.
#[derive(Debug, PartialEq)]
struct Curves {
    seconds: Vec<f64>,
    /// Per link, each upon the ones before it.
    stacked: Vec<Vec<f64>>,
    received: Vec<f64>,
}

impl DownloadFigure<'_> {
    /// The picture as an SVG document.
    ///
    /// # Errors
    /// The drawing does not work out; none is known for which it does not.
    pub fn svg(&self) -> Result<String, DrawError> {
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            let drawn = self.draw(&root);
            drawn.map_err(|error| DrawError(error.to_string()))?;
            root.present()
                .map_err(|error| DrawError(error.to_string()))?;
        }
        Ok(text)
    }

    fn draw(&self, root: &Area<'_>) -> Drawn {
        root.fill(&WHITE)?;
        let (heading, below) = root.split_vertically(TITLE_HEIGHT);
        let (picture, legend) = below.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        heading.draw(&Text::new(self.title.clone(), (24, 18), font(22, INK)))?;
        heading.draw(&Text::new(self.subtitle.clone(), (24, 48), font(14, GREY)))?;
        self.draw_chart(&picture)?;
        self.draw_legend(&legend)?;
        Ok(())
    }

    fn draw_chart(&self, area: &Area<'_>) -> Drawn {
        let curves = curves(self.together);
        let end = self.together.lasted.as_secs_f64();
        let peak = curves.received.iter().copied().fold(self.sum(), f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin_left(12)
            .margin_right(12)
            .margin_bottom(12)
            .x_label_area_size(46)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..end, 0.0..peak * 1.06)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE.mix(0.0))
            .bold_line_style(FAINT)
            .axis_style(GREY)
            .x_labels(10)
            .y_labels(8)
            .x_label_formatter(&|seconds| format!("{seconds}"))
            .y_label_formatter(&|mbps| format!("{mbps}"))
            .label_style(font(13, INK))
            .axis_desc_style(font(14, INK))
            .x_desc("time since curl began, s")
            .y_desc("data received, Mbit/s")
            .draw()?;
        self.draw_bands(&mut chart, &curves, end)?;
        self.draw_levels(&mut chart, end)?;
        let line = curves.points(&curves.received, end);
        chart.draw_series(LineSeries::new(line, BLACK.stroke_width(2)))?;
        Ok(())
    }

    /// Each upon the one before it.
    fn draw_bands(&self, chart: &mut Chart<'_, '_>, curves: &Curves, end: f64) -> Drawn {
        for (index, top) in curves.stacked.iter().enumerate() {
            let bottom = match index.checked_sub(1) {
                Some(below) => curves.stacked[below].clone(),
                None => vec![0.0; top.len()],
            };
            let mut outline = curves.points(top, end);
            outline.extend(curves.points(&bottom, end).into_iter().rev());
            chart.draw_series([Polygon::new(outline, tint(colour(index)).filled())])?;
        }
        Ok(())
    }

    /// Where each band would end if every link gave what it gives alone.
    fn draw_levels(&self, chart: &mut Chart<'_, '_>, end: f64) -> Drawn {
        let mut level = 0.0;
        for (index, (_, rate)) in self.alone.iter().enumerate() {
            level += rate.as_mbps_f64();
            let style = shade(colour(index)).stroke_width(2);
            let line = [(0.0, level), (end, level)];
            chart.draw_series(DashedLineSeries::new(line, 7, 5, style))?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Drawn {
        let bond = self.together.rate().as_mbps_f64();
        let mut y = 14;
        area.draw(&stroke(LEGEND_LEFT, LEGEND_LEFT + SWATCH, y, BLACK))?;
        let text = format!("all links at once: {bond:.1} Mbit/s");
        area.draw(&Text::new(text, (LEGEND_TEXT, y - 7), font(15, INK)))?;
        let text = format!("{:.1} % of the sum", 100.0 * bond / self.sum().max(1e-9));
        area.draw(&Text::new(text, (LEGEND_TEXT, y + 12), font(13, GREY)))?;
        y += 54;
        let rows = i32::try_from(self.alone.len()).unwrap_or(i32::MAX);
        let pitch = (LEGEND_ROWS_HEIGHT / rows.max(1)).clamp(MIN_ROW, MAX_ROW);
        for index in (0..self.alone.len()).rev() {
            self.draw_row(area, index, y, pitch)?;
            y += pitch;
        }
        let notes = [
            format!("sum of the links alone: {:.1} Mbit/s", self.sum()),
            "dashed: each link alone, by".to_owned(),
            format!("{}, one upon the other", self.alone_by),
        ];
        for note in notes {
            area.draw(&Text::new(note, (LEGEND_LEFT, y), font(13, GREY)))?;
            y += 20;
        }
        Ok(())
    }

    /// One link of the legend: two lines where there is room, else one.
    fn draw_row(&self, area: &Area<'_>, index: usize, y: i32, pitch: i32) -> Drawn {
        let (name, alone) = self.alone[index];
        let part = self.together.parts().get(index).copied();
        let [part, alone] = [part.unwrap_or_default(), alone].map(Rate::as_mbps_f64);
        let half = (pitch / 2 - 2).clamp(3, 9);
        let swatch = [(LEGEND_LEFT, y - half), (LEGEND_LEFT + SWATCH, y + half)];
        area.draw(&Rectangle::new(swatch, tint(colour(index)).filled()))?;
        if pitch < MAX_ROW {
            let text = format!("{name}: {part:.1} Mbit/s of it, alone {alone:.1}");
            let size = pitch.clamp(10, 14);
            let place = (LEGEND_TEXT, y - size / 2);
            area.draw(&Text::new(text, place, font(size.unsigned_abs(), INK)))?;
            return Ok(());
        }
        let text = format!("{name}: {part:.1} Mbit/s of it");
        area.draw(&Text::new(text, (LEGEND_TEXT, y - 7), font(15, INK)))?;
        for dash in [0, 10, 20].map(|offset| LEGEND_LEFT + offset) {
            area.draw(&stroke(dash, dash + 6, y + 20, shade(colour(index))))?;
        }
        let text = format!("alone {alone:.1}");
        area.draw(&Text::new(text, (LEGEND_TEXT, y + 13), font(13, GREY)))?;
        Ok(())
    }

    /// Of the links alone, in Mbit/s.
    fn sum(&self) -> f64 {
        self.alone.iter().map(|(_, rate)| rate.as_mbps_f64()).sum()
    }
}

impl Curves {
    /// A curve from the first moment, when nothing has come yet, to the last.
    fn points(&self, values: &[f64], end: f64) -> Vec<(f64, f64)> {
        let inner = self.seconds.iter().copied().zip(values.iter().copied());
        let last = values.last().map(|value| (end, *value));
        [(0.0, 0.0)].into_iter().chain(inner).chain(last).collect()
    }
}

/// A level line from `left` to `right`.
fn stroke(left: i32, right: i32, y: i32, colour: RGBColor) -> PathElement<(i32, i32)> {
    PathElement::new([(left, y), (right, y)], colour.stroke_width(2))
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// For areas: lines in full colour stand out from them.
fn tint(RGBColor(r, g, b): RGBColor) -> RGBColor {
    let lighter = |c: u8| c + (255 - c) / 5 * 2;
    RGBColor(lighter(r), lighter(g), lighter(b))
}

/// For lines upon areas.
fn shade(RGBColor(r, g, b): RGBColor) -> RGBColor {
    let darker = |c: u8| c / 5 * 3;
    RGBColor(darker(r), darker(g), darker(b))
}

/// What the samples say, bin by bin. The bands are in proportion to what the links carry, and so
/// high that they hold exactly the bytes that were received.
fn curves(download: &Download) -> Curves {
    let whole = download.lasted;
    let bins = (whole.as_secs_f64() / BIN.as_secs_f64()).round() as u32;
    let bins = bins.clamp(2, BINS_MAX);
    let width = whole / bins;
    let edges: Vec<Duration> = (0..=bins)
        .map(|bin| download.begun_at + width * bin)
        .collect();
    let carried: Bytes = download.carried().into_iter().sum();
    let scale = download.received.get() as f64 / carried.get().max(1) as f64;
    let rates = |count: &dyn Fn(&DownloadSample) -> Bytes, scale: f64| -> Vec<f64> {
        let at_edges = edges.iter().map(|edge| at(&download.samples, *edge, count));
        let at_edges: Vec<f64> = at_edges.collect();
        let steps = at_edges.windows(2);
        steps
            .map(|step| (step[1] - step[0]) * scale * 8.0 / 1e6 / width.as_secs_f64())
            .collect()
    };
    let links = download
        .samples
        .first()
        .map_or(0, |sample| sample.links.len());
    let mut stacked: Vec<Vec<f64>> = Vec::new();
    for link in 0..links {
        let mut band = rates(&|sample| sample.links[link].down, scale);
        if let Some(below) = stacked.last() {
            band.iter_mut()
                .zip(below)
                .for_each(|(top, below)| *top += below);
        }
        stacked.push(band);
    }
    Curves {
        seconds: (0..bins)
            .map(|bin| (f64::from(bin) + 0.5) * width.as_secs_f64())
            .collect(),
        stacked,
        received: rates(&|sample| sample.received, 1.0),
    }
}

/// A counter at `time`, between the samples before and after it.
fn at(samples: &[DownloadSample], time: Duration, count: &dyn Fn(&DownloadSample) -> Bytes) -> f64 {
    let after = samples.partition_point(|sample| sample.at < time);
    let value = |sample: &DownloadSample| count(sample).get() as f64;
    match (
        after.checked_sub(1).and_then(|before| samples.get(before)),
        samples.get(after),
    ) {
        (Some(before), Some(after)) => {
            let span = (after.at - before.at).as_secs_f64().max(1e-9);
            let part = (time - before.at).as_secs_f64() / span;
            value(before) + (value(after) - value(before)) * part
        }
        (Some(edge), None) | (None, Some(edge)) => value(edge),
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::LinkTraffic;

    /// Two links of 20 and 10 Mbit/s for 3 s, of which 28 are payload, after 0.5 s of nothing.
    fn download() -> Download {
        let sample = |number: u32| {
            let at = Duration::from_millis(100) * number;
            let active = u64::from(number.saturating_sub(5));
            let link = |bytes: u64| LinkTraffic {
                down: Bytes::new(99 + active * bytes),
                up: Bytes::ZERO,
            };
            DownloadSample {
                at,
                received: Bytes::new(active * 350_000),
                links: vec![link(250_000), link(125_000)],
            }
        };
        let samples: Vec<DownloadSample> = (0..=35).map(sample).collect();
        Download {
            received: samples[35].received,
            lasted: Duration::from_secs(3),
            begun_at: Duration::from_millis(500),
            samples,
        }
    }

    #[test]
    fn the_bands_add_up_to_what_curl_receives() {
        let curves = curves(&download());
        assert_eq!(curves.seconds.len(), 12);
        assert_eq!(curves.seconds[0], 0.125);
        for (bin, received) in curves.received.iter().enumerate() {
            let [lower, upper] = [0, 1].map(|link: usize| curves.stacked[link][bin]);
            assert!((received - 28.0).abs() < 0.01, "{received}");
            assert!((upper - 28.0).abs() < 0.01, "{upper}");
            assert!((lower - 28.0 * 2.0 / 3.0).abs() < 0.01, "{lower}");
        }
    }

    #[test]
    fn the_picture_is_well_formed_whatever_links_are_called() {
        let download = download();
        let plot = DownloadFigure {
            title: "a < b & \"c\"".to_owned(),
            subtitle: String::new(),
            alone: vec![
                ("<wifi>", Rate::from_mbps(19)),
                ("l&te", Rate::from_mbps(9)),
            ],
            alone_by: "plain TCP",
            together: &download,
        };
        let svg = plot.svg().unwrap();
        assert_well_formed(&svg);
        for text in [
            "&lt;wifi&gt;",
            "Mbit/s",
            "time since curl began",
            "alone 19.0",
        ] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn a_download_of_nothing_is_drawn_as_nothing() {
        let empty = Download {
            received: Bytes::ZERO,
            lasted: Duration::from_millis(1),
            begun_at: Duration::ZERO,
            samples: Vec::new(),
        };
        let plot = DownloadFigure {
            title: String::new(),
            subtitle: String::new(),
            alone: vec![("a", Rate::from_mbps(1))],
            alone_by: "",
            together: &empty,
        };
        assert_well_formed(&plot.svg().unwrap());
    }

    /// Every element is closed by its own name, and no text has a bare `<` or `&`.
    fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = svg;
        let mut elements = 0;
        while let Some((text, behind)) = rest.split_once('<') {
            for entity in text.split('&').skip(1) {
                let name = entity.split_once(';').map(|(name, _)| name);
                let known = name.is_some_and(|name| {
                    name.starts_with('#') || ["amp", "lt", "gt", "quot", "apos"].contains(&name)
                });
                assert!(known, "{entity}");
            }
            let (tag, after) = behind.split_once('>').unwrap();
            rest = after;
            if tag.starts_with(['?', '!']) {
                continue;
            }
            elements += 1;
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name.trim()));
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().unwrap());
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
        assert!(
            open.is_empty() && rest.trim().is_empty(),
            "{open:?} {rest:?}"
        );
        assert!(elements > 20, "{elements}");
    }
}
