//! Links of radio, made by seed: rates that swing, delays that jump, schedulers, outages.
//!
//! Owns eight kinds of them. A seed decides rate, delay, queue and everything that happens within
//! a minute, after which it repeats: any number of links alike, none the same. Rates wander in the
//! logarithm, quickly and slowly at once, as recorded cellular links do (the model of Sprout's
//! authors has one speed; the recorded ones lose a quarter of their correlation within 0.1 s and
//! keep half of the rest for seconds); a test holds them to that.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tabane_base::{Bytes, Duration, Rate, Rng, Seed, scale};

use crate::jitter::JitterShape;
use crate::link::{LinkConfig, RateModel};
use crate::link_spec::{Direction, LinkSpec};
use crate::schedule::{Change, Outage};
use crate::trace::{OPPORTUNITY, Trace};

/// After so many milliseconds everything happens again.
const PERIOD_MS: u64 = 60_000;
/// The rate takes a new value every so many milliseconds.
const STEP_MS: u64 = 20;
/// Median rates towards the client, in bits per second.
const RATE_BPS: (f64, f64) = (1.5e6, 40e6);
/// No rate leaves this span: a trace has whole opportunities a millisecond.
const RATE_BPS_LEAST: f64 = 20e3;
const RATE_BPS_MOST: f64 = 150e6;
const DELAY_MS: (f64, f64) = (8.0, 60.0);
/// How long the rate remembers, quickly and slowly.
const QUICK: f64 = 0.3;
const SLOW: f64 = 5.0;

/// What kind of trouble a link has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RadioKind {
    /// The rate wanders in its logarithm, as on a phone in motion.
    Walk,
    /// The rate jumps between four levels.
    Steps,
    /// A scheduler lets everything pass every 5 to 40 ms.
    Bursts,
    /// Every few seconds another cell: rate and delay change at once, after a gap.
    Handovers,
    /// Nothing passes for 0.1 to 10 s, now and then.
    Outages,
    /// The way up has a tenth of the way down.
    Narrow,
    /// A steady rate; each packet is late by up to the path's delay.
    Jitter,
    /// The rate goes up and down threefold in a minute.
    Drift,
}

impl RadioKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Walk,
        Self::Steps,
        Self::Bursts,
        Self::Handovers,
        Self::Outages,
        Self::Narrow,
        Self::Jitter,
        Self::Drift,
    ];

    /// What files and tables call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Walk => "walk",
            Self::Steps => "steps",
            Self::Bursts => "bursts",
            Self::Handovers => "handovers",
            Self::Outages => "outages",
            Self::Narrow => "narrow",
            Self::Jitter => "jitter",
            Self::Drift => "drift",
        }
    }
}

/// A link of radio: `walk/7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Radio {
    /// What trouble it has.
    pub kind: RadioKind,
    /// Which of these.
    pub seed: u64,
}

/// Not the name of a link of radio.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no radio link {0:?}: expected a kind and a seed, such as walk/7")]
pub struct UnknownRadio(String);

impl fmt::Display for Radio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.name(), self.seed)
    }
}

impl FromStr for Radio {
    type Err = UnknownRadio;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = text.split_once('/').and_then(|(name, seed)| {
            let kind = RadioKind::ALL.into_iter().find(|kind| kind.name() == name);
            Some(Self {
                kind: kind?,
                seed: seed.parse().ok()?,
            })
        });
        found.ok_or_else(|| UnknownRadio(text.to_owned()))
    }
}

impl Radio {
    /// The link, both directions.
    #[must_use]
    pub fn link(self) -> LinkSpec {
        LinkSpec {
            name: self.to_string(),
            up: self.config(Direction::Up),
            down: self.config(Direction::Down),
        }
    }

    /// One direction of it.
    #[must_use]
    pub fn config(self, direction: Direction) -> LinkConfig {
        Place::new(self).config(direction)
    }
}

/// What both directions of a link have in common.
struct Place {
    kind: RadioKind,
    seed: Seed,
    /// Median, towards the client and towards the server.
    down_bps: f64,
    up_bps: f64,
    delay: Duration,
    is_shallow: bool,
    /// The gaps between cells, or outages: from and until, in milliseconds.
    gaps: Vec<(u64, u64)>,
    /// One value per span between gaps: part of the median rate, part of the delay.
    cells: Vec<(f64, f64)>,
}

