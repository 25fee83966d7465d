//! Doubling until the path is full, and what tells that it is.
//!
//! As BBR: it is full when the rate grows no more. That takes rounds, in which two round trips'
//! worth queues. So a growing queue is looked for as well, as HyStart does (RFC 9406 §4.2), and
//! what passes while it stands tells the bottleneck's rate at once (R-M/TCP's packet pair, with a
//! train of many): nothing more has to be tried.
//!
//! Jitter looks like such a queue. What tells them apart: it delays a packet that has the path for
//! itself as well, and it comes in jumps, where a queue grows step by step, and by a good part of
//! the time in which more is sent than passes. Delay in rounds in which the rate still grew is
//! taken to be the path's from then on.

use tabane_base::{Bytes, Duration, Instant, Rate, scale};

use super::{Phase, Tabane};
use crate::congestion::model::shifted;
use crate::congestion::{AckEvent, initial_window};

/// As BBR: the least gain that doubles the delivery rate each round trip.
pub(super) const STARTUP_GAIN: f64 = 2.77;
/// As BBR: start-up is over after so many rounds without such growth, or one with such a queue.
const FULL_ROUNDS: u32 = 3;
const FULL_GROWTH: f64 = 1.25;
const FULL_QUEUE: f64 = 0.25;

/// A round trip this near the shortest, or within this part of it, tells of no queue.
const NEAR: Duration = Duration::from_millis(1);
const NEAR_PART: u32 = 32;
/// The queue grows when it is longer than this, or than this part of the round trip (RFC 9406:
/// 4 ms and an eighth as well), in so many acknowledgements on end.
const FAR: Duration = Duration::from_millis(4);
const FAR_PART: u32 = 8;
const FAR_SAMPLES: u32 = 4;
/// In so many where round trips rise or have fallen as only jitter's do: a wave of it that holds up
/// four acknowledgements was taken for a queue at a seventh of the rate, and less. A queue of ours
/// stays, and a long one is not waited for.
const FAR_SAMPLES_IN_JITTER: u32 = 16;
/// So many falls by as much mean jitter.
const FALLS: u32 = 2;
/// Acknowledgements of a full pipe are at most so many times further apart than usual, or by this
/// part of the round trip.
const GAP: u32 = 4;
/// Delay that came while the rate still grew is no queue of ours. Where start-up was over after so
/// few rounds, it may be that of others who fill the link.
const ROUNDS_OF_OTHERS: u64 = 4;
/// And little is more than packets and hosts explain, or not so many times as much.
const LOAD: u32 = 4;
/// Packet by packet a queue grows in more steps than this.
const JUMP: u32 = 3;
/// What grows by this part of the time is our queue, jumps or not: more is sent than passes.
const OURS_PART: u32 = 2;
/// With so few packets under way there is no queue of ours: what delays them is the path's.
const LONE_PACKETS: u64 = 3;
/// Fewer packets tell little of the rate …
const TRAIN_PACKETS: u64 = 16;
/// … and so few say little of a path that has just shown them to come this many times as fast, by
/// so many of the latest acknowledgements: what waits for jitter comes together, what waits for the
/// link one after the other. Where others' packets go between ours, they come together as well, but
/// their queue grows in more steps than so many: four that join each other shared as 0.1 to 0.7
/// without that, or with 64 packets.
const FEW_PACKETS: u64 = 40;
const FASTER: f64 = 1.7;
const STEPS: f64 = 3.5;
const LATEST: usize = 4;
const LATEST_PACKETS: u64 = 5;
/// … but a queue as long as the path, and longer than this, is not waited for: a slow link takes a
/// second for so many packets, and start-up goes on filling it meanwhile.
const LONG: Duration = Duration::from_millis(50);

