//! Steady: holding the window where the queue is as long as the target.
//!
//! The control law (eq. 4 with the target in it), once per span, and the steps upwards where there
//! is no queue. A change of the window shows a round trip later: nothing is added before what was
//! seen is all younger than the last change, or the window would swing about the target. Paths
//! whose round trips or rates vary by themselves show too little for that, and swing anyway.

use tabane_base::{Bytes, Duration, Instant, scale};

use super::{Phase, Tabane};
use crate::congestion::scaled;

/// The step up doubles with each round without a queue, so often at most.
const VELOCITY_MAX: u32 = 6;
/// The window in use shows the last growth when it is this part of the window.
const GROWTH_SEEN: f64 = 0.95;
/// The window grows at most so much in a round trip.
const GROWTH_MAX: f64 = 1.5;
/// Pacing above what the window asks for, so that the window decides; and while growing.
const GAIN: f64 = 1.05;
const GAIN_GROWING: f64 = 1.25;
/// Round trips scatter by this and a packet's time, and by this part of the shortest, without
/// jitter; twice as far, and what is seen right after a change tells as little as later.
const NOISE: Duration = Duration::from_micros(500);
const NOISE_PART: u32 = 64;
const NOISE_STEADY: f64 = 2.0;
/// The longest packet time believed.
const PACKET_TIME_MAX: Duration = Duration::from_millis(500);

/// Where the rate swings so much, a queue proves nothing.
const SWINGING: f64 = 1.0;

impl Tabane {
    pub(super) fn enter_steady(&mut self, now: Instant) {
        self.phase = Phase::Steady;
        self.sense.restart(now);
        self.velocity = 0;
        self.gain = GAIN;
    }

    pub(super) fn advance_steady(&mut self, now: Instant) {
        let (queue, standing) = self.queue();
        if self.ramp_in.is_some_and(|round| round <= self.model.rounds)
            && queue > self.target() / 2
            && !self.rivalry.is_near(now)
        {
            self.ramp_in = None;
            if self.ramp() {
                return;
            }
        }
        let is_long = queue > self.allowed_queue() && self.swing.hold() < SWINGING;
        // Known rivals need no long queue: a cubic's grows again from little, and flattens.
        let is_theirs = self.rivalry.is_near(now) && queue > self.target() / 2;
        let is_vain = (is_long || is_theirs) && self.yielding.is_vain(queue, standing.window);
        if !is_vain {
            self.control(now);
            let is_room = self.velocity > 0 && self.swing.hold() == 0.0;
            if is_room && self.fade.asks_for_startup(now, self.rate) {
                // The rounds still hold what the link carried before it faded.
                self.model.restart_at(self.rate);
                self.restart_startup(now);
                return;
            }
        }
        self.look_where_it_sinks(now, is_long || is_theirs);
        self.rivalry.on_span(now, self.min_rtt(), is_long);
        self.rivalry.on_round_trip(now, self.min_rtt() + queue);
        if !is_long && !is_theirs {
            self.window_before = self.cwnd;
            self.yielding.end();
        }
        let is_pressed =
            self.rivalry.is_pressed() || is_vain && self.rivalry.may_ask_again(now, self.min_rtt());
        if is_pressed && self.rivalry.is_near(now) {
            self.compete(now);
        } else if is_pressed {
            self.phase = Phase::Dip(self.dip(now, self.rate, Duration::MAX));
        } else if now >= self.look_at {
            self.look(now);
        }
    }

    /// A queue that is not too long, and that stays although the window sinks: the path may have
    /// become longer by no more than is allowed for others.
    fn look_where_it_sinks(&mut self, now: Instant, is_yielding: bool) {
        let (queue, standing) = self.queue();
        if is_yielding || queue <= self.target() || self.swing.hold() >= SWINGING {
            self.sinking.end();
        } else if self.sinking.is_vain(queue, standing.window) {
            self.sinking.end();
            self.look_at = now;
        }
    }