impl Place {
    fn new(radio: Radio) -> Self {
        let seed = Seed(radio.seed).split(radio.kind.name());
        let mut rng = seed.rng("place");
        let down_bps = between(&mut rng, RATE_BPS);
        let up_part = if radio.kind == RadioKind::Narrow {
            0.1
        } else {
            between(&mut rng, (0.2, 1.0))
        };
        let delay = Duration::from_micros((between(&mut rng, DELAY_MS) * 1e3) as u64);
        let is_shallow = rng.chance(0.3);
        let mut place = Self {
            kind: radio.kind,
            seed,
            down_bps,
            up_bps: down_bps * up_part,
            delay,
            is_shallow,
            gaps: Vec::new(),
            cells: Vec::new(),
        };
        place.draw_gaps(&mut rng);
        place
    }

    fn draw_gaps(&mut self, rng: &mut Rng) {
        let changes_cell = self.kind == RadioKind::Handovers;
        let (apart_s, lasts_s) = if changes_cell {
            ((3.0, 12.0), (0.03, 0.3))
        } else if self.kind == RadioKind::Outages {
            ((3.0, 20.0), (0.1, 10.0))
        } else {
            return;
        };
        let mut at_ms = 0;
        self.cells.push((1.0, 1.0));
        loop {
            at_ms += (between(rng, apart_s) * 1e3) as u64;
            let until = at_ms + (between(rng, lasts_s) * 1e3) as u64;
            if until + 1_000 > PERIOD_MS {
                return;
            }
            self.gaps.push((at_ms, until));
            let cell = if changes_cell {
                (between(rng, (0.4, 2.5)), between(rng, (0.5, 2.0)))
            } else {
                (1.0, 1.0)
            };
            self.cells.push(cell);
            at_ms = until;
        }
    }

    fn config(&self, direction: Direction) -> LinkConfig {
        let (median_bps, label) = match direction {
            Direction::Down => (self.down_bps, "down"),
            Direction::Up => (self.up_bps, "up"),
        };
        let mut rng = self.seed.rng(label);
        let held = Rate::from_bps(median_bps as u64).amount_in(self.delay * 2);
        let queue = if self.is_shallow {
            held.max(Bytes::new(OPPORTUNITY.get() * 20))
        } else {
            Bytes::new(between(&mut self.seed.rng("queue"), (3e5, 2e6)) as u64)
        };
        let mut config = LinkConfig {
            queue,
            delay: self.delay,
            ..LinkConfig::wire()
        };
        if self.kind == RadioKind::Jitter {
            config.rate = RateModel::Constant(Rate::from_bps(median_bps as u64));
            (config.jitter, config.jitter_shape) = self.jitter(direction);
            return config;
        }
        // In every other outage nothing waits: packets vanish.
        let vanishes = |index: usize| self.kind == RadioKind::Outages && index % 2 == 1;
        for (index, (from, until)) in self.gaps.iter().enumerate() {
            let (at, end) = (Duration::from_millis(*from), Duration::from_millis(*until));
            let every = Some(Duration::from_millis(PERIOD_MS));
            if vanishes(index) {
                config.outages.push(Outage {
                    at,
                    lasts: end - at,
                    every,
                });
            }
            if self.kind == RadioKind::Handovers {
                config.changes.push(Change {
                    at: end,
                    every,
                    delay: Some(scale(self.delay, self.cells[index + 1].1)),
                    ..Change::default()
                });
            }
        }
        let silent = |index: usize| !vanishes(index);
        let trace = self.opportunities(median_bps, &mut rng, silent);
        config.rate = RateModel::Trace(Arc::new(trace));
        config
    }

    /// How late packets are at most, and in which way: up to the path's delay.
    fn jitter(&self, direction: Direction) -> (Duration, JitterShape) {
        let mut rng = self.seed.rng("jitter");
        let shape = JitterShape::ALL[rng.below(JitterShape::ALL.len() as u64) as usize];
        let most = scale(self.delay, between(&mut rng, (0.15, 1.0)));
        let is_both = rng.chance(0.5);
        match direction {
            Direction::Up if !is_both => (Duration::ZERO, shape),
            Direction::Up | Direction::Down => (most.min(Duration::from_millis(50)), shape),
        }
    }

