//! ARMS (SCTP, one association over all addresses): table 1.
//!
//! 20 MByte over one or two paths of 1 or 2 Mbit/s and 30 or 60 ms there and back, made by
//! dummynet. The paper does not say how long dummynet's queues were: we take its default, 50
//! packets, which explains the table. Beside it the delay-bandwidth products (at most 15 kB) are
//! small, so the congestion windows of unequal paths, and with them the shares of the paper's
//! rule, are nearly equal: both paths carry what the slower one can, twice 0.9 Mbit/s.

use tabane_base::{Bytes, Duration, Rate, Seed};
use tabane_core::{ControllerKind, SchedulerKind, SessionConfig};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};

use super::arena::{self, Load, Plan};

mod report;

pub(super) use report::table1;
pub use report::{PAPERS_RULE, ours, times};

/// What is sent in the paper.
pub const TRANSFER: Bytes = Bytes::mega(20);
/// dummynet's default, in full packets.
const QUEUE: Bytes = Bytes::new(50 * 1_500);
/// Ten times what the slowest cell needs.
const DURATION: Duration = Duration::from_secs(2_000);

/// One of the emulated paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArmsPath {
    /// In Mbit/s.
    pub mbps: u64,
    /// There and back, in ms.
    pub rtt_ms: u64,
}

impl ArmsPath {
    fn link(self, name: &str) -> LinkSpec {
        let config = LinkConfig {
            rate: RateModel::Constant(Rate::from_mbps(self.mbps)),
            queue: QUEUE,
            delay: Duration::from_millis(self.rtt_ms) / 2,
            ..LinkConfig::wire()
        };
        LinkSpec {
            name: name.to_owned(),
            up: config.clone(),
            down: config,
        }
    }
}

/// A cell of table 1.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The row.
    pub first: ArmsPath,
    /// The column.
    pub second: Option<ArmsPath>,
    /// Seconds for 20 MByte in the paper.
    pub paper_seconds: f64,
}

/// Table 1, row by row.
pub const TABLE: [Cell; 14] = {
    const M1_30: ArmsPath = ArmsPath {
        mbps: 1,
        rtt_ms: 30,
    };
    const M1_60: ArmsPath = ArmsPath {
        mbps: 1,
        rtt_ms: 60,
    };
    const M2_30: ArmsPath = ArmsPath {
        mbps: 2,
        rtt_ms: 30,
    };
    const M2_60: ArmsPath = ArmsPath {
        mbps: 2,
        rtt_ms: 60,
    };
    const fn cell(first: ArmsPath, second: Option<ArmsPath>, paper_seconds: f64) -> Cell {
        Cell {
            first,
            second,
            paper_seconds,
        }
    }
    [
        cell(M1_30, None, 175.78),
        cell(M1_30, Some(M1_30), 92.51),
        cell(M1_60, None, 180.74),
        cell(M1_60, Some(M1_30), 92.61),
        cell(M1_60, Some(M1_60), 93.82),
        cell(M2_30, None, 90.48),
        cell(M2_30, Some(M1_30), 84.85),
        cell(M2_30, Some(M1_60), 84.78),
        cell(M2_30, Some(M2_30), 46.45),
        cell(M2_60, None, 95.26),
        cell(M2_60, Some(M1_30), 84.81),
        cell(M2_60, Some(M1_60), 84.79),
        cell(M2_60, Some(M2_30), 47.15),
        cell(M2_60, Some(M2_60), 47.61),
    ]
};

/// Which algorithms send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Which path the next packets take.
    pub scheduler: SchedulerKind,
    /// How fast a path may be used.
    pub controller: ControllerKind,
}

/// How long `bytes` take over the paths of a cell.
///
/// # Panics
/// When the transfer does not end.
#[must_use]
pub fn transfer(ways: &[ArmsPath], sender: Sender, bytes: Bytes, seed: Seed) -> Duration {
    let client = SessionConfig {
        scheduler: sender.scheduler,
        controller: sender.controller,
        ..SessionConfig::default()
    };
    let link = |(index, way): (usize, &ArmsPath)| way.link(&format!("path {}", index + 1));
    let record = arena::run(Plan {
        seed,
        links: ways.iter().enumerate().map(link).collect(),
        server: client.clone(),
        client,
        sessions: 1,
        load: Load::Stream(bytes),
        cross: None,
        duration: DURATION,
        sample_interval: DURATION,
    });
    record.took().expect("the transfer ends")
}

impl Cell {
    /// Its paths.
    #[must_use]
    pub fn ways(&self) -> Vec<ArmsPath> {
        [Some(self.first), self.second]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The share of the sum of both paths alone that the paper reached together, from its table.
    #[must_use]
    pub fn paper_share(&self) -> Option<f64> {
        let alone = |way: ArmsPath| {
            let cell = TABLE
                .iter()
                .find(|cell| cell.first == way && cell.second.is_none());
            cell.map(|cell| 1.0 / cell.paper_seconds)
        };
        let sum = alone(self.first)? + alone(self.second?)?;
        Some(1.0 / self.paper_seconds / sum)
    }
}