    /// The control law, once per span.
    fn control(&mut self, now: Instant) {
        let measured = self.sense.rate();
        let is_measured = self.sense.is_measured();
        self.rate = if is_measured && self.is_queued() {
            measured
        } else {
            self.rate.max(measured)
        };
        self.swing.update(now, self.rate);
        self.peak = self.peak.max(self.rate);
        self.fade.on_rate(now, self.rate);
        let ((queue, standing), target) = (self.queue(), self.target());
        let kept = self.kept_window(now);
        let in_use = standing.window;
        let is_fresh = standing.sent_from >= self.changed_at || !self.is_even();
        let before = self.cwnd;
        let mut window = if queue > target {
            self.velocity = 0;
            self.lowered(in_use, queue, target).min(self.cwnd).max(kept)
        } else {
            let kept = self.cwnd.max(kept.min(in_use + in_use));
            if is_measured && is_fresh && self.model.rounds > self.grown_in {
                self.grown(in_use, queue, target)
                    .max(kept.min(in_use + in_use))
            } else {
                kept
            }
        };
        self.gain = if self.velocity > 1 {
            GAIN_GROWING
        } else {
            GAIN
        };
        if let Some((ceiling, until)) = self.ceiling {
            if now < until {
                self.rate = self.rate.min(ceiling);
                self.gain = 1.0;
                // What the path holds it holds, whatever was taken for a queue meanwhile.
                window = window.min(self.cwnd.max(kept.min(in_use + in_use)));
            } else {
                self.ceiling = None;
                self.velocity = 0;
            }
        }
        self.cwnd = window;
        if window.get().abs_diff(before.get()) > self.mtu.get() {
            self.changed_at = now;
        }
    }

    /// Eq. 4 with the target in it, once from the rate and once by Little's law, by which the rate
    /// is what is in flight over the round trip. The milder counts: a rate measured while it
    /// falls is too high, and Little's includes what waits for acknowledgements.
    fn lowered(&self, in_use: Bytes, queue: Duration, target: Duration) -> Bytes {
        let by_rate = in_use - self.rate.amount_in(queue - target);
        let (wanted, found) = (self.min_rtt() + target, self.min_rtt() + queue);
        let by_share = scaled(in_use, wanted.as_secs_f64() / found.as_secs_f64());
        by_rate.max(by_share)
    }

    /// The window that brings the queue from `queue` up to `target`, or once there was no queue
    /// for some rounds, a good deal further. Once per round: what was sent more shows only then.
    fn grown(&mut self, in_use: Bytes, queue: Duration, target: Duration) -> Bytes {
        self.grown_in = self.model.rounds;
        let is_seen = in_use >= scaled(self.cwnd, GROWTH_SEEN);
        self.velocity = match queue < target / 2 {
            true if is_seen => (self.velocity + 1).min(VELOCITY_MAX),
            true => self.velocity.max(1),
            false => 0,
        };
        let speed = 1_u64 << self.velocity.saturating_sub(1);
        let step = self
            .rate
            .amount_in(target - queue)
            .get()
            .saturating_mul(speed);
        let step = Bytes::new(step).max(self.mtu);
        let faster = match self.swing.hold() > 0.0 {
            true => self.velocity.saturating_sub(1).max(1),
            false => 1,
        };
        let queue_max = self.aim().queue_max() * faster;
        let most = scaled(in_use, GROWTH_MAX - 1.0).min(self.rate.amount_in(queue_max));
        in_use + step.min(most.max(self.mtu))
    }

    /// Whether neither rate nor round trips vary by themselves.
    pub(super) fn is_even(&self) -> bool {
        self.swing.hold() == 0.0 && !self.is_noisy()
    }

    /// Whether round trips scatter so far that a change of the window hardly shows.
    fn is_noisy(&self) -> bool {
        let usual = self.usual_scatter() + self.min_rtt() / NOISE_PART;
        self.sense.jitter() > scale(usual, NOISE_STEADY)
    }

    /// How far packets and hosts alone make round trips scatter.
    pub(super) fn usual_scatter(&self) -> Duration {
        let rate = self.peak.max(self.model.bandwidth());
        let packet = rate.time_for(self.mtu).min(PACKET_TIME_MAX);
        NOISE + packet
    }
}
