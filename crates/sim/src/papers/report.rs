//! What an experiment gives to whoever prints or draws it.

use tabane_base::Rate;

use crate::figure::{Figure, Table};

/// An experiment's outcome, beside the paper's.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it is, with the paper's number.
    pub title: &'static str,
    /// The paper's settings, and what had to be chosen, line by line.
    pub settings: Vec<String>,
    /// The paper's values and ours.
    pub table: Table,
    /// The paper's plot, or its table as bars.
    pub figure: Figure,
    /// What to know about differences.
    pub notes: Vec<String>,
}

pub(crate) fn mbps(rate: Rate) -> String {
    format!("{:.2}", rate.as_mbps_f64())
}

/// A cell for which there is no value.
pub(crate) fn none() -> String {
    "–".to_owned()
}
