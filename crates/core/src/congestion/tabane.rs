//! The default: R-M/TCP's rate control, with the paper's open problem solved.
//!
//! R-M/TCP (`rmtcp`) estimates what a path delivers (eq. 2) and how much of ours is queued on it
//! (eq. 3), and when the queue grows, lowers the window to what the path holds without one
//! (eq. 4), before anything is lost. Its authors found that this only ever lowers: where the pipe
//! has room, the estimate should be raised towards the bottleneck's rate (section 4.2). Here a
//! small queue is the target instead of none, so that there is always an answer:
//!
//! - a shorter queue means room: the window grows, the faster the longer there is no queue, and
//!   at once towards the highest rate delivered that no queue has disproved since;
//! - a longer one means that what is delivered is all there is: the window is lowered to
//!   rate × (RTT_min + target), eq. 4 with the target in it.
//!
//! Both compare with what was in flight when the packet left that tells of the queue, so that
//! nothing is corrected twice. The target falls with the square root of the own rate. Flows on one
//! bottleneck see the same queue; those with the smaller rate allow themselves more of it and
//! gain, until all are equal. On links whose rate swings all the time (`swing`) more is kept.
//!
//! ```text
//! Startup ──no growth, a queue or loss──► Dip ──the queue was ours, or the route is longer──┐
//!                                        ▲   │                                              ▼
//!                        time to look, or│   └──queue stays, and changes──► Compete ──► (Dip)
//!                  a queue that stays    └──────────── Steady ◄───────── queue gone ────────┘
//! ```
//!
//! `Steady` also leads to a `Ramp` and back, where round trips jump: jitter that keeps packets in
//! order, and schedulers of radio links, make all of them wait that are sent densely, though no
//! queue stands. A ramp tells by more, or less, in flight how much of the delay is that.
//!
//! A `Dip` takes our queue out of the path for a moment: every few seconds, to see its true
//! length, which those who came later than others do not know; when the queue exceeds what we and
//! others like us allow; and when the window sinks and the queue does not. Whose queue it is,
//! `rival` judges. Beside somebody who keeps it full
//! (a TCP with cubic or reno, BBR in a shallow buffer) a short queue means starving, so `Compete`
//! is cubic, until a dip finds the queue gone.
//!
//! Loss counts only where it exceeds what chance explains and no queue does: then the path takes
//! no more (a policer, hardly any buffer), and nothing more is tried for a second or two.

mod aim;
mod burst;
mod chance;
mod company;
mod dip;
mod fade;
mod loss;
mod ramp;
mod rival;
mod sense;
mod silence;
mod startup;
mod steady;
mod swing;
mod way_back;
mod yielding;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng};

use super::cubic::Cubic;
use super::model::Model;
use super::{AckEvent, Algorithm, ControllerSnapshot, LossEvent, initial_window};
use aim::Aim;
use burst::Burst;
use chance::Chance;
use company::LOOK_INTERVAL_MIN;
use dip::Dip;
use fade::Fade;
use ramp::Ramp;
use rival::Rivalry;
use sense::{Sense, Standing};
use silence::Silence;
use startup::{STARTUP_GAIN, Startup};
use swing::{HOLD_MAX, Swing};
use yielding::Yielding;

/// The link is taken to be slower by this each time that the highest rates are forgotten.
const PEAK_DECAY: f64 = 0.97;
/// Rates are remembered between one and two times this long.
const KNOWN_SPAN: Duration = Duration::from_millis(1_500);
/// For so long after a silence the path may be longer than is known.
const UNSURE: Duration = Duration::from_secs(10);

/// What is lost by chance is sent on top, up to this share.
const LOSS_SENT_ON_TOP: f64 = 0.05;

/// As BBR: fewer packets in flight cannot keep acknowledgements coming.
const MIN_WINDOW_PACKETS: u64 = 4;

/// What is being done.
#[derive(Clone, Debug)]
enum Phase {
    /// Doubling until the path is full.
    Startup(Startup),
    Steady,
    Dip(Dip),
    Ramp(Ramp),
    Compete(Box<Cubic>),
}

