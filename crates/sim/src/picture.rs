//! Figures as SVG: panels in a grid under one heading and one legend.
//!
//! A curve's colour follows from its place in its panel, so that one legend serves all panels.
//! Curves without a name are not drawn.

mod bands;
mod bars;

use plotters::coord::types::RangedCoordf64;
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Color, DashedLineSeries, DrawingArea, IntoDrawingArea,
    IntoFont, LineSeries, RGBColor, SVGBackend,
};
use plotters::style::{TextStyle, WHITE};

use crate::figure::{Curve, Figure, Panel, Style};

pub use bands::DownloadFigure;

const WIDTH: u32 = 1_000;
/// Height of a panel that has a row to itself, and of one that shares it.
const PANEL_HEIGHT: u32 = 460;
const ROW_HEIGHT: u32 = 300;
const HEADING_HEIGHT: u32 = 70;
const LEGEND_LINE: u32 = 26;
/// What a letter of the legend takes on average.
const LETTER: u32 = 8;

/// Told apart by the colour-blind (Okabe and Ito 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(95, 95, 95),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(225, 225, 225);
const GREY: RGBColor = RGBColor(95, 95, 95);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// An entry of the legend.
struct Entry<'a> {
    name: &'a str,
    style: Style,
    place: usize,
}

/// A figure that cannot be drawn, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct DrawError(String);

/// The figure as an SVG document.
///
/// # Errors
/// The drawing does not work out; of our own figures none is known for which it does not.
pub fn svg(figure: &Figure) -> Result<String, DrawError> {
    let entries = entries(figure);
    let lines = lines(&entries);
    let legend = LEGEND_LINE * lines.len() as u32;
    let (columns, rows) = grid(figure.panels.len());
    let height = HEADING_HEIGHT + legend + panels_height(figure, rows);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        let drawn = draw(figure, &lines, &root, (columns, rows, legend));
        drawn.map_err(|error| DrawError(error.to_string()))?;
        root.present()
            .map_err(|error| DrawError(error.to_string()))?;
    }
    Ok(text)
}

fn grid(panels: usize) -> (usize, usize) {
    let columns = if panels > 2 { 2 } else { 1 };
    (columns, panels.div_ceil(columns).max(1))
}

fn panels_height(figure: &Figure, rows: usize) -> u32 {
    let bars = figure.panels.iter().map(bars::height).max().unwrap_or(0);
    match (bars, rows) {
        (1.., _) => bars * rows as u32,
        (_, 1) => PANEL_HEIGHT,
        (_, rows) => ROW_HEIGHT * rows as u32,
    }
}

/// Every name once, with the colour it has.
fn entries(figure: &Figure) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for panel in &figure.panels {
        for (place, curve) in panel.curves.iter().enumerate() {
            let known = entries.iter().any(|entry| entry.name == curve.name);
            if !known && !curve.name.is_empty() {
                entries.push(Entry {
                    name: &curve.name,
                    style: curve.style,
                    place,
                });
            }
        }
    }
    entries
}

