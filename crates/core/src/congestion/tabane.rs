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
//! A `Dip` takes our queue out of the path for a moment: every few seconds, to see its true
//! length, which those who came later than others do not know; and when the queue exceeds what we
//! and others like us allow. Whose queue it is, `rival` judges. Beside somebody who keeps it full
//! (a TCP with cubic or reno, BBR in a shallow buffer) a short queue means starving, so `Compete`
//! is cubic, until a dip finds the queue gone.
//!
//! Loss counts only where it exceeds what chance explains and no queue does: then the path takes
//! no more (a policer, hardly any buffer), and nothing more is tried for a second or two.

mod aim;
mod chance;
mod dip;
mod rival;
mod sense;
mod swing;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, scale};

use super::cubic::Cubic;
use super::model::Model;
use super::{AckEvent, Algorithm, ControllerSnapshot, LossEvent, initial_window, scaled};
use aim::Aim;
use chance::Chance;
use dip::Dip;
use rival::{Rivalry, Verdict};
use sense::{Sense, Standing};
use swing::{HOLD_MAX, Swing};

/// As BBR: the least gain that doubles the delivery rate each round trip.
const STARTUP_GAIN: f64 = 2.77;
/// As BBR: start-up is over after so many rounds without such growth, or one with such a queue.
const FULL_ROUNDS: u32 = 3;
const FULL_GROWTH: f64 = 1.25;
const FULL_QUEUE: f64 = 0.25;
/// Loss before so many rounds says little of the rate: it counts at the end of the round.
const STARTUP_ROUNDS: u64 = 3;

/// The step up doubles with each round without a queue, so often at most.
const VELOCITY_MAX: u32 = 6;
/// The window in use shows the last growth when it is this part of the window.
const GROWTH_SEEN: f64 = 0.95;
/// The window grows at most so much in a round trip.
const GROWTH_MAX: f64 = 1.5;
/// Pacing above what the window asks for, so that the window decides; and while growing.
const GAIN: f64 = 1.05;
const GAIN_GROWING: f64 = 1.25;

/// How much shorter than the path a look makes us; enough to show what others queue.
const LOOK_DEPTH: Duration = Duration::from_millis(15);
/// No dip is deeper than this part of what the path holds.
const DIP_PART: u32 = 4;
/// Looks come this often after something was found, ever less often otherwise.
const LOOK_INTERVAL_MIN: Duration = Duration::from_secs(2);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(8);
/// At least so many round trips apart: each costs up to a quarter of one.
const LOOK_RTTS: u32 = 20;
/// A path shorter by this than was known is something found.
const LOOK_NEWS: Duration = Duration::from_millis(1);

/// Yielding is vain when the window in use is down to this part and the queue still has that.
const VAIN_WINDOW: f64 = 0.7;
const VAIN_QUEUE: f64 = 0.8;
/// Where the rate swings so much, a queue proves nothing.
const SWINGING: f64 = 1.0;
/// The link is taken to be slower by this each time that the highest rates are forgotten.
const PEAK_DECAY: f64 = 0.97;
/// Rates are remembered between one and two times this long.
const KNOWN_SPAN: Duration = Duration::from_millis(1_500);

/// What is lost by chance is sent on top, up to this share.
const LOSS_SENT_ON_TOP: f64 = 0.05;
/// How long nothing more is tried after loss without a queue; up to twice that, by chance.
const CEILING_HOLD: Duration = Duration::from_millis(1_000);
/// Pacing right after such loss.
const GAIN_CEILING: f64 = 0.95;

/// As BBR: fewer packets in flight cannot keep acknowledgements coming.
const MIN_WINDOW_PACKETS: u64 = 4;

/// What is being done.
#[derive(Clone, Debug)]
enum Phase {
    /// Doubling until the path is full; the rate when it last grew, and the rounds since.
    Startup {
        rate: Rate,
        rounds_without: u32,
    },
    Steady,
    Dip(Dip),
    Compete(Box<Cubic>),
}