/// The state on one path.
#[derive(Clone, Debug)]
pub(super) struct Tabane {
    mtu: Bytes,
    rng: Rng,
    model: Model,
    sense: Sense,
    silence: Silence,
    burst: Burst,
    chance: Chance,
    swing: Swing,
    fade: Fade,
    rivalry: Rivalry,
    phase: Phase,
    /// What the path delivers: the present rate while a queue stands, else the highest since.
    rate: Rate,
    /// Delay that is the path's while we send, beyond the shortest round trip.
    load: Duration,
    /// The round in which a ramp is due.
    ramp_in: Option<u64>,
    /// How many rounds after the one that finds nothing.
    ramp_pause: u64,
    /// The latest dip left a queue.
    is_doubted: bool,
    /// A ramp is due that asks whether the path has become longer.
    may_have_moved: bool,
    /// A silence was less than `UNSURE` before.
    unsure_until: Instant,
    /// How often one was due.
    ramps: u32,
    /// The highest rate of late: how fast the link is, whatever our share.
    peak: Rate,
    /// Rounds since there was a queue, and the latest in which the window grew.
    velocity: u32,
    grown_in: u64,
    gain: f64,
    cwnd: Bytes,
    pacing_rate: Rate,
    /// The window before we began to yield to a queue that did not go.
    window_before: Bytes,
    /// To a queue that is longer than what we allow, and to one that is not.
    yielding: Yielding,
    sinking: Yielding,
    /// When the window last changed.
    changed_at: Instant,
    /// The way back that is part of the shortest round trip, minus the clocks' offset.
    way_back: Option<i64>,
    /// The shortest way there, plus the clocks' offset.
    way_there: i64,
    /// It has changed: until then the window says nothing of how fast to send.
    paced_until: Instant,
    /// Loss ends start-up with the present round.
    is_full: bool,
    /// Loss showed that the path takes no more than this; until when it is believed.
    ceiling: Option<(Rate, Instant)>,
    /// When the path is looked at next, and the interval to the one after.
    look_at: Instant,
    look_interval: Duration,
    /// When the memory of rates was last advanced.
    known_since: Instant,
}

impl Tabane {
    pub(super) fn new(mtu: Bytes, now: Instant, rng: Rng) -> Self {
        let window = initial_window(mtu);
        Self {
            mtu,
            rng,
            model: Model::new(mtu, now),
            sense: Sense::new(now),
            silence: Silence::new(now),
            burst: Burst::new(now),
            chance: Chance::default(),
            swing: Swing::new(now),
            fade: Fade::new(now),
            rivalry: Rivalry::new(now),
            phase: Phase::Startup(Startup::new(now)),
            changed_at: now,
            way_back: None,
            way_there: i64::MAX,
            paced_until: now,
            rate: Rate::ZERO,
            load: Duration::ZERO,
            ramp_in: None,
            ramp_pause: ramp::PAUSE_MIN,
            is_doubted: false,
            may_have_moved: false,
            unsure_until: now,
            ramps: 0,
            peak: Rate::ZERO,
            velocity: 0,
            grown_in: 0,
            gain: 1.0,
            cwnd: window,
            pacing_rate: Rate::of(window, Duration::from_millis(1)).scaled(STARTUP_GAIN),
            window_before: window,
            yielding: Yielding::default(),
            sinking: Yielding::default(),
            is_full: false,
            ceiling: None,
            look_at: now,
            look_interval: LOOK_INTERVAL_MIN,
            known_since: now,
        }
    }

    // ---- what is believed ----

    fn min_window(&self) -> Bytes {
        Bytes::new(self.mtu.get() * MIN_WINDOW_PACKETS)
    }

    fn min_rtt(&self) -> Duration {
        self.model.min_rtt().unwrap_or(crate::rtt::INITIAL_RTT) + self.load
    }

    fn aim(&self) -> Aim {
        Aim {
            mtu: self.mtu,
            min_rtt: self.min_rtt(),
            rate: self.rate,
            peak: self.peak,
            jitter: self.sense.jitter(),
            batch: self.sense.batch(),
            swing: self.swing.hold() / HOLD_MAX,
        }
    }

    fn target(&self) -> Duration {
        self.aim().target()
    }

    /// What we and others like us never exceed for long.
    fn allowed_queue(&self) -> Duration {
        let least = self.least_queue() + self.target();
        if self.cwnd <= self.min_window() + self.min_window() {
            // What stands when we have yielded everything is not ours.
            least
        } else {
            self.aim().allowed().max(least)
        }
    }