/// The legend's entries, as many to a line as fit.
fn lines<'a>(entries: &'a [Entry<'a>]) -> Vec<Vec<(u32, &'a Entry<'a>)>> {
    let mut lines: Vec<Vec<(u32, &Entry<'_>)>> = Vec::new();
    let mut x = u32::MAX;
    for entry in entries {
        let width = 50 + entry.name.chars().count() as u32 * LETTER;
        if x.saturating_add(width) > WIDTH {
            lines.push(Vec::new());
            x = 24;
        }
        if let Some(line) = lines.last_mut() {
            line.push((x, entry));
        }
        x += width;
    }
    lines
}

fn draw(
    figure: &Figure,
    lines: &[Vec<(u32, &Entry<'_>)>],
    root: &Area<'_>,
    (columns, rows, legend): (usize, usize, u32),
) -> Drawn {
    root.fill(&WHITE)?;
    let (heading, below) = root.split_vertically(HEADING_HEIGHT);
    heading.draw(&Text::new(figure.title.clone(), (24, 16), font(22, INK)))?;
    heading.draw(&Text::new(
        figure.subtitle.clone(),
        (24, 45),
        font(14, GREY),
    ))?;
    let (legend_area, panels) = below.split_vertically(legend);
    for (number, line) in lines.iter().enumerate() {
        for (x, entry) in line {
            let at = (*x as i32, (number as u32 * LEGEND_LINE + 10) as i32);
            draw_entry(&legend_area, at, entry)?;
        }
    }
    for (area, panel) in panels
        .split_evenly((rows, columns))
        .iter()
        .zip(&figure.panels)
    {
        if panel.categories.is_empty() {
            draw_panel(area, panel)?;
        } else {
            bars::draw(area, panel)?;
        }
    }
    Ok(())
}

fn draw_entry(area: &Area<'_>, (x, y): (i32, i32), entry: &Entry<'_>) -> Drawn {
    let colour = colour(entry.place);
    let line = colour.stroke_width(2);
    match entry.style {
        Style::Line => area.draw(&PathElement::new([(x, y), (x + 26, y)], line))?,
        Style::Dashed => {
            for dash in [x, x + 10, x + 20] {
                area.draw(&PathElement::new([(dash, y), (dash + 6, y)], line))?;
            }
        }
        Style::Dots => area.draw(&Circle::new((x + 13, y), 3, colour.filled()))?,
        Style::Bars => {
            area.draw(&Rectangle::new(
                [(x, y - 6), (x + 26, y + 6)],
                colour.filled(),
            ))?;
        }
    }
    area.draw(&Text::new(
        entry.name.to_owned(),
        (x + 34, y - 7),
        font(15, INK),
    ))?;
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Drawn {
    let (left, right, top) = extent(panel);
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_left(12)
        .margin_right(20)
        .margin_bottom(8)
        .margin_top(8);
    builder.x_label_area_size(44).y_label_area_size(58);
    if !panel.title.is_empty() {
        builder.caption(&panel.title, font(15, INK));
    }
    let mut chart = builder.build_cartesian_2d(left..right, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(FAINT)
        .axis_style(GREY)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|value| plain(*value))
        .y_label_formatter(&|value| plain(*value))
        .label_style(font(13, INK))
        .axis_desc_style(font(14, INK))
        .x_desc(panel.x)
        .y_desc(panel.y)
        .draw()?;
    for (place, curve) in panel.curves.iter().enumerate() {
        draw_curve(&mut chart, curve, colour(place))?;
    }
    Ok(())
}

fn draw_curve(chart: &mut Chart<'_, '_>, curve: &Curve, colour: RGBColor) -> Drawn {
    let points = curve.points.iter().copied();
    match curve.style {
        Style::Line => {
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        }
        Style::Dashed => {
            let style = colour.stroke_width(2);
            chart.draw_series(DashedLineSeries::new(points, 7, 5, style))?;
        }
        Style::Dots | Style::Bars => {
            let dot = |point| Circle::new(point, 1, colour.filled());
            chart.draw_series(points.map(dot))?;
        }
    }
    Ok(())
}

/// From where to where the x axis reaches, and how high the y axis.
fn extent(panel: &Panel) -> (f64, f64, f64) {
    let points = || panel.curves.iter().flat_map(|curve| curve.points.iter());
    let least = points().map(|point| point.0).fold(f64::MAX, f64::min);
    let most = points().map(|point| point.0).fold(f64::MIN, f64::max);
    // Time begins at zero; other things where the curves do.
    let left = if least < most * 0.1 { 0.0 } else { least };
    let right = if most > left { most } else { left + 1.0 };
    let highest = points().map(|point| point.1).fold(0.0, f64::max);
    let top = panel.y_max.unwrap_or(0.0).max(highest * 1.08);
    (left, right, if top > 0.0 { top } else { 1.0 })
}

/// Without digits that say nothing.
fn plain(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    format!("{rounded}")
}

fn font(size: u32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

fn colour(place: usize) -> RGBColor {
    COLOURS[place % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(panels: Vec<Panel>) -> Figure {
        Figure {
            title: "a < b".to_owned(),
            subtitle: "c & d".to_owned(),
            panels,
        }
    }

    fn curve(name: &str, style: Style) -> Curve {
        Curve {
            name: name.to_owned(),
            style,
            points: vec![(0.0, 1.0), (1.0, 3.0)],
        }
    }

    #[test]
    fn every_curve_is_in_the_legend_once_and_text_is_escaped() {
        let styles = [Style::Line, Style::Dashed, Style::Dots];
        let curves: Vec<Curve> = styles.map(|style| curve("one & only", style)).to_vec();
        let numbers = Panel {
            x: "time, s",
            y: "Mbit/s",
            curves,
            ..Panel::default()
        };
        let bars = Panel {
            categories: vec!["<1>".to_owned(), "2".to_owned()],
            curves: vec![curve("bars", Style::Bars)],
            ..Panel::default()
        };
        for panels in [
            vec![numbers.clone()],
            vec![bars],
            vec![numbers; 4],
            Vec::new(),
        ] {
            let count = panels.len();
            let svg = svg(&figure(panels)).unwrap();
            assert!(svg.contains("a &lt; b") && svg.contains("c &amp; d"));
            assert!(svg.matches("one &amp; only").count() <= 1, "{count} panels");
            assert!(svg.trim_end().ends_with("</svg>"));
        }
    }

    #[test]
    fn panels_of_nothing_can_be_drawn() {
        let empty = Panel {
            curves: vec![Curve::thinned("none", &[], 9)],
            ..Panel::default()
        };
        assert!(svg(&figure(vec![empty])).unwrap().contains("none"));
    }
}
