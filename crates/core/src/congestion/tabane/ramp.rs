//! Delay that comes with sending, and is nobody's queue.
//!
//! Schedulers of radio links, and jitter that keeps packets in order, hold the longer what is sent
//! the denser: a window that shrinks for it finds no end. Whether the pipe is full shows in what a
//! larger window does. Full: by Little's law every round trip gets longer by as much as the window.
//! Not full: hardly any does, and more is delivered. A `Ramp` asks that, upwards step by step, and
//! what delay there is where the pipe was not full belongs to the path. Downwards it goes only to
//! find less of such delay than is known. After a silence, and after each dip that follows it soon,
//! it is asked as well: a handover may have made the path longer.

use tabane_base::{Bytes, Duration, Instant, scale};

use super::{Phase, Tabane};
use crate::congestion::model::{Round, shifted};
use crate::congestion::scaled;

/// After a dip, until two rounds of Steady are seen.
pub(super) const AFTER_DIP: u64 = 3;
/// After a silence, until what waited in it is delivered and two rounds are seen.
pub(super) const AFTER_SILENCE: u64 = 3;
/// Until what a step does has been seen for two rounds.
const ROUNDS: u32 = 3;
/// Each step.
const STEP: f64 = 1.25;
/// So many steps down at most.
const DOWN_MAX: u32 = 3;
/// Where so many found room upwards, there is much.
const UP_MAX: u32 = 2;
/// The pipe is full where round trips change by this part of what they would in a full one.
const FULL: f64 = 0.5;
/// Windows that differ by less than this tell nothing.
const LEAST_STEP: f64 = 0.1;
/// The window is used up where so much of it is in flight.
const USED: f64 = 0.9;
/// Less delay than this part of the shortest round trip is not looked for.
const LEAST_PART: u32 = 16;
/// The delay is at most this part of the shortest round trip.
const MOST: f64 = 1.5;
/// After a search that found no room the next one is so many rounds later, and then ever more.
pub(super) const PAUSE_MIN: u64 = 8;
const PAUSE_MAX: u64 = 128;
/// Round trips jump and scatter by so many times what packets and hosts alone explain. Right after
/// start-up, which jitter may have ended too soon, less is asked for; where somebody else may be
/// there, more, and of jumps alone: no rival's queue makes many.
pub(super) const JUMPS: u32 = 4;
const JUMPS_AT_FIRST: u32 = 2;
const JUMPS_IN_DOUBT: u32 = 5;

/// A search for the window that fills the pipe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ramp {
    /// Before the present step.
    from: Level,
    way: Heading,
    /// Rounds since the step: the first is still the former window's.
    rounds: u32,
    steps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heading {
    Up,
    Down,
}

/// What a round showed with a window.
#[derive(Clone, Copy, Debug)]
struct Level {
    window: Bytes,
    mean: Duration,
    least: Duration,
}

impl Ramp {
    /// Round trips are reckoned with a way back that is longer by `nanos` from here on.
    pub(super) fn shift(&mut self, nanos: i64) {
        self.from.mean = shifted(self.from.mean, nanos);
        self.from.least = shifted(self.from.least, nanos);
    }
}

impl Level {
    fn of(rounds: [&Round; 2]) -> Option<Self> {
        let [mean, other] = [rounds[0].mean_rtt()?, rounds[1].mean_rtt()?];
        Some(Self {
            window: scaled(rounds[0].window + rounds[1].window, 0.5),
            mean: (mean + other) / 2,
            least: (rounds[0].rtt_min + rounds[1].rtt_min) / 2,
        })
    }

    /// Whether the larger of both windows was more than the pipe holds; `None` where they hardly
    /// differ.
    fn is_full(self, other: Self) -> Option<bool> {
        let (small, large) = match self.window < other.window {
            true => (self, other),
            false => (other, self),
        };
        let grown = large.window.get() as f64 / small.window.get().max(1) as f64 - 1.0;
        let longer = large.mean.saturating_sub(small.mean);
        (grown > LEAST_STEP).then(|| longer > scale(small.mean, grown * FULL))
    }
}