/// What start-up has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Startup {
    /// The rate when it last grew, and the rounds since.
    rate: Rate,
    rounds_without: u32,
    /// When the queue was last empty, and what was acknowledged since: at the bottleneck's rate.
    queued_from: Instant,
    acked: Bytes,
    /// By so many, the latest at `acked_at`.
    acks: u32,
    acked_at: Instant,
    /// What packets waited that had the path for themselves, together, and how many did.
    alone: Duration,
    lone: u32,
    /// Acknowledgements since the queue was last short.
    far: u32,
    /// The shortest round trip of the latest round in which the rate still grew.
    growing: Duration,
    /// How often round trips became much shorter: no queue of ours does that now.
    falls: u32,
    is_falling: bool,
    /// Where the present rise or fall came to, and where the rise began.
    turn: Duration,
    rise: Duration,
    /// Its largest step.
    jump: Duration,
    /// At the latest acknowledgement.
    queue: Duration,
    /// The latest acknowledgements: when they came, and what was delivered in all by then.
    latest: [(Instant, Bytes); LATEST],
    /// The fastest that a few packets were acknowledged.
    fastest: Rate,
}

impl Startup {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            rate: Rate::ZERO,
            rounds_without: 0,
            queued_from: now,
            acked: Bytes::ZERO,
            acks: 0,
            acked_at: now,
            alone: Duration::ZERO,
            lone: 0,
            far: 0,
            growing: Duration::ZERO,
            falls: 0,
            is_falling: false,
            turn: Duration::ZERO,
            rise: Duration::ZERO,
            jump: Duration::ZERO,
            queue: Duration::ZERO,
            latest: [(now, Bytes::ZERO); LATEST],
            fastest: Rate::ZERO,
        }
    }

    /// Round trips are reckoned with a way back that is longer by `nanos` from here on.
    pub(super) fn shift(&mut self, nanos: i64) {
        self.growing = shifted(self.growing, nanos);
    }

    /// How fast the latest packets came.
    fn clock(&mut self, event: &AckEvent<'_>, mtu: Bytes) {
        let delivered = event.sample.total_delivered;
        for (at, before) in self.latest {
            let came = delivered - before;
            if before > Bytes::ZERO && came >= Bytes::new(mtu.get() * LATEST_PACKETS) {
                let span = event.sample.unheld.since(at).max(Duration::from_nanos(1));
                self.fastest = self.fastest.max(Rate::of(came, span));
            }
        }
        self.latest.rotate_left(1);
        self.latest[LATEST - 1] = (event.sample.unheld, delivered);
    }

    /// Whether `rate` is that of too few packets for what others of them have shown.
    fn is_disproved(&self, rate: Rate, min_rtt: Duration, mtu: Bytes) -> bool {
        rate.amount_in(min_rtt) <= Bytes::new(mtu.get() * FEW_PACKETS)
            && self.fastest > rate.scaled(FASTER)
            && (self.falls > 0 || scale(self.jump, STEPS) >= self.turn.saturating_sub(self.rise))
    }

    /// Counts falls: what jitter adds comes at once and goes again with the next packets; a queue
    /// grows step by step.
    fn follow(&mut self, queue: Duration, far: Duration) {
        self.jump = self.jump.max(queue.saturating_sub(self.queue));
        self.queue = queue;
        if self.is_falling {
            self.turn = self.turn.min(queue);
            if queue > self.turn + far {
                (self.is_falling, self.rise) = (false, self.turn);
                self.turn = queue;
            }
        } else {
            self.turn = self.turn.max(queue);
            if queue + far < self.turn {
                self.falls += u32::from(self.is_jump());
                (self.is_falling, self.jump) = (true, Duration::ZERO);
                self.turn = queue;
            }
        }
    }

    /// Whether what waits came at once, as jitter's does.
    fn is_jump(&self) -> bool {
        self.jump * JUMP > self.turn.saturating_sub(self.rise)
    }

    /// Whether nothing came for so long that the pipe was not full: a queue is never idle.
    fn is_gap(&self, now: Instant, min_rtt: Duration) -> bool {
        let usual = self.acked_at.since(self.queued_from) / self.acks.max(1);
        now.since(self.acked_at) > (usual * GAP).max(min_rtt / 2)
    }

    /// The bottleneck's rate, once its queue grows.
    fn bottleneck(&mut self, event: &AckEvent<'_>, min_rtt: Duration, mtu: Bytes) -> Option<Rate> {
        let queue = event.sample.rtt?.saturating_sub(min_rtt);
        let near = NEAR.max(min_rtt / NEAR_PART);
        let is_alone = event.sample.tx_in_flight <= Bytes::new(mtu.get() * LONE_PACKETS);
        if is_alone {
            self.alone += queue;
            self.lone += 1;
        }
        let far = FAR.max(min_rtt / FAR_PART) + self.alone * 2 / self.lone.max(1);
        if !(is_alone && event.sample.is_app_limited) {
            self.follow(queue, far);
        }
        // What queues for the way back comes at once, and was not delivered so.
        let at = event.sample.unheld;
        let is_gap = self.is_gap(at, min_rtt);
        self.acked_at = at;
        if queue <= near || self.is_falling || is_gap && self.is_jump() {
            self.queued_from = at;
            self.acked = Bytes::ZERO;
            self.acks = 0;
            self.far = 0;
            return None;
        }
        self.acked += event.sample.newly_acked;
        self.acks += 1;
        self.far = if queue > far { self.far + 1 } else { 0 };
        let is_long = queue > LONG.max(min_rtt);
        let is_enough = self.acked >= Bytes::new(mtu.get() * TRAIN_PACKETS) || is_long;
        let span = at.since(self.queued_from);
        let is_ours = queue >= span / OURS_PART || !self.is_jump();
        let far_samples = match (self.falls > 0 || self.is_jump()) && !is_long {
            true => FAR_SAMPLES_IN_JITTER,
            false => FAR_SAMPLES,
        };
        (self.far >= far_samples && is_enough && is_ours && !span.is_zero())
            .then(|| Rate::of(self.acked, span))
    }
}

