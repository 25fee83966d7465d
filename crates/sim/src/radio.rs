//! Congestion controllers beside each other on links of radio.
//!
//! Owns what is compared: goodput, and how long packets wait on the link (the median and the 95th
//! percentile over time), alone on one link and with two links bundled. Which seeds, and what is
//! printed, is the caller's.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{ControllerKind, SessionConfig};
use tabane_netem::{Direction, LinkSpec, Radio};

use crate::job::Transfer;
use crate::network::LinkId;
use crate::outcome::Outcome;
use crate::world::{Setup, World};

/// One transfer.
#[derive(Clone, Debug)]
pub struct Run {
    /// What arrived.
    pub outcome: Outcome,
    /// Over the whole transfer, start-up included.
    pub goodput: Rate,
    /// Packets' wait on the first link.
    pub wait_p50: Duration,
    /// As above.
    pub wait_p95: Duration,
}

impl Run {
    /// A download over `links` for `span`.
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
        let mut world = World::new(Setup {
            client: config.clone(),
            server: config,
            ..Setup::new(seed, links)
        });
        world.connect();
        world.add(Transfer::download());
        let end = Instant::EPOCH + span;
        world.run_until(end);
        let wait = |quantile| world.network().wait(LinkId(0), Direction::Down, quantile);
        let outcome = world.outcome(crate::Side::Client).clone();
        Self {
            goodput: outcome.goodput(end),
            wait_p50: wait(0.5),
            wait_p95: wait(0.95),
            outcome,
        }
    }

    /// What had arrived by `at`.
    #[must_use]
    pub fn arrived_by(&self, at: Duration) -> Bytes {
        let rate = self
            .outcome
            .goodput_between(Instant::EPOCH, Instant::EPOCH + at);
        rate.amount_in(at)
    }
}

/// Every controller on one link.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The link.
    pub radio: Radio,
    /// In the order of [`ControllerKind::ALL`].
    pub runs: Vec<Run>,
}

impl Comparison {
    /// Lets all of them send over `radio` for `span`.
    #[must_use]
    pub fn new(radio: Radio, span: Duration) -> Self {
        let run = |kind| Run::new(vec![radio.link()], kind, Seed(radio.seed), span);
        Self {
            radio,
            runs: ControllerKind::ALL.map(run).into(),
        }
    }

    /// How one of them fared.
    #[must_use]
    pub fn of(&self, kind: ControllerKind) -> &Run {
        let index = ControllerKind::ALL.iter().position(|other| *other == kind);
        &self.runs[index.unwrap_or_default()]
    }

    /// The default's goodput, of the better of cubic and BBR.
    #[must_use]
    pub fn of_better(&self) -> f64 {
        let goodput = |kind| self.of(kind).goodput.as_mbps_f64();
        let better = goodput(ControllerKind::Bbr).max(goodput(ControllerKind::Cubic));
        goodput(ControllerKind::Tabane) / better.max(1e-9)
    }

    /// The default's waits of BBR's: the median and the 95th percentile.
    #[must_use]
    pub fn waits_of_bbr(&self) -> (f64, f64) {
        let (ours, bbr) = (
            self.of(ControllerKind::Tabane),
            self.of(ControllerKind::Bbr),
        );
        // A millisecond is what one packet takes on a slow link: nobody's queue.
        let part = |ours: Duration, bbr: Duration| {
            (ours.as_secs_f64() + 1e-3) / (bbr.as_secs_f64() + 1e-3)
        };
        (
            part(ours.wait_p50, bbr.wait_p50),
            part(ours.wait_p95, bbr.wait_p95),
        )
    }
}