/// The state on one path.
#[derive(Clone, Debug)]
pub(super) struct Tabane {
    mtu: Bytes,
    rng: Rng,
    model: Model,
    sense: Sense,
    chance: Chance,
    swing: Swing,
    rivalry: Rivalry,
    phase: Phase,
    /// What the path delivers: the present rate while a queue stands, else the highest since.
    rate: Rate,
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
    /// The longest queue since then, and what was in flight with it.
    yielding_from: Option<(Duration, Bytes)>,
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
            chance: Chance::default(),
            swing: Swing::new(now),
            rivalry: Rivalry::new(now),
            phase: Phase::Startup {
                rate: Rate::ZERO,
                rounds_without: 0,
            },
            rate: Rate::ZERO,
            peak: Rate::ZERO,
            velocity: 0,
            grown_in: 0,
            gain: 1.0,
            cwnd: window,
            pacing_rate: Rate::of(window, Duration::from_millis(1)).scaled(STARTUP_GAIN),
            window_before: window,
            yielding_from: None,
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
        self.model.min_rtt().unwrap_or(crate::rtt::INITIAL_RTT)
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
        if self.cwnd <= self.min_window() + self.min_window() {
            // What stands when we have yielded everything is not ours.
            self.target()
        } else {
            self.aim().allowed()
        }
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
            return (Duration::ZERO, Standing { rtt, window });
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
    fn kept_window(&self) -> Bytes {
        let rate = self.rate.as_bps();
        let above = self.model.bandwidth().as_bps().saturating_sub(rate) as f64;
        let kept = rate.saturating_add((above * self.swing.hold()) as u64);
        Rate::from_bps(kept).amount_in(self.min_rtt())
    }

    // ---- start-up ----

    fn advance_startup(&mut self, event: &AckEvent<'_>, rate: Rate, rounds_without: u32) {
        if !self.model.is_round_start || event.sample.is_app_limited {
            return;
        }
        let bandwidth = self.model.bandwidth();
        let is_growing = bandwidth >= rate.scaled(FULL_GROWTH) && !self.is_full;
        let is_queued = self.model.is_queue(self.model.last.rtt_min, FULL_QUEUE);
        if is_growing {
            self.phase = Phase::Startup {
                rate: bandwidth,
                rounds_without: 0,
            };
        } else if is_queued || self.is_full || rounds_without + 1 >= FULL_ROUNDS {
            self.leave_startup(event.now);
        } else {
            self.phase = Phase::Startup {
                rate,
                rounds_without: rounds_without + 1,
            };
        }
    }

    fn leave_startup(&mut self, now: Instant) {
        let rate = self.model.bandwidth();
        self.rate = if rate > Rate::ZERO {
            rate
        } else {
            self.pacing_rate
        };
        self.peak = self.rate;
        self.swing.begin(self.rate);
        self.enter_steady(now);
        self.cwnd = self.rate.amount_in(self.min_rtt() + self.target()) + self.held_back();
        self.window_before = self.cwnd;
        self.look(now);
    }

    // ---- steady ----

    fn enter_steady(&mut self, now: Instant) {
        self.phase = Phase::Steady;
        self.sense.restart(now);
        self.velocity = 0;
        self.gain = GAIN;
    }

