//! Tables and plots as plain values. Drawing and printing them is the shell's.

/// One curve of a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What the legend calls it.
    pub name: String,
    /// How it is drawn.
    pub style: Style,
    /// x and y, in the panel's units; x never falls.
    pub points: Vec<(f64, f64)>,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A measurement, joined.
    Line,
    /// A theory or a limit.
    Dashed,
    /// Single events.
    Dots,
    /// A value for each of the panel's categories; x is the category's place.
    Bars,
}

/// One pair of axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panel {
    /// What is to be seen.
    pub title: String,
    /// What the x axis counts, with its unit.
    pub x: &'static str,
    /// What the y axis counts, with its unit.
    pub y: &'static str,
    /// What the places 0, 1, 2… on the x axis stand for; empty where x is a number.
    pub categories: Vec<String>,
    /// Top of the y axis, if it should not follow from the curves.
    pub y_max: Option<f64>,
    /// The curves, in the order of the legend. Curves of one place in this list have one colour in
    /// all panels of a figure.
    pub curves: Vec<Curve>,
}

/// Panels that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Heading.
    pub title: String,
    /// Settings in a line.
    pub subtitle: String,
    /// Row by row.
    pub panels: Vec<Panel>,
}

/// Rows under headings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns, with units.
    pub headings: Vec<String>,
    /// As many cells each as there are headings.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings.iter().map(|&heading| heading.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.headings.len(), "{cells:?}");
        self.rows.push(cells);
    }
}

impl Curve {
    /// A curve of at most `most` points: means of neighbours where there are more.
    #[must_use]
    pub fn thinned(name: impl Into<String>, points: &[(f64, f64)], most: usize) -> Self {
        let size = points.len().div_ceil(most.max(1)).max(1);
        let mean = |chunk: &[(f64, f64)]| {
            let n = chunk.len() as f64;
            let sum = chunk
                .iter()
                .fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
            (sum.0 / n, sum.1 / n)
        };
        let points = points.chunks(size).map(mean).collect();
        Self {
            name: name.into(),
            style: Style::Line,
            points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_means() {
        let points: Vec<(f64, f64)> = (0..10).map(|i| (f64::from(i), f64::from(i * 2))).collect();
        let curve = Curve::thinned("a", &points, 5);
        assert_eq!(
            curve.points,
            [(0.5, 1.0), (2.5, 5.0), (4.5, 9.0), (6.5, 13.0), (8.5, 17.0)]
        );
        assert_eq!(Curve::thinned("a", &points, 99).points, points);
        assert!(Curve::thinned("a", &[], 5).points.is_empty());
    }
}
