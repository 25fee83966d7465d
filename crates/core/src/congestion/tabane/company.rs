//! Dips and rivals: what is done about others on the path.
//!
//! When to take our queue out of the path, what follows from `rival`'s verdict on what was found
//! then, and competing as cubic while somebody keeps the queue full.

use tabane_base::{Duration, Instant, Rate};

use super::dip::Dip;
use super::rival::DipCause;
use super::{Phase, Tabane, next_multiple, ramp};
use crate::congestion::cubic::Cubic;
use crate::congestion::{AckEvent, Algorithm as _};

/// How much shorter than the path a look makes us; enough to show what others queue.
const LOOK_DEPTH: Duration = Duration::from_millis(15);
/// No dip is deeper than this part of what the path holds.
const DIP_PART: u32 = 4;
/// Looks come this often after something was found, ever less often otherwise.
pub(super) const LOOK_INTERVAL_MIN: Duration = Duration::from_secs(2);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(8);
/// At least so many round trips apart: each costs up to a quarter of one.
const LOOK_RTTS: u32 = 20;
/// A path so many times as long as was known, and so much longer than hosts make round trips
/// wobble, is another one.
const MUCH_LONGER: u32 = 8;
const LENGTH_NOISE: Duration = Duration::from_millis(5);
/// A path shorter by this than was known is something found.
const LOOK_NEWS: Duration = Duration::from_millis(1);

impl Tabane {
    /// A dip to `depth` below what the path holds, or a quarter of that.
    pub(super) fn dip(&self, now: Instant, rate: Rate, depth: Duration) -> Dip {
        let min_rtt = self.min_rtt();
        // The way back may hold less now than it usually does.
        let below = (min_rtt / DIP_PART).min(depth) + self.sooner();
        let length = min_rtt.saturating_sub(below);
        let window = rate.amount_in(length) + self.held_back();
        let window = window.max(self.burst.usual(now));
        Dip::new(now, rate, min_rtt, window.max(self.min_window()), self.cwnd)
    }

    /// Round trips that exceed the shortest by no more show no queue after a dip.
    fn tolerance(&self) -> Duration {
        self.least_queue() + self.target().max(self.min_rtt() / 16)
    }

    /// What dips find differs by so much on one path, where jitter makes round trips jump. Only
    /// after a silence: otherwise a rival's queue would pass as a longer route.
    fn scatter(&self, now: Instant) -> Duration {
        match now < self.unsure_until && self.is_jittery(ramp::JUMPS) {
            true => self.tolerance() / 2,
            false => Duration::ZERO,
        }
    }

    pub(super) fn look(&mut self, now: Instant) {
        self.phase = Phase::Dip(self.dip(now, self.rate, LOOK_DEPTH));
    }

    pub(super) fn end_dip(&mut self, now: Instant, dip: Dip) {
        self.rate = dip.rate;
        // Whoever came later than others may have taken their queue for a part of the route.
        self.look_interval = if self.min_rtt() + LOOK_NEWS < dip.min_rtt {
            LOOK_INTERVAL_MIN
        } else {
            (self.look_interval * 2).min(LOOK_INTERVAL_MAX)
        };
        let pause = self.look_interval.max(self.min_rtt() * LOOK_RTTS);
        self.look_at = next_multiple(now + pause / 2, self.look_interval);
        // The bottom of a dip is never below the smallest window.
        let tolerance = self.tolerance();
        let found = dip.found().unwrap_or_else(|| self.min_rtt());
        let is_competing = dip.cubic.is_some();
        let verdict = self.rivalry.judge(
            now,
            found,
            self.min_rtt(),
            tolerance,
            is_competing,
            self.scatter(now),
        );
        match verdict {
            DipCause::Ours | DipCause::Doubt => {
                if let Some(cubic) = dip.cubic {
                    self.window_before = cubic.cwnd();
                }
                self.enter_steady(now);
                self.ramp_in = Some(self.model.rounds + ramp::AFTER_DIP);
                self.is_doubted = verdict != DipCause::Ours;
                // A longer route may hide in what is allowed for jitter. That passes as a queue of
                // the right length whatever the window is, which then shrinks by chance.
                self.may_have_moved |= now < self.unsure_until;
            }
            DipCause::LongerRoute(rtt) => {
                self.load = Duration::ZERO;
                self.take_length(now, rtt);
                self.cwnd = self.cwnd.max(self.window_before);
                self.enter_steady(now);
            }
            DipCause::Rival => match dip.cubic {
                Some(cubic) => {
                    self.rivalry.compete(now);
                    self.phase = Phase::Compete(cubic);
                }
                None => self.compete(now),
            },
        }
    }

