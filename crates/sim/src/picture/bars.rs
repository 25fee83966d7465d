//! Bars that lie, so that the names of what is compared have room.

use plotters::element::{PathElement, Rectangle, Text};
use plotters::prelude::Color;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, Drawn, FAINT, GREY, INK, colour, font, plain};
use crate::figure::{Curve, Panel, Style};

/// Height of one bar, and the room between categories.
const BAR: i32 = 11;
const GAP: i32 = 9;
/// Left of the bars, for names; right of them, for values; below them, for the axis.
const LEFT: i32 = 270;
const RIGHT: i32 = 60;
const BELOW: i32 = 52;

/// What the bars of a panel need; nothing if it has none.
pub(super) fn height(panel: &Panel) -> u32 {
    if panel.categories.is_empty() {
        return 0;
    }
    let rows = panel.categories.len() as i32 * slot(panel);
    (rows + BELOW) as u32
}

fn slot(panel: &Panel) -> i32 {
    let curves = panel
        .curves
        .iter()
        .filter(|curve| curve.style == Style::Bars)
        .count();
    curves as i32 * BAR + GAP
}

pub(super) fn draw(area: &Area<'_>, panel: &Panel) -> Drawn {
    let (width, _) = area.dim_in_pixel();
    let bottom = panel.categories.len() as i32 * slot(panel);
    let most = panel
        .curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|point| point.1);
    let most = most.fold(0.0, f64::max).max(1e-9);
    let scale = f64::from(width as i32 - LEFT - RIGHT) / most;
    let at = |value: f64| LEFT + (value * scale) as i32;
    let step = step(most);
    for tick in (0..)
        .map(|tick| f64::from(tick) * step)
        .take_while(|value| *value <= most)
    {
        let line = [(at(tick), 0), (at(tick), bottom)];
        area.draw(&PathElement::new(line, FAINT.stroke_width(1)))?;
        let style = font(13, INK).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(plain(tick), (at(tick), bottom + 6), style))?;
    }
    let style = font(14, INK).pos(Pos::new(HPos::Center, VPos::Top));
    let middle = (LEFT + width as i32 - RIGHT) / 2;
    area.draw(&Text::new(panel.y.to_owned(), (middle, bottom + 26), style))?;
    for (place, name) in panel.categories.iter().enumerate() {
        let middle = place as i32 * slot(panel) + slot(panel) / 2;
        let style = font(14, INK).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(name.clone(), (LEFT - 10, middle), style))?;
    }
    for (row, curve) in panel.curves.iter().enumerate() {
        draw_curve(area, panel, row, curve, &at)?;
    }
    area.draw(&PathElement::new(
        [(LEFT, 0), (LEFT, bottom)],
        GREY.stroke_width(1),
    ))?;
    Ok(())
}

fn draw_curve(
    area: &Area<'_>,
    panel: &Panel,
    row: usize,
    curve: &Curve,
    at: &dyn Fn(f64) -> i32,
) -> Drawn {
    for &(place, value) in &curve.points {
        let top = place as i32 * slot(panel) + GAP / 2 + row as i32 * BAR;
        let bar = [(LEFT, top), (at(value), top + BAR - 1)];
        area.draw(&Rectangle::new(bar, colour(row).filled()))?;
        let style = font(11, GREY).pos(Pos::new(HPos::Left, VPos::Center));
        let text = format!("{value:.2}");
        area.draw(&Text::new(text, (at(value) + 5, top + BAR / 2), style))?;
    }
    Ok(())
}

/// Between ticks: 1, 2 or 5 times a power of ten, so that there are four to ten of them.
fn step(most: f64) -> f64 {
    let power = 10.0_f64.powf((most / 4.0).log10().floor());
    let fits = |factor: &f64| most / (factor * power) >= 4.0;
    [5.0, 2.0, 1.0].into_iter().find(fits).unwrap_or(1.0) * power
}

#[cfg(test)]
mod tests {
    use super::step;

    #[test]
    fn ticks_are_round_and_few() {
        for (most, expected) in [(18.0, 2.0), (3.9, 0.5), (100.0, 20.0), (0.7, 0.1)] {
            assert!(
                (step(most) - expected).abs() < 1e-12,
                "{most}: {}",
                step(most)
            );
        }
    }
}