impl Tabane {
    /// Begins a search where a queue may be none; `false` where that is out of the question.
    pub(super) fn ramp(&mut self) -> bool {
        let is_first = self.ramps == 0;
        self.ramps += 1;
        let jumps = |times| self.sense.jump() > self.usual_scatter() * times;
        let is_jittery = match (is_first, self.is_doubted) {
            (true, false) => self.is_jittery(JUMPS_AT_FIRST),
            (true, true) => jumps(JUMPS_AT_FIRST),
            (false, false) => self.is_jittery(JUMPS),
            (false, true) => jumps(JUMPS_IN_DOUBT),
        };
        let has_moved = std::mem::take(&mut self.may_have_moved);
        let is_jittery = is_jittery || has_moved;
        // A window that is not used up says nothing of the pipe.
        let is_used = |level: &Level| level.window >= scaled(self.cwnd, USED);
        let level = self.level().filter(is_used);
        let level = level.filter(|_| is_jittery || self.is_loaded());
        let Some(from) = level else {
            return false;
        };
        self.step(from, Heading::Up, 0);
        true
    }

    /// Whether round trips jump and scatter by so many times what packets and hosts explain.
    pub(super) fn is_jittery(&self, times: u32) -> bool {
        self.sense.jump() + self.sense.jitter() > self.usual_scatter() * times
    }

    /// Whether the delay that is the path's is worth a search for less.
    fn is_loaded(&self) -> bool {
        self.load > self.model.min_rtt().unwrap_or_default() / LEAST_PART
    }

    fn level(&self) -> Option<Level> {
        Level::of([&self.model.last, &self.model.before_last])
    }

    fn step(&mut self, from: Level, way: Heading, steps: u32) {
        let by = match way {
            Heading::Up => STEP,
            Heading::Down => 1.0 / STEP,
        };
        self.cwnd = scaled(from.window, by);
        self.phase = Phase::Ramp(Ramp {
            from,
            way,
            rounds: 0,
            steps,
        });
    }

    /// A step was seen: what follows from it.
    pub(super) fn advance_ramp(&mut self, now: Instant, mut ramp: Ramp) {
        if !self.model.is_round_start {
            return;
        }
        ramp.rounds += 1;
        self.phase = Phase::Ramp(ramp);
        if ramp.rounds < ROUNDS {
            return;
        }
        let level = self
            .level()
            .filter(|level| level.window <= self.most_window());
        let seen = level.and_then(|level| Some((level, ramp.from.is_full(level)?)));
        match (ramp.way, seen) {
            (Heading::Up, Some((level, false))) => {
                self.load = self.load.max(self.load_at(ramp.from.least));
                self.ramp_pause = PAUSE_MIN;
                if ramp.steps + 1 < UP_MAX {
                    self.step(level, Heading::Up, ramp.steps + 1);
                } else {
                    self.resume_startup(now);
                }
            }
            (Heading::Up, Some((_, true))) if ramp.steps == 0 && self.is_loaded() => {
                self.step(ramp.from, Heading::Down, 1);
            }
            (Heading::Down, Some((level, true))) if ramp.steps < DOWN_MAX => {
                self.load = self.load.min(self.load_at(level.least));
                self.step(level, Heading::Down, ramp.steps + 1);
            }
            _ => self.end_ramp(now, ramp),
        }
    }

    /// More in flight is a queue, whatever round trips say.
    fn most_window(&self) -> Bytes {
        let rtt = scale(self.model.min_rtt().unwrap_or_default(), 1.0 + MOST);
        let window = self.model.bandwidth().amount_in(rtt);
        (window + window).max(self.min_window())
    }

    /// The delay that is the path's, where the shortest round trip `rtt` of a round is no queue.
    pub(super) fn load_at(&self, rtt: Duration) -> Duration {
        let base = self.model.min_rtt().unwrap_or(rtt);
        if rtt == Duration::MAX {
            return Duration::ZERO;
        }
        rtt.saturating_sub(base).min(scale(base, MOST))
    }

    /// Back to what was in flight before the last step.
    pub(super) fn end_ramp(&mut self, now: Instant, ramp: Ramp) {
        self.rate = self.model.latest_rate().max(self.rate);
        self.ramp_in = Some(self.model.rounds + self.ramp_pause);
        self.ramp_pause = (self.ramp_pause * 2).min(PAUSE_MAX);
        self.cwnd = ramp.from.window;
        self.changed_at = now;
        self.enter_steady(now);
    }
}
