//! What a path is believed to be: rate, length, aggregation, and how much it holds.
//!
//! Owns the filters and the division of time into round trips. Decides nothing: the phases and
//! what is sent in them are `bbr`'s and `tabane`'s.

use tabane_base::{Bytes, Duration, Instant, Rate, scale};

use crate::congestion::{AckEvent, LossEvent};

/// The least length of a round. Below it, a round trip holds too few acknowledgements to judge
/// growth, loss or queue by; hosts alone make it wobble by several 100 µs.
pub(super) const ROUND_MIN: Duration = Duration::from_millis(5);

/// The pacer's bursts: this long at the path's rate, at most one batch of segmentation offload.
const BURST_SPAN: Duration = Duration::from_millis(1);
const BURST_MAX: Bytes = Bytes::new(65_536);

/// A rise of the round-trip time that the hosts' scheduling explains.
const QUEUE_NOISE: Duration = Duration::from_micros(250);

/// The largest aggregation compensated for, as time at the path's rate (Linux uses the same).
const EXTRA_ACKED_SPAN_MAX: Duration = Duration::from_millis(100);

/// Rounds that each of the two buckets of the aggregation filter lasts.
const EXTRA_ACKED_ROUNDS: u64 = 5;

/// `span` and so many nanoseconds more, or less; never less than nothing.
pub(super) fn shifted(span: Duration, nanos: i64) -> Duration {
    let by = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 {
        span.saturating_sub(by)
    } else {
        span.saturating_add(by)
    }
}

/// What one round trip showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) acked: Bytes,
    pub(super) lost: Bytes,
    /// Runs of packets lost one after the other.
    pub(super) lost_runs: u32,
    /// The smallest round-trip time: a standing queue raises it, jitter seldom does.
    pub(super) rtt_min: Duration,
    /// The highest delivery rate.
    pub(super) rate_max: Rate,
    /// The most in flight when one of its packets left.
    pub(super) window: Bytes,
    rtt_sum: Duration,
    pub(super) samples: u32,
}

impl Round {
    const NEW: Self = Self {
        acked: Bytes::ZERO,
        lost: Bytes::ZERO,
        lost_runs: 0,
        rtt_min: Duration::MAX,
        rate_max: Rate::ZERO,
        window: Bytes::ZERO,
        rtt_sum: Duration::ZERO,
        samples: 0,
    };

    /// Its round trips are reckoned as longer by `nanos`.
    fn shift(&mut self, nanos: i64) {
        if self.samples > 0 {
            let sum = nanos.saturating_mul(self.samples.into());
            self.rtt_sum = shifted(self.rtt_sum, sum);
            self.rtt_min = shifted(self.rtt_min, nanos);
        }
    }

    pub(super) fn mean_rtt(&self) -> Option<Duration> {
        (self.samples > 0).then(|| self.rtt_sum / self.samples)
    }

    /// Lost of all that was sent.
    pub(super) fn loss_share(&self) -> f64 {
        let all = self.lost + self.acked;
        self.lost.get() as f64 / all.get().max(1) as f64
    }
}

/// The model of one path.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// The path's packet size.
    pub(super) packet: Bytes,
    /// The highest rates of the previous and of the present probing cycle.
    rates: [Rate; 2],
    /// The present cycle has a rate that is not the application's.
    is_cycle_measured: bool,
    min_rtt: Option<Duration>,
    /// When a sample last confirmed `min_rtt`.
    min_rtt_seen_at: Instant,
    /// Rounds begun so far.
    pub(super) rounds: u64,
    /// This acknowledgement begins a round.
    pub(super) is_round_start: bool,
    round_started_at: Instant,
    /// The round ends when a packet sent after this amount was delivered is acknowledged.
    round_ends_after: Bytes,
    /// Delivered in all, as of the latest acknowledgement.
    delivered: Bytes,
    pub(super) current: Round,
    pub(super) last: Round,
    pub(super) before_last: Round,
    aggregation: Aggregation,
}

impl Model {
    pub(super) fn new(packet: Bytes, now: Instant) -> Self {
        Self {
            packet,
            rates: [Rate::ZERO; 2],
            is_cycle_measured: false,
            min_rtt: None,
            min_rtt_seen_at: now,
            rounds: 0,
            is_round_start: false,
            round_started_at: now,
            round_ends_after: Bytes::ZERO,
            delivered: Bytes::ZERO,
            current: Round::NEW,
            last: Round::NEW,
            before_last: Round::NEW,
            aggregation: Aggregation::new(now),
        }
    }