impl Tabane {
    pub(super) fn advance_startup(&mut self, event: &AckEvent<'_>, mut startup: Startup) {
        startup.clock(event, self.mtu);
        let bottleneck = startup.bottleneck(event, self.min_rtt(), self.mtu);
        self.phase = Phase::Startup(startup);
        if let Some(rate) = bottleneck
            && startup.falls < FALLS
            && !startup.is_disproved(rate, self.min_rtt(), self.mtu)
        {
            // Acknowledgements that waited together for the way back come faster than anything
            // was sent.
            let rate = rate.min(self.pacing_rate);
            // It was our queue that grew.
            self.sense.forget_jitter();
            self.leave_startup(event.now, rate);
            return;
        }
        if !self.model.is_round_start {
            return;
        }
        let is_limited = event.sample.is_app_limited;
        let bandwidth = self.model.bandwidth();
        let is_growing = bandwidth >= startup.rate.scaled(FULL_GROWTH) && !self.is_full;
        let is_queued = self.model.is_queue(self.model.last.rtt_min, FULL_QUEUE);
        if is_growing {
            startup.rate = bandwidth;
            startup.rounds_without = 0;
            startup.growing = self.model.last.rtt_min;
        } else {
            startup.rounds_without += u32::from(!is_limited);
        }
        self.phase = Phase::Startup(startup);
        let is_over = is_queued || self.is_full || startup.rounds_without >= FULL_ROUNDS;
        if !is_growing && !is_limited && is_over {
            self.leave_startup(event.now, Rate::ZERO);
        }
    }

    /// Start-up ended too soon, for jitter: it goes on, and no queue's growth ends it now.
    pub(super) fn resume_startup(&mut self, now: Instant) {
        self.restart_startup(now);
        if let Phase::Startup(startup) = &mut self.phase {
            startup.falls = FALLS;
        }
    }

    /// The path may carry much more than it does at present, whatever it carried before.
    pub(super) fn restart_startup(&mut self, now: Instant) {
        let mut startup = Startup::new(now);
        startup.rate = self.model.bandwidth().scaled(1.0 / FULL_GROWTH);
        startup.growing = self.model.last.rtt_min;
        self.is_full = false;
        self.phase = Phase::Startup(startup);
    }