    /// The queue that the smallest window makes on a short and slow path, where it is more than
    /// the path holds.
    fn least_queue(&self) -> Duration {
        let time = self.aim().time_on_link(self.min_window());
        time.saturating_sub(self.min_rtt())
    }

    /// The standing queue as time, eq. 3 without the rate, and what was in flight with it.
    fn queue(&self) -> (Duration, Standing) {
        let latest = self.sense.latest();
        let standing = if latest.rtt.saturating_sub(self.min_rtt()) > self.aim().queue_max() {
            latest
        } else {
            self.sense.standing()
        };
        if standing.rtt == Duration::MAX {
            let (rtt, window) = (self.min_rtt(), self.cwnd);
            return (
                Duration::ZERO,
                Standing {
                    rtt,
                    window,
                    sent_from: Instant::EPOCH,
                },
            );
        }
        (standing.rtt.saturating_sub(self.min_rtt()), standing)
    }

    fn is_queued(&self) -> bool {
        self.queue().0 > self.target()
    }

    /// Delivered and not yet acknowledged, on top of what the path holds.
    fn held_back(&self) -> Bytes {
        self.model.unqueued() - self.model.bdp()
    }

    /// The window kept even while less is delivered: on a link whose rate swings, what it lately
    /// carried it may carry again before we hear of it.
    fn kept_window(&self, now: Instant) -> Bytes {
        let rate = self.rate.as_bps();
        let above = self.model.bandwidth().as_bps().saturating_sub(rate) as f64;
        let kept = rate.saturating_add((above * self.swing.hold()) as u64);
        let kept = Rate::from_bps(kept).amount_in(self.min_rtt());
        kept.max(self.burst.usual(now))
    }

    // ---- outputs ----

    fn set_outputs(&mut self, event: &AckEvent<'_>, had_rtt: bool) {
        // What an application that hardly sends has measured must not keep it from sending.
        let floor = Rate::of(self.min_window(), self.min_rtt());
        match &self.phase {
            Phase::Startup { .. } => self.set_startup_outputs(event, had_rtt),
            Phase::Steady if self.ceiling.is_some() => {
                self.pacing_rate = self.rate.scaled(self.gain);
            }
            Phase::Steady => {
                let rtt = self.sense.latest().rtt;
                let rtt = if rtt == Duration::MAX {
                    self.min_rtt()
                } else {
                    rtt
                };
                let on_top = self.chance.usual().min(LOSS_SENT_ON_TOP);
                // A window for acknowledgements that queue is not to leave at once when they come.
                let rate = match event.now < self.paced_until && self.is_even() {
                    true => self.rate,
                    false => self.rate.max(Rate::of(self.cwnd, rtt)),
                };
                self.pacing_rate = rate.scaled(self.gain * (1.0 + on_top)).max(floor);
            }
            Phase::Ramp(_) => {
                let rtt = self.model.last.mean_rtt();
                let rtt = rtt.unwrap_or_else(|| self.min_rtt());
                self.pacing_rate = Rate::of(self.cwnd, rtt).max(self.rate).scaled(1.25);
            }
            Phase::Dip(dip) => {
                self.pacing_rate = dip.rate.max(floor);
                self.cwnd = dip.cwnd(event.now);
            }
            Phase::Compete(cubic) => {
                self.pacing_rate = cubic.pacing_rate();
                self.cwnd = cubic.cwnd();
            }
        }
        self.cwnd = self.cwnd.max(self.min_window());
    }
}

/// The first multiple of `term` by the host's clock after `now`: what all paths of a host do then
/// they do together.
fn next_multiple(now: Instant, term: Duration) -> Instant {
    let term = (term.as_nanos() as u64).max(1);
    Instant::from_nanos((now.as_nanos() / term + 1).saturating_mul(term))
}

impl Algorithm for Tabane {
    fn on_sent(&mut self, now: Instant, bytes: Bytes, in_flight: Bytes) {
        if in_flight == Bytes::ZERO {
            self.model.on_restart(now);
            self.silence.on_restart(now);
            self.burst.on_restart(now);
        }
        if let Phase::Compete(cubic) = &mut self.phase {
            cubic.on_sent(now, bytes, in_flight);
        }
    }