    pub(super) fn on_ack(&mut self, event: &AckEvent<'_>) {
        self.delivered = event.sample.total_delivered;
        self.advance_round(event);
        self.current.acked += event.sample.newly_acked;
        if let Some(rtt) = event.sample.rtt {
            self.current.rtt_min = self.current.rtt_min.min(rtt);
            self.current.rtt_sum = self.current.rtt_sum.saturating_add(rtt);
            self.current.samples += 1;
            self.current.window = self.current.window.max(event.sample.tx_in_flight);
            self.update_min_rtt(event.now, rtt);
        }
        if let Some(rate) = event.sample.rate {
            self.current.rate_max = self.current.rate_max.max(rate);
            if !event.sample.is_app_limited || rate >= self.bandwidth() {
                self.is_cycle_measured = true;
                self.rates[1] = self.rates[1].max(rate);
            }
        }
        let cap = self.bandwidth().amount_in(EXTRA_ACKED_SPAN_MAX);
        self.aggregation
            .on_ack(event, self.bandwidth(), self.rounds, cap);
    }

    pub(super) fn on_lost(&mut self, event: &LossEvent) {
        self.current.lost += event.lost;
        self.current.lost_runs += event.runs;
    }

    /// The flow was idle: aggregation is measured afresh.
    pub(super) fn on_restart(&mut self, now: Instant) {
        self.aggregation.begin_epoch(now);
    }

    /// A cycle of probing begins; rates older than the one just ended are forgotten, unless the
    /// application gave it nothing to measure.
    pub(super) fn advance_cycle(&mut self) {
        if self.is_cycle_measured {
            self.rates = [self.rates[1], Rate::ZERO];
            self.is_cycle_measured = false;
        }
    }

    /// Begins a round at once: what is acknowledged from here on was sent in a new phase.
    pub(super) fn restart_round(&mut self, now: Instant) {
        self.round_ends_after = self.delivered;
        self.round_started_at = now;
    }

    /// `rtt` was measured with the queue drained on purpose.
    pub(super) fn replace_min_rtt(&mut self, now: Instant, rtt: Duration) {
        self.min_rtt = Some(rtt);
        self.min_rtt_seen_at = now;
    }

    /// Round trips are reckoned with a way back that is longer by `nanos` from here on, and so are
    /// those of the latest rounds. The shortest of all is [`Self::replace_min_rtt`]'s.
    pub(super) fn shift_rounds(&mut self, nanos: i64) {
        for round in [&mut self.current, &mut self.last, &mut self.before_last] {
            round.shift(nanos);
        }
    }

    /// Rates from before the last full round are no more believed, nor more than what was in flight
    /// since brings on a path that is `rtt` long.
    pub(super) fn forget_rates(&mut self, rtt: Duration) {
        let window = self.last.window.max(self.current.window);
        let latest = self.latest_rate().min(Rate::of(window, rtt));
        if latest > Rate::ZERO {
            self.rates = [Rate::ZERO, latest];
        }
    }

    /// No other rate is believed.
    pub(super) fn restart_at(&mut self, rate: Rate) {
        self.rates = [Rate::ZERO, rate];
    }

    /// The rate that the path delivers.
    pub(super) fn bandwidth(&self) -> Rate {
        self.rates[0].max(self.rates[1])
    }

    /// The highest rate of the last full round and this one.
    pub(super) fn latest_rate(&self) -> Rate {
        self.last.rate_max.max(self.current.rate_max)
    }