    /// The path is `rtt` long. Where that is many times what was known, rates from before were
    /// measured over a small part of what it holds, a burst perhaps.
    pub(super) fn take_length(&mut self, now: Instant, rtt: Duration) {
        let known = self.model.min_rtt().unwrap_or(rtt);
        self.model.replace_min_rtt(now, rtt);
        if rtt > known * MUCH_LONGER + LENGTH_NOISE {
            self.model.forget_rates(rtt);
            let delivered = self.model.bandwidth();
            self.rate = self.rate.min(delivered);
            self.peak = self.peak.min(delivered);
        }
    }

    pub(super) fn compete(&mut self, now: Instant) {
        self.rivalry.compete(now);
        let window = self.window_before.max(self.cwnd);
        self.phase = Phase::Compete(Box::new(Cubic::from_window(self.mtu, now, window)));
    }

    pub(super) fn advance_compete(&mut self, event: &AckEvent<'_>) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::RateSample;
    use crate::rtt::RttEstimator;
    use tabane_base::{Bytes, Rate, Seed};

    const MTU: Bytes = Bytes::new(1_500);
    /// More than what the link holds.
    const IN_FLIGHT: Bytes = Bytes::new(9_000);
    const BURST: Rate = Rate::from_mbps(43);
    const LINK: Rate = Rate::from_mbps(1);

    /// A packet's acknowledgement after `rtt`, `number` packets being delivered, all in turn.
    fn acknowledge(path: &mut Tabane, now: Instant, number: u64, rtt: Duration, rate: Rate) {
        let sample = RateSample {
            newly_acked: MTU,
            total_delivered: Bytes::new(MTU.get() * number),
            prior_delivered: Bytes::new(MTU.get() * (number - 1)),
            rtt: Some(rtt),
            rate: Some(rate),
            tx_in_flight: IN_FLIGHT,
            ..RateSample::default()
        };
        path.on_ack(&AckEvent {
            now,
            sample: &sample,
            trip: None,
            way_back: None,
            rtt: &RttEstimator::default(),
            in_flight_after: MTU,
            largest_acked_sent_at: now - rtt,
        });
    }

    /// A token bucket lets the first packet through at once; on a busy machine the queue that the
    /// next ones make is then taken for a part of the path. Rate and length of two paths made a
    /// window of 270 kB on a link of 1 Mbit/s.
    #[test]
    fn what_a_burst_delivered_is_not_the_rate_of_a_path_that_became_long() {
        let mut path = Tabane::new(MTU, Instant::EPOCH, Seed(1).rng("path"));
        acknowledge(
            &mut path,
            Instant::from_millis(1),
            1,
            Duration::from_micros(70),
            BURST,
        );
        path.leave_startup(Instant::from_millis(2), Rate::ZERO);
        path.enter_steady(Instant::from_millis(2));
        for number in 2..12 {
            let now = Instant::from_millis(12 * number);
            acknowledge(&mut path, now, number, Duration::from_millis(50), LINK);
        }
        let length = Duration::from_millis(50);
        path.rate = BURST;
        path.take_length(Instant::from_millis(150), Duration::from_millis(2));
        assert_eq!(
            path.model.bandwidth(),
            BURST,
            "hosts make round trips wobble so far"
        );
        path.take_length(Instant::from_millis(150), length);
        assert_eq!((path.model.bandwidth(), path.rate), (LINK, LINK));
        // What is found to be shorter again was measured, and counts.
        path.take_length(Instant::from_millis(151), Duration::from_millis(1));
        assert_eq!(path.rate, LINK);
    }

    /// So it is where the burst was a moment ago: 107 Mbit/s of 1.5 kB within 0.1 ms, and 37 ms the
    /// next moment, when the way back was another, were half a megabyte.
    #[test]
    fn what_a_burst_has_just_delivered_is_not_the_rate_of_a_path_that_became_long_either() {
        let mut path = Tabane::new(MTU, Instant::EPOCH, Seed(1).rng("path"));
        let now = Instant::from_millis(1);
        acknowledge(&mut path, now, 1, Duration::from_micros(70), BURST);
        path.leave_startup(now, Rate::ZERO);
        path.enter_steady(now);
        let length = Duration::from_millis(50);
        path.take_length(now, length);
        let in_flight = Rate::of(IN_FLIGHT, length);
        assert_eq!((path.model.bandwidth(), path.rate), (in_flight, in_flight));
    }
}
