//! The papers' experiments, reproduced with the shipped engine, and our default beside each.
//!
//! Every experiment has the paper's settings; what the papers do not say is chosen here and told
//! in the report. Each module says where its numbers come from. Everything runs in virtual time
//! from one seed, so a report repeats to the last digit.

use std::fmt;
use std::str::FromStr;

use tabane_base::{Rate, Seed};
use thiserror::Error;

mod arena;
pub mod arms;
mod cross;
pub mod gateway;
mod open_loop;
mod report;
pub mod rmtcp;
pub mod sbam;
mod sequence;
pub mod shake;

pub use report::Report;
pub use sequence::Sequence;

/// A table or figure of one of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Throughput of two equal cards.
    SbamTable2,
    /// Throughput of two unequal cards.
    SbamTable4,
    /// Sequence numbers by arrival: equal cards.
    SbamFig7,
    /// One card delayed by 50 ms.
    SbamFig8,
    /// Unequal cards.
    SbamFig9,
    /// Times for 20 MByte over pairs of paths.
    ArmsTable1,
    /// Throughput by the lower path's delay.
    RmtcpFig5,
    /// Bytes in the receive window: round robin.
    RmtcpFig6,
    /// Bytes in the receive window: distribution.
    RmtcpFig7,
    /// Throughput and goodput over a link that delays.
    GatewayTable1,
    /// Web throughput by file size over one and two equal links.
    ShakeExp1,
    /// First HEAD against first Partial GET, by threshold.
    ShakeExp2,
    /// One to three unequal links.
    ShakeExp3,
}

/// No experiment bears this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no experiment called {0:?}; `tabane sim paper list` shows them")]
pub struct UnknownExperiment(String);

impl Experiment {
    /// All of them, by paper.
    pub const ALL: [Self; 13] = [
        Self::SbamTable2,
        Self::SbamTable4,
        Self::SbamFig7,
        Self::SbamFig8,
        Self::SbamFig9,
        Self::ArmsTable1,
        Self::RmtcpFig5,
        Self::RmtcpFig6,
        Self::RmtcpFig7,
        Self::GatewayTable1,
        Self::ShakeExp1,
        Self::ShakeExp2,
        Self::ShakeExp3,
    ];

    /// What it is called on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SbamTable2 => "sbam-table2",
            Self::SbamTable4 => "sbam-table4",
            Self::SbamFig7 => "sbam-fig7",
            Self::SbamFig8 => "sbam-fig8",
            Self::SbamFig9 => "sbam-fig9",
            Self::ArmsTable1 => "arms-table1",
            Self::RmtcpFig5 => "rmtcp-fig5",
            Self::RmtcpFig6 => "rmtcp-fig6",
            Self::RmtcpFig7 => "rmtcp-fig7",
            Self::GatewayTable1 => "gateway-table1",
            Self::ShakeExp1 => "shake-exp1",
            Self::ShakeExp2 => "shake-exp2",
            Self::ShakeExp3 => "shake-exp3",
        }
    }

    /// What it shows, in a line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::SbamTable2 => "throughput over two equal 802.11b cards",
            Self::SbamTable4 => "throughput over two unequal cards",
            Self::SbamFig7 => "sequence numbers by arrival, equal cards",
            Self::SbamFig8 => "sequence numbers by arrival, one card delayed by 50 ms",
            Self::SbamFig9 => "sequence numbers by arrival, unequal cards",
            Self::ArmsTable1 => "time for 20 MByte over every pair of four paths",
            Self::RmtcpFig5 => "throughput by the lower path's delay, with theory",
            Self::RmtcpFig6 => "bytes waiting in the receive window, round robin",
            Self::RmtcpFig7 => "bytes waiting in the receive window, distribution",
            Self::GatewayTable1 => "throughput and goodput over a radio link that delays",
            Self::ShakeExp1 => "web throughput by file size over two links, figure 6",
            Self::ShakeExp2 => "first HEAD against first Partial GET, figure 7",
            Self::ShakeExp3 => "web throughput over one to three links, figures 8 and 9",
        }
    }

    /// How many parts it has that can be measured apart, on as many threads as there are.
    #[must_use]
    pub fn parts(self) -> usize {
        match self {
            Self::RmtcpFig5 => rmtcp::POINTS,
            Self::SbamTable2
            | Self::SbamTable4
            | Self::SbamFig7
            | Self::SbamFig8
            | Self::SbamFig9
            | Self::ArmsTable1
            | Self::RmtcpFig6
            | Self::RmtcpFig7
            | Self::GatewayTable1
            | Self::ShakeExp1
            | Self::ShakeExp2
            | Self::ShakeExp3 => 1,
        }
    }

    /// Measures one part, counted from 0.
    #[must_use]
    pub fn measure(self, part: usize, seed: Seed) -> Part {
        Part::Whole(match self {
            Self::RmtcpFig5 => return Part::Point(rmtcp::figure5_point(part, seed)),
            Self::SbamTable2 => sbam::table2(seed),
            Self::SbamTable4 => sbam::table4(seed),
            Self::SbamFig7 => sbam::figure(7, seed),
            Self::SbamFig8 => sbam::figure(8, seed),
            Self::SbamFig9 => sbam::figure(9, seed),
            Self::ArmsTable1 => arms::table1(seed),
            Self::RmtcpFig6 => rmtcp::figure6(seed),
            Self::RmtcpFig7 => rmtcp::figure7(seed),
            Self::GatewayTable1 => gateway::table1(seed),
            Self::ShakeExp1 => shake::experiment1(seed),
            Self::ShakeExp2 => shake::experiment2(seed),
            Self::ShakeExp3 => shake::experiment3(seed),
        })
    }

    /// What its parts, in their order, come to.
    ///
    /// # Panics
    /// When they are not all of its parts.
    #[must_use]
    pub fn report(self, parts: Vec<Part>) -> Report {
        assert_eq!(parts.len(), self.parts(), "{self} is not whole");
        let mut points = Vec::new();
        for part in parts {
            match part {
                Part::Whole(report) => return report,
                Part::Point(rate) => points.push(rate),
            }
        }
        rmtcp::figure5(&points)
    }

    /// Carries it out, part by part.
    #[must_use]
    pub fn run(self, seed: Seed) -> Report {
        let parts = (0..self.parts()).map(|part| self.measure(part, seed));
        self.report(parts.collect())
    }
}

/// What one part of an experiment came to.
#[derive(Clone, Debug)]
pub enum Part {
    /// The experiment has no other part.
    Whole(Report),
    /// A point of a curve.
    Point(Rate),
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Experiment {
    type Err = UnknownExperiment;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL
            .into_iter()
            .find(|experiment| experiment.name() == name);
        known.ok_or_else(|| UnknownExperiment(name.to_owned()))
    }
}