    /// When packets may pass.
    fn opportunities(
        &self,
        median_bps: f64,
        rng: &mut Rng,
        silent: impl Fn(usize) -> bool,
    ) -> Trace {
        let mut wander = Wander::new(self.kind, rng);
        let interval_ms = if self.kind == RadioKind::Bursts {
            between(rng, (5.0, 40.0)) as u64
        } else {
            1
        };
        let (mut at_ms, mut bytes, mut part) = (Vec::new(), 0.0, 1.0);
        let (mut gap, mut held_until) = (0, 0);
        for ms in 0..PERIOD_MS {
            if ms % STEP_MS == 0 {
                part = wander.step(ms, rng);
            }
            while self.gaps.get(gap).is_some_and(|(_, until)| *until <= ms) {
                gap += 1;
            }
            let cell = self.cells.get(gap).map_or(1.0, |(rate, _)| *rate);
            let is_gap = self.gaps.get(gap).is_some_and(|(from, _)| *from <= ms);
            if is_gap && silent(gap) {
                bytes = 0.0;
                continue;
            }
            let bps = (median_bps * part * cell).clamp(RATE_BPS_LEAST, RATE_BPS_MOST);
            bytes += bps / 8e3;
            // Retransmissions below hold everything up now and then.
            if ms >= held_until && rng.chance(0.002) {
                held_until = ms + 2 + (-(1.0 - rng.unit()).ln() * 12.0) as u64;
            }
            if ms < held_until || ms % interval_ms != 0 || interval_ms == 1 && rng.chance(0.4) {
                continue;
            }
            while bytes >= OPPORTUNITY.get() as f64 {
                bytes -= OPPORTUNITY.get() as f64;
                at_ms.push(ms);
            }
        }
        Trace::of(at_ms, PERIOD_MS)
    }
}

/// How the rate wanders about its median.
struct Wander {
    kind: RadioKind,
    /// How far, in the logarithm: quickly and slowly.
    spread: (f64, f64),
    at: (f64, f64),
    /// Of [`RadioKind::Steps`]: until when the present level lasts.
    until_ms: u64,
    phase: f64,
}

impl Wander {
    fn new(kind: RadioKind, rng: &mut Rng) -> Self {
        let far = match kind {
            RadioKind::Walk | RadioKind::Narrow => between(rng, (0.3, 0.9)),
            RadioKind::Outages | RadioKind::Handovers => between(rng, (0.1, 0.4)),
            RadioKind::Bursts | RadioKind::Drift => between(rng, (0.03, 0.2)),
            RadioKind::Steps | RadioKind::Jitter => 0.02,
        };
        let quick = between(rng, (0.3, 0.8));
        let spread = (far * quick, far * (1.0 - quick * quick).sqrt());
        Self {
            kind,
            spread,
            at: (normal(rng), normal(rng)),
            until_ms: 0,
            phase: rng.unit(),
        }
    }

    /// The part of the median in the next step.
    fn step(&mut self, ms: u64, rng: &mut Rng) -> f64 {
        let dt = STEP_MS as f64 / 1e3;
        if self.kind == RadioKind::Steps {
            if ms >= self.until_ms {
                self.until_ms = ms + (between(rng, (0.3, 6.0)) * 1e3) as u64;
                self.phase = [0.25, 0.5, 1.0, 2.0][rng.below(4) as usize];
            }
            return self.phase;
        }
        // Ornstein and Uhlenbeck's: Brownian, and drawn back to the median.
        let go = |at: f64, memory: f64, rng: &mut Rng| {
            let kept = (-dt / memory).exp();
            at * kept + normal(rng) * (1.0 - kept * kept).sqrt()
        };
        self.at = (go(self.at.0, QUICK, rng), go(self.at.1, SLOW, rng));
        let swing = self.at.0 * self.spread.0 + self.at.1 * self.spread.1;
        // Fades go deeper than peaks go high.
        let mut log = if swing < 0.0 { swing * 1.5 } else { swing };
        if self.kind == RadioKind::Drift {
            let turn = ms as f64 / PERIOD_MS as f64 + self.phase;
            log += (turn * std::f64::consts::TAU).sin() * 3.0_f64.ln() / 2.0;
        }
        log.exp()
    }
}

/// Drawn evenly in the logarithm.
fn between(rng: &mut Rng, (least, most): (f64, f64)) -> f64 {
    (least.ln() + rng.unit() * (most / least).ln()).exp()
}

/// The normal distribution, by the sum of twelve.
fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests;
