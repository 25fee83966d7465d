//! Congestion controllers beside each other on links of radio, and bonds of two such links.
//!
//! Owns what is compared: goodput, and how long packets wait on a link (the median and the 95th
//! percentile over time, jitter and delay not counted). Which seeds, and what is printed, is the
//! caller's; `survey` sums up what many of them come to.

mod likeness;
mod survey;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{ControllerKind, SessionConfig};
use tabane_netem::{Direction, LinkSpec, Radio};

use crate::job::Transfer;
use crate::network::LinkId;
use crate::outcome::Outcome;
use crate::side::Side;
use crate::world::{Setup, World};

pub use likeness::radio_likeness;
pub use survey::RadioSurvey;

/// What a packet takes on a slow link: waits this short are nobody's queue.
const PACKET: f64 = 1e-3;

/// One download.
#[derive(Clone, Debug)]
pub struct RadioRun {
    /// Over the whole transfer, start-up included.
    pub goodput: Rate,
    /// The median of waits on the first link.
    pub wait_p50: Duration,
    /// Their 95th percentile.
    pub wait_p95: Duration,
    outcome: Outcome,
}

impl RadioRun {
    /// Over `links` for `span`.
    #[must_use]
    pub fn new(
        links: Vec<LinkSpec>,
        controller: ControllerKind,
        seed: Seed,
        span: Duration,
    ) -> Self {
        let config = SessionConfig {
            controller,
            ..SessionConfig::default()
        };
        Self::configured(links, config, seed, span)
    }

    fn configured(links: Vec<LinkSpec>, config: SessionConfig, seed: Seed, span: Duration) -> Self {
        let mut world = World::new(Setup {
            client: config.clone(),
            server: config,
            ..Setup::new(seed, links)
        });
        world.connect_by_each_link();
        world.add(Transfer::download());
        let end = Instant::EPOCH + span;
        world.run_until(end);
        let wait = |quantile| (world.network()).wait(LinkId(0), Direction::Down, quantile);
        let outcome = world.outcome(Side::Client).clone();
        Self {
            goodput: outcome.goodput(end),
            wait_p50: wait(0.5),
            wait_p95: wait(0.95),
            outcome,
        }
    }

    /// What had arrived after `span`, in whole steps of 100 ms.
    #[must_use]
    pub fn arrived_after(&self, span: Duration) -> Bytes {
        let (start, end) = (Instant::EPOCH, Instant::EPOCH + span);
        self.outcome.goodput_between(start, end).amount_in(span)
    }
}

/// Every controller on one link.
#[derive(Clone, Debug)]
pub struct RadioComparison {
    /// The link.
    pub radio: Radio,
    runs: Vec<RadioRun>,
}

impl RadioComparison {
    /// Lets all of them send over `radio` for `span`, one after the other.
    #[must_use]
    pub fn new(radio: Radio, span: Duration) -> Self {
        let run = |kind| RadioRun::new(vec![radio.link()], kind, Seed(radio.seed), span);
        Self {
            radio,
            runs: ControllerKind::ALL.map(run).into(),
        }
    }

    /// How one of them fared.
    ///
    /// # Panics
    /// Never: all are there.
    #[must_use]
    pub fn of(&self, kind: ControllerKind) -> &RadioRun {
        let index = ControllerKind::ALL.iter().position(|other| *other == kind);
        &self.runs[index.expect("every kind ran")]
    }

    /// The default's goodput, of the better of cubic and BBR.
    #[must_use]
    pub fn of_better(&self) -> f64 {
        let goodput = |kind| self.of(kind).goodput.as_mbps_f64();
        let better = goodput(ControllerKind::Bbr).max(goodput(ControllerKind::Cubic));
        goodput(ControllerKind::Tabane) / better.max(1e-9)
    }

    /// The default's waits, of BBR's: the median and the 95th percentile.
    #[must_use]
    pub fn waits_of_bbr(&self) -> (f64, f64) {
        let (ours, bbr) = (
            self.of(ControllerKind::Tabane),
            self.of(ControllerKind::Bbr),
        );
        let part = |ours: Duration, bbr: Duration| {
            (ours.as_secs_f64() + PACKET) / (bbr.as_secs_f64() + PACKET)
        };
        (
            part(ours.wait_p50, bbr.wait_p50),
            part(ours.wait_p95, bbr.wait_p95),
        )
    }
}

/// What two links bundled had delivered after each of `spans`, of what the better of them alone
/// had by then, with default settings.
#[must_use]
pub fn bond_of_best(pair: [Radio; 2], spans: &[Duration]) -> Vec<f64> {
    let longest = spans.iter().copied().max().unwrap_or_default();
    let seed = Seed(pair[0].seed);
    let run = |links| RadioRun::new(links, ControllerKind::default(), seed, longest);
    let bond = run(pair.map(Radio::link).into());
    let alone = pair.map(|radio| run(vec![radio.link()]));
    let of_best = |span: &Duration| {
        let best = alone.iter().map(|run| run.arrived_after(*span)).max();
        let best = best.unwrap_or_default().get().max(1);
        bond.arrived_after(*span).get() as f64 / best as f64
    };
    spans.iter().map(of_best).collect()
}