    fn advance_steady(&mut self, now: Instant) {
        let (queue, standing) = self.queue();
        let is_long = queue > self.allowed_queue() && self.swing.hold() < SWINGING;
        let is_vain = is_long && self.is_yielding_vain(queue, standing);
        if !is_vain {
            self.control(now);
        }
        self.rivalry.on_span(now, self.min_rtt(), is_long);
        self.rivalry.on_round_trip(now, self.min_rtt() + queue);
        if !is_long {
            self.window_before = self.cwnd;
            self.yielding_from = None;
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

    /// Whether a queue stays although the window has shrunk. Ours would have shrunk with it: by
    /// Little's law, what is in flight is the rate times the round trip.
    fn is_yielding_vain(&mut self, queue: Duration, standing: Standing) -> bool {
        let from = self.yielding_from.filter(|(longest, _)| queue <= *longest);
        let (longest, window) = *self
            .yielding_from
            .insert(from.unwrap_or((queue, standing.window)));
        standing.window <= scaled(window, VAIN_WINDOW) && queue >= scale(longest, VAIN_QUEUE)
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
        let ((queue, standing), target) = (self.queue(), self.target());
        let kept = self.kept_window();
        let in_use = standing.window;
        let mut window = if queue > target {
            self.velocity = 0;
            self.lowered(in_use, queue, target).min(self.cwnd).max(kept)
        } else {
            let kept = self.cwnd.max(kept.min(in_use + in_use));
            if is_measured && self.model.rounds > self.grown_in {
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
                window = window.min(self.cwnd);
            } else {
                self.ceiling = None;
                self.velocity = 0;
            }
        }
        self.cwnd = window;
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
        let most =
            scaled(in_use, GROWTH_MAX - 1.0).min(self.rate.amount_in(self.aim().queue_max()));
        in_use + step.min(most.max(self.mtu))
    }

    // ---- dips and rivals ----

    /// A dip to `depth` below what the path holds, or a quarter of that.
    fn dip(&self, now: Instant, rate: Rate, depth: Duration) -> Dip {
        let min_rtt = self.min_rtt();
        let length = min_rtt - (min_rtt / DIP_PART).min(depth);
        let window = rate.amount_in(length) + self.held_back();
        Dip::new(now, rate, min_rtt, window.max(self.min_window()), self.cwnd)
    }

    fn look(&mut self, now: Instant) {
        self.phase = Phase::Dip(self.dip(now, self.rate, LOOK_DEPTH));
    }

    fn end_dip(&mut self, now: Instant, dip: Dip) {
        self.rate = dip.rate;
        // Whoever came later than others may have taken their queue for a part of the route.
        self.look_interval = if self.min_rtt() + LOOK_NEWS < dip.min_rtt {
            LOOK_INTERVAL_MIN
        } else {
            (self.look_interval * 2).min(LOOK_INTERVAL_MAX)
        };
        let pause = self.look_interval.max(self.min_rtt() * LOOK_RTTS);
        self.look_at = next_multiple(now + pause / 2, self.look_interval);
        let tolerance = self.target().max(self.min_rtt() / 16);
        let found = dip.found().unwrap_or_else(|| self.min_rtt());
        let is_competing = dip.cubic.is_some();
        match self
            .rivalry
            .judge(now, found, self.min_rtt(), tolerance, is_competing)
        {
            Verdict::Ours | Verdict::Doubt => {
                if let Some(cubic) = dip.cubic {
                    self.window_before = cubic.cwnd();
                }
                self.enter_steady(now);
            }
            Verdict::LongerRoute(rtt) => {
                self.model.replace_min_rtt(now, rtt);
                self.cwnd = self.cwnd.max(self.window_before);
                self.enter_steady(now);
            }
            Verdict::Rival => match dip.cubic {
                Some(cubic) => {
                    self.rivalry.compete(now);
                    self.phase = Phase::Compete(cubic);
                }
                None => self.compete(now),
            },
        }
    }

    fn compete(&mut self, now: Instant) {
        self.rivalry.compete(now);
        let window = self.window_before.max(self.cwnd);
        self.phase = Phase::Compete(Box::new(Cubic::from_window(self.mtu, now, window)));
    }

    fn advance_compete(&mut self, event: &AckEvent<'_>) {
        let Phase::Compete(cubic) = &mut self.phase else {
            return;
        };
        cubic.on_ack(event);
        if event.now >= self.rivalry.compete_until {
            let cubic = cubic.clone();
            // Those who came while others competed know only a longer path: dig deeper for them.
            let rate = self.model.latest_rate();
            let window = rate
                .amount_in(self.min_rtt() / DIP_PART)
                .max(self.min_window());
            let mut dip = Dip::new(event.now, rate, self.min_rtt(), window, self.cwnd);
            dip.cubic = Some(cubic);
            self.phase = Phase::Dip(dip);
        }
    }

    // ---- loss ----

    fn handle_congestion(&mut self, now: Instant) {
        self.chance.answer(&self.model);
        match self.phase {
            Phase::Startup { .. } if self.model.rounds >= STARTUP_ROUNDS => self.leave_startup(now),
            Phase::Startup { .. } => self.is_full = true,
            Phase::Steady if self.is_queued() => self.velocity = 0,
            Phase::Steady => {
                self.rate = if Chance::is_massive(&self.model, self.mtu) {
                    self.model.latest_rate()
                } else {
                    self.model.bandwidth()
                };
                let window = self.rate.amount_in(self.min_rtt() + self.target());
                self.cwnd = self.cwnd.min(window);
                let chance = scale(CEILING_HOLD, self.rng.unit());
                self.ceiling = Some((self.rate, now + CEILING_HOLD + chance));
                self.gain = GAIN_CEILING;
                self.velocity = 0;
            }
            Phase::Dip(_) | Phase::Compete(_) => {}
        }
    }

    // ---- outputs ----

    fn set_outputs(&mut self, event: &AckEvent<'_>, had_rtt: bool) {
        match &self.phase {
            Phase::Startup { .. } => self.set_startup_outputs(event, had_rtt),
            Phase::Steady if self.ceiling.is_some() => {
                self.pacing_rate = self.rate.scaled(self.gain);
            }
            Phase::Steady => {
                let rtt = self.sense.latest().rtt;
                let rtt = if rtt == Duration::MAX {
                    event.rtt.smoothed()
                } else {
                    rtt
                };
                let on_top = self.chance.usual().min(LOSS_SENT_ON_TOP);
                let rate = self.rate.max(Rate::of(self.cwnd, rtt));
                self.pacing_rate = rate.scaled(self.gain * (1.0 + on_top));
            }
            Phase::Dip(dip) => {
                self.pacing_rate = dip.rate;
                self.cwnd = dip.cwnd(event.now);
            }
            Phase::Compete(cubic) => {
                self.pacing_rate = cubic.pacing_rate();
                self.cwnd = cubic.cwnd();
            }
        }
        self.cwnd = self.cwnd.max(self.min_window());
    }

    fn set_startup_outputs(&mut self, event: &AckEvent<'_>, had_rtt: bool) {
        let initial = initial_window(self.mtu);
        if !had_rtt && self.model.min_rtt().is_some() {
            self.pacing_rate = Rate::of(initial, event.rtt.smoothed()).scaled(STARTUP_GAIN);
        }
        let bandwidth = self.model.bandwidth();
        if self.is_full {
            self.pacing_rate = bandwidth;
            return;
        }
        self.pacing_rate = self.pacing_rate.max(bandwidth.scaled(STARTUP_GAIN));
        if self.cwnd < self.model.window() || event.sample.total_delivered < initial {
            self.cwnd += event.sample.newly_acked;
        }
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
        }
        if let Phase::Compete(cubic) = &mut self.phase {
            cubic.on_sent(now, bytes, in_flight);
        }
    }

    fn on_ack(&mut self, event: &AckEvent<'_>) {
        let had_rtt = self.model.min_rtt().is_some();
        self.model.on_ack(event);
        let is_span_over = self.sense.on_ack(event);
        if self.model.is_round_start {
            let is_quiet = matches!(self.phase, Phase::Steady) && !self.is_queued();
            self.chance.on_round(&self.model, is_quiet);
            if event.now.since(self.known_since) > KNOWN_SPAN {
                self.known_since = event.now;
                self.model.advance_cycle();
                self.peak = self.peak.scaled(PEAK_DECAY).max(self.rate);
            }
        }
        match &mut self.phase {
            Phase::Startup {
                rate,
                rounds_without,
            } => {
                let (rate, rounds_without) = (*rate, *rounds_without);
                self.advance_startup(event, rate, rounds_without);
            }
            Phase::Steady if is_span_over => self.advance_steady(event.now),
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
        self.model.on_lost(event.lost);
        if event.persistent {
            self.cwnd = self.min_window();
        }
        let is_chance = self.chance.explains(&self.model, self.mtu);
        if let Phase::Compete(cubic) = &mut self.phase
            && (!is_chance || event.persistent)
        {
            cubic.on_loss(event);
        }
        let is_pushing = self.velocity > 0 || self.is_queued();
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
                Phase::Compete(_) => "compete",
            },
            cwnd: self.cwnd,
            pacing_rate: self.pacing_rate,
            bandwidth: self.rate,
            min_rtt: self.model.min_rtt(),
        }
    }
}