    fn on_ack(&mut self, event: &AckEvent<'_>) {
        let had_rtt = self.model.min_rtt().is_some();
        self.burst.on_ack(event, self.min_rtt());
        let mut sample = *event.sample;
        sample.rtt = self.usual_trip(event);
        if had_rtt && !self.silence.on_ack(event, self.min_rtt()) {
            (sample.rtt, sample.rate) = (None, None);
            self.may_have_moved = true;
            self.unsure_until = event.now + UNSURE;
            self.look_at = self.look_at.min(event.now + LOOK_INTERVAL_MIN);
            self.ramp_in = Some(self.model.rounds + ramp::AFTER_SILENCE);
            // Until the pipe is filled again, less in use says nothing of the window.
            self.changed_at = event.now + self.min_rtt();
        }
        let event = &AckEvent {
            sample: &sample,
            ..*event
        };
        self.model.on_ack(event);
        let is_calm = !matches!(self.phase, Phase::Dip(_));
        let is_span_over = self.sense.on_ack(event, is_calm);
        if is_span_over {
            self.fade.on_span(event.now, self.sense.carried());
            self.follow_way_back(event.now);
        }
        if self.model.is_round_start {
            let is_quiet = matches!(self.phase, Phase::Steady) && !self.is_queued();
            self.chance
                .on_round(&self.model, is_quiet, self.has_grown());
            if event.now.since(self.known_since) > KNOWN_SPAN {
                self.known_since = event.now;
                self.model.advance_cycle();
                self.peak = self.peak.scaled(PEAK_DECAY).max(self.rate);
            }
        }
        match &mut self.phase {
            Phase::Startup(startup) => {
                let startup = *startup;
                self.advance_startup(event, startup);
            }
            Phase::Steady if is_span_over => self.advance_steady(event.now),
            Phase::Ramp(ramp) => {
                let ramp = *ramp;
                self.advance_ramp(event.now, ramp);
            }
            Phase::Steady => {}
            Phase::Dip(dip) => {
                if dip.advance(event) {
                    let dip = dip.clone();
                    self.end_dip(event.now, dip);
                }
            }
            Phase::Compete(_) => self.advance_compete(event),
        }
        self.set_outputs(event, had_rtt);
    }

    fn on_loss(&mut self, event: &LossEvent) {
        let is_silence =
            (self.silence).explains(event.now, event.largest_lost_sent_at, self.min_rtt());
        if is_silence && self.model.min_rtt().is_some() {
            return;
        }
        self.model.on_lost(event);
        if event.persistent {
            self.cwnd = self.min_window();
        }
        let is_chance = self.chance.explains(&self.model, self.mtu);
        if let Phase::Compete(cubic) = &mut self.phase
            && (!is_chance || event.persistent)
        {
            cubic.on_loss(event);
        }
        let is_ramp = matches!(self.phase, Phase::Ramp(_));
        let is_growth = self.has_grown() && self.chance.has_learnt_enough();
        let is_pushing = self.velocity > 0 || is_growth || self.is_queued() || is_ramp;
        if self.chance.is_congestion(&self.model, self.mtu, is_pushing) {
            self.handle_congestion(event.now);
        }
    }

    fn on_spurious_loss(&mut self, now: Instant) {
        self.ceiling = None;
        if let Phase::Compete(cubic) = &mut self.phase {
            cubic.on_spurious_loss(now);
        }
    }

    fn on_path_reset(&mut self, now: Instant) {
        *self = Self::new(self.mtu, now, self.rng.clone());
    }

    fn on_clock_leap(&mut self) {
        self.way_back = None;
        self.way_there = i64::MAX;
        self.sense.forget_ways_back();
    }

    fn on_mtu(&mut self, mtu: Bytes) {
        self.mtu = mtu;
        self.model.packet = mtu;
        self.cwnd = self.cwnd.max(self.min_window());
        if let Phase::Compete(cubic) = &mut self.phase {
            cubic.on_mtu(mtu);
        }
    }

    fn cwnd(&self) -> Bytes {
        self.cwnd
    }

    fn pacing_rate(&self) -> Rate {
        self.pacing_rate
    }

    fn snapshot(&self) -> ControllerSnapshot {
        ControllerSnapshot {
            state: match self.phase {
                Phase::Startup { .. } => "startup",
                Phase::Steady => "steady",
                Phase::Dip(_) => "dip",
                Phase::Ramp(_) => "ramp",
                Phase::Compete(_) => "compete",
            },
            cwnd: self.cwnd,
            pacing_rate: self.pacing_rate,
            bandwidth: self.rate,
            min_rtt: self.model.min_rtt(),
        }
    }
}