    pub(super) fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt
    }

    pub(super) fn min_rtt_age(&self, now: Instant) -> Duration {
        now.since(self.min_rtt_seen_at)
    }

    /// What the path holds at `bandwidth` with empty queues.
    pub(super) fn bdp(&self) -> Bytes {
        self.bdp_at(self.bandwidth())
    }

    pub(super) fn bdp_at(&self, bandwidth: Rate) -> Bytes {
        self.min_rtt
            .map_or(Bytes::ZERO, |rtt| bandwidth.amount_in(rtt))
    }

    /// The window that keeps the pipe full through late and aggregated acknowledgements.
    pub(super) fn window(&self) -> Bytes {
        let bdp = self.bdp();
        bdp + bdp + self.aggregation.extra() + self.bursts(self.bandwidth())
    }

    /// What must be allowed in flight for sending in bursts: one on its way out of this host, one
    /// in the link, one being taken in at the other end.
    pub(super) fn bursts(&self, bandwidth: Rate) -> Bytes {
        let burst = self.burst(bandwidth);
        burst + burst + burst
    }

    /// What leaves this host at once.
    pub(super) fn burst(&self, bandwidth: Rate) -> Bytes {
        let least = self.packet + self.packet;
        let burst = bandwidth.amount_in(BURST_SPAN);
        burst.clamp(least, BURST_MAX.max(least))
    }

    /// How much may be seen in flight although no queue stands: what is delivered and not yet
    /// acknowledged comes on top of what the path holds.
    pub(super) fn unqueued(&self) -> Bytes {
        let held_back = self
            .aggregation
            .extra()
            .min(self.bandwidth().amount_in(ROUND_MIN));
        self.bdp() + held_back
    }

    /// Whether round-trip times of at least `rtt_min` mean a standing queue: longer than the path
    /// by `fraction` of it, by the noise of hosts and by what two packets take to be sent.
    pub(super) fn is_queue(&self, rtt_min: Duration, fraction: f64) -> bool {
        let Some(base) = self.min_rtt else {
            return false;
        };
        let packets = self.bandwidth().time_for(self.packet + self.packet);
        let noise = scale(base, fraction)
            .saturating_add(QUEUE_NOISE)
            .saturating_add(packets);
        rtt_min != Duration::MAX && rtt_min > base.saturating_add(noise)
    }

    fn advance_round(&mut self, event: &AckEvent<'_>) {
        self.is_round_start = event.sample.prior_delivered >= self.round_ends_after
            && event.now.since(self.round_started_at) >= ROUND_MIN;
        if self.is_round_start {
            self.rounds += 1;
            self.restart_round(event.now);
            self.before_last = self.last;
            self.last = std::mem::replace(&mut self.current, Round::NEW);
        }
    }

    fn update_min_rtt(&mut self, now: Instant, rtt: Duration) {
        let Some(min_rtt) = self.min_rtt else {
            self.replace_min_rtt(now, rtt);
            return;
        };
        if rtt <= min_rtt {
            self.replace_min_rtt(now, rtt);
        } else if !self.is_queue(rtt, 1.0 / 16.0) {
            // As good as seen again: no need to drain the pipe for it.
            self.min_rtt_seen_at = now;
        }
    }
}

/// How far acknowledgements run ahead of the path's rate: the most that came beyond what the rate
/// explains, over the last 5 to 10 rounds.
#[derive(Clone, Debug)]
struct Aggregation {
    epoch_started_at: Instant,
    epoch_acked: Bytes,
    /// Present and previous bucket.
    buckets: [Bytes; 2],
    bucket_since_round: u64,
}

impl Aggregation {
    fn new(now: Instant) -> Self {
        Self {
            epoch_started_at: now,
            epoch_acked: Bytes::ZERO,
            buckets: [Bytes::ZERO; 2],
            bucket_since_round: 0,
        }
    }

    fn extra(&self) -> Bytes {
        self.buckets[0].max(self.buckets[1])
    }

    fn begin_epoch(&mut self, now: Instant) {
        self.epoch_started_at = now;
        self.epoch_acked = Bytes::ZERO;
    }

    fn on_ack(&mut self, event: &AckEvent<'_>, bandwidth: Rate, rounds: u64, cap: Bytes) {
        if rounds - self.bucket_since_round >= EXTRA_ACKED_ROUNDS {
            self.buckets = [Bytes::ZERO, self.buckets[0]];
            self.bucket_since_round = rounds;
        }
        let expected = bandwidth.amount_in(event.now.since(self.epoch_started_at));
        if self.epoch_acked <= expected {
            self.begin_epoch(event.now);
        }
        self.epoch_acked += event.sample.newly_acked;
        let expected = bandwidth.amount_in(event.now.since(self.epoch_started_at));
        let extra = (self.epoch_acked - expected).min(cap);
        self.buckets[0] = self.buckets[0].max(extra);
    }
}
