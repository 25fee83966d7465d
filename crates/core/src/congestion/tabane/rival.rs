//! Who keeps the queue full: we, a longer route, or a rival that does not yield.
//!
//! Owns the evidence and the verdict; what follows from it is the parent's. A queue beyond what we
//! allow ourselves for most of a second or so is pressure. A dip then takes our part out of the
//! pipe. If the delay goes, it was ours. If it stays the same from dip to dip, the route is longer;
//! if it stays but is another each time, a rival's window is at work.

use tabane_base::{Duration, Instant};

/// Pressure is judged over this time, or so many round trips.
const MEMORY: Duration = Duration::from_millis(1_000);
const MEMORY_RTTS: u32 = 8;
/// So much of it must be above the allowed queue.
const PRESSED: f64 = 0.6;
/// What remains after a dip that left doubt: the next one follows sooner.
const PRESSURE_IN_DOUBT: f64 = 0.3;
/// Delays of dips are the same within this, or this part of them.
const SAME: Duration = Duration::from_millis(1);
const SAME_PART: u32 = 50;
/// Dips that ask the same are so far apart.
const ASK_PAUSE: Duration = Duration::from_millis(300);
const ASK_PAUSE_RTTS: u32 = 4;
/// How long a doubt, a rival, a longer route are remembered.
const DOUBT_FOR: Duration = Duration::from_secs(10);
const RIVAL_FOR: Duration = Duration::from_secs(20);
/// Competing lasts so long at first, and twice as long each time that the rival is still there. It
/// ends at whole multiples of that by the host's clock: all paths of a host dip together, and if
/// they have only each other for rivals, all see that the queue is gone.
const COMPETE_MIN: Duration = Duration::from_secs(4);
const COMPETE_MAX: Duration = Duration::from_secs(16);

/// What a dip means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DipCause {
    /// The queue was ours.
    Ours,
    /// It stays; look again.
    Doubt,
    /// It stays, always the same: the shortest round trip is this.
    LongerRoute(Duration),
    /// It stays and changes: somebody else's.
    Rival,
}

/// Evidence about one path.
#[derive(Clone, Debug)]
pub(super) struct Rivalry {
    /// The part of the time of late that the queue was too long.
    pressure: f64,
    updated_at: Instant,
    /// The delays that the latest dips left, and when; newest first.
    found: [Option<(Instant, Duration)>; 3],
    /// The round trip last taken for a longer route.
    accepted: Option<(Instant, Duration)>,
    /// When a rival was last known to be there.
    rival_at: Option<Instant>,
    compete_for: Duration,
    /// Competing goes on at least until then.
    pub(super) compete_until: Instant,
}

impl Rivalry {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            pressure: 0.0,
            updated_at: now,
            found: [None; 3],
            accepted: None,
            rival_at: None,
            compete_for: COMPETE_MIN,
            compete_until: now,
        }
    }

    /// A span ended in which the queue was too long or not.
    pub(super) fn on_span(&mut self, now: Instant, min_rtt: Duration, is_long: bool) {
        let memory = MEMORY.max(min_rtt * MEMORY_RTTS).as_secs_f64();
        let weight = (now.since(self.updated_at).as_secs_f64() / memory).min(1.0);
        self.updated_at = now;
        self.pressure += (f64::from(u8::from(is_long)) - self.pressure) * weight;
    }

    /// A round trip was seen: shorter than what was taken for a longer route means that it was not.
    pub(super) fn on_round_trip(&mut self, now: Instant, rtt: Duration) {
        if self
            .accepted
            .is_some_and(|(_, accepted)| rtt + same(accepted) < accepted)
        {
            self.accepted = None;
            self.rival_at = Some(now);
        }
    }

    pub(super) fn is_pressed(&self) -> bool {
        self.pressure > PRESSED
    }

    /// Whether the last dip is long enough ago for a rival's queue to have changed.
    pub(super) fn may_ask_again(&self, now: Instant, min_rtt: Duration) -> bool {
        let pause = ASK_PAUSE.max(min_rtt * ASK_PAUSE_RTTS);
        self.found[0].is_none_or(|(at, _)| now.since(at) > pause)
    }

    /// Whether a rival was there so lately that pressure means it.
    pub(super) fn is_near(&self, now: Instant) -> bool {
        self.rival_at.is_some_and(|at| now.since(at) < RIVAL_FOR)
    }

    /// A dip left the round trip `rtt`, while the shortest known is `min_rtt`.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        rtt: Duration,
        min_rtt: Duration,
        tolerance: Duration,
        is_competing: bool,
        scatter: Duration,
    ) -> DipCause {
        if rtt <= min_rtt + tolerance {
            self.found = [None; 3];
            self.pressure = 0.0;
            if !self.is_near(now) {
                self.compete_for = COMPETE_MIN;
            }
            return DipCause::Ours;
        }
        self.found = [Some((now, rtt)), self.found[0], self.found[1]];
        self.pressure = PRESSURE_IN_DOUBT;
        let recent = |found: &Option<(Instant, Duration)>| {
            found.filter(|(at, _)| is_competing || now.since(*at) < DOUBT_FOR)
        };
        let needed = if is_competing { 3 } else { 2 };
        let alike = self.found.iter().take(needed).filter_map(recent);
        let is_same = |other: Duration| other.abs_diff(rtt) <= same(rtt).max(scatter);
        if alike.clone().count() < needed {
            return if is_competing {
                DipCause::Rival
            } else {
                DipCause::Doubt
            };
        }
        if alike.clone().all(|(_, other)| is_same(other)) && !self.is_near(now)
            || (is_competing && alike.clone().all(|(_, other)| is_same(other)))
        {
            self.found = [None; 3];
            self.accepted = Some((now, rtt));
            self.pressure = 0.0;
            return DipCause::LongerRoute(rtt);
        }
        DipCause::Rival
    }

    /// Competing begins, or goes on.
    pub(super) fn compete(&mut self, now: Instant) {
        self.rival_at = Some(now);
        self.pressure = 0.0;
        self.compete_until = super::next_multiple(now + self.compete_for / 2, self.compete_for);
        self.compete_for = (self.compete_for * 2).min(COMPETE_MAX);
    }
}

fn same(rtt: Duration) -> Duration {
    SAME.max(rtt / SAME_PART)
}