    /// The path is full: it delivers `rate`, or more if more was seen.
    pub(super) fn leave_startup(&mut self, now: Instant, rate: Rate) {
        let rate = self.model.bandwidth().max(rate);
        self.rate = if rate > Rate::ZERO {
            rate
        } else {
            self.pacing_rate
        };
        self.peak = self.rate;
        self.swing.begin(self.rate);
        if let Phase::Startup(startup) = self.phase
            && self.model.rounds > ROUNDS_OF_OTHERS
        {
            let load = self.load_at(startup.growing);
            if startup.falls >= FALLS || load > self.usual_scatter() * LOAD {
                self.load = load;
            }
        }
        self.enter_steady(now);
        self.cwnd = self.rate.amount_in(self.min_rtt() + self.target()) + self.held_back();
        self.cwnd = self.cwnd.max(self.burst.usual(now));
        self.window_before = self.cwnd;
        self.look(now);
    }

    pub(super) fn set_startup_outputs(&mut self, event: &AckEvent<'_>, had_rtt: bool) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Algorithm as _;
    use crate::delivery::RateSample;
    use crate::rtt::RttEstimator;
    use tabane_base::Seed;

    const MTU: Bytes = Bytes::new(1_500);

    /// A link whose way back comes in bursts: what piled up for 50 ms is acknowledged at once. The
    /// rate of nothing in no time was believed, and 600 kB left on a link of 13 Mbit/s.
    #[test]
    fn acknowledgements_at_one_moment_do_not_make_a_link_infinitely_fast() {
        for apart in [Duration::ZERO, Duration::from_nanos(1)] {
            let mut path = Tabane::new(MTU, Instant::EPOCH, Seed(1).rng("path"));
            let mut number = 0;
            let mut acknowledge = |path: &mut Tabane, now: Instant, rtt_ms: u64| {
                number += 4;
                let sample = RateSample {
                    newly_acked: Bytes::new(MTU.get() * 4),
                    total_delivered: Bytes::new(MTU.get() * number),
                    prior_delivered: Bytes::new(MTU.get() * (number - 4)),
                    rtt: Some(Duration::from_millis(rtt_ms)),
                    rate: Some(Rate::from_mbps(10)),
                    tx_in_flight: Bytes::new(MTU.get() * 40),
                    unheld: now,
                    ..RateSample::default()
                };
                path.on_ack(&AckEvent {
                    now,
                    sample: &sample,
                    trip: None,
                    way_back: None,
                    rtt: &RttEstimator::default(),
                    in_flight_after: MTU,
                    largest_acked_sent_at: now - Duration::from_millis(rtt_ms),
                });
            };
            for ms in 100..104 {
                acknowledge(&mut path, Instant::from_millis(ms), 70);
            }
            let sent_at = path.pacing_rate();
            for ack in 0..12 {
                acknowledge(&mut path, Instant::from_millis(154) + apart * ack, 90);
            }
            assert!(
                path.rate <= sent_at,
                "{} apart: {}",
                apart.as_nanos(),
                path.rate
            );
        }
    }

    /// A link of 10 Mbit/s delivers packets one after the other; the other direction's queue lets
    /// their acknowledgements through together, which was taken for a rate of 200 Mbit/s.
    #[test]
    fn acknowledgements_that_waited_together_tell_when_their_packets_arrived() {
        let length = Duration::from_millis(70);
        let takes = Rate::from_mbps(10).time_for(MTU) * 4;
        let released = Instant::from_millis(300);
        let mut startup = Startup::new(Instant::EPOCH);
        let found = (0..20).find_map(|number| {
            let sample = RateSample {
                newly_acked: Bytes::new(MTU.get() * 4),
                rtt: Some(length + takes * number * 2 / 3),
                tx_in_flight: Bytes::new(MTU.get() * 40),
                unheld: Instant::from_millis(100) + takes * number,
                ..RateSample::default()
            };
            let event = AckEvent {
                now: released + Duration::from_micros(200) * number,
                sample: &sample,
                trip: None,
                way_back: None,
                rtt: &RttEstimator::default(),
                in_flight_after: MTU,
                largest_acked_sent_at: Instant::EPOCH,
            };
            startup.bottleneck(&event, length, MTU)
        });
        let found = found.expect("a queue that grows").as_mbps_f64();
        assert!((9.0..11.0).contains(&found), "{found}");
    }
}
