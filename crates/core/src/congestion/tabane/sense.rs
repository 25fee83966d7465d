//! What a path shows at present: its standing delay, its jitter, its rate.
//!
//! Owns spans of half a round trip and what was seen in each. The smallest round-trip time of a
//! span is the standing delay: a queue that stands raises it, jitter and late acknowledgements
//! seldom do. Decides nothing.

use tabane_base::{Bytes, Duration, Instant, Rate};

use crate::congestion::AckEvent;
use crate::congestion::model::shifted;

/// The least length of a span: below it, hosts alone make round trips wobble.
const SPAN_MIN: Duration = Duration::from_millis(5);
/// Fewer samples do not make a span.
const SAMPLES_MIN: u32 = 2;

/// What one span showed.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    started_at: Instant,
    /// When the oldest of its packets left.
    sent_from: Instant,
    rtt_min: Duration,
    /// The shortest way back, minus the clocks' offset.
    way_back: Option<i64>,
    /// The most in flight when one of its packets left: the window in use. Between two
    /// acknowledgements less is in flight, though no less is on its way or held by the receiver.
    window: Bytes,
    rtt_sum: Duration,
    rtt_last: Duration,
    /// The longest step upwards from one round trip to the next.
    jump: Duration,
    samples: u32,
    /// Acknowledged in all.
    acked: Bytes,
    rate_max: Rate,
    /// Some sample was of the path and not of the application.
    is_measured: bool,
}

impl Sampling {
    const fn new(now: Instant) -> Self {
        Self {
            started_at: now,
            sent_from: Instant::NEVER,
            way_back: None,
            rtt_min: Duration::MAX,
            window: Bytes::ZERO,
            rtt_sum: Duration::ZERO,
            rtt_last: Duration::MAX,
            jump: Duration::ZERO,
            samples: 0,
            acked: Bytes::ZERO,
            rate_max: Rate::ZERO,
            is_measured: false,
        }
    }

    const fn standing(&self) -> Standing {
        Standing {
            rtt: self.rtt_min,
            window: self.window,
            sent_from: self.sent_from,
        }
    }
}

/// The standing delay, and what was in flight with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The smallest round-trip time; `Duration::MAX` when there was none.
    pub(super) rtt: Duration,
    /// The window in use at the time.
    pub(super) window: Bytes,
    /// Nothing that left earlier has a part in it.
    pub(super) sent_from: Instant,
}

/// The senses of one path.
#[derive(Clone, Debug)]
pub(super) struct Sense {
    current: Sampling,
    last: Sampling,
    before_last: Sampling,
    /// How far round-trip times scatter above the smallest of their span, smoothed.
    jitter: Duration,
    /// The longest step upwards from one to the next in a span, smoothed.
    jump: Duration,
    /// What one acknowledgement covers, smoothed.
    batch: Bytes,
    /// What the last span brought.
    carried: Rate,
}

impl Sense {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            current: Sampling::new(now),
            last: Sampling::new(now),
            before_last: Sampling::new(now),
            jitter: Duration::ZERO,
            jump: Duration::ZERO,
            batch: Bytes::ZERO,
            carried: Rate::ZERO,
        }
    }

    /// Takes an acknowledgement in; true if it completes a span. `is_calm` while it is not we who
    /// make round trips vary.
    pub(super) fn on_ack(&mut self, event: &AckEvent<'_>, is_calm: bool) -> bool {
        let span = &mut self.current;
        if let Some(rtt) = event.sample.rtt {
            span.rtt_min = span.rtt_min.min(rtt);
            span.window = span.window.max(event.sample.tx_in_flight);
            span.rtt_sum = span.rtt_sum.saturating_add(rtt);
            span.jump = span.jump.max(rtt.saturating_sub(span.rtt_last));
            span.rtt_last = rtt;
            span.samples += 1;
            span.acked += event.sample.newly_acked;
        }
        span.sent_from = span.sent_from.min(event.largest_acked_sent_at);
        let way_back = event.way_back.into_iter().chain(span.way_back);
        span.way_back = way_back.min();
        if let Some(rate) = event.sample.rate {
            span.rate_max = span.rate_max.max(rate);
            span.is_measured |= !event.sample.is_app_limited;
        }
        let length = (event.rtt.min() / 2).max(SPAN_MIN);
        if event.now.since(span.started_at) < length || span.samples < SAMPLES_MIN {
            return false;
        }
        let scatter = span.rtt_sum / span.samples - span.rtt_min;
        if is_calm {
            self.jitter = (self.jitter * 7 + scatter) / 8;
            self.jump = (self.jump * 3 + span.jump) / 4;
        }
        self.carried = Rate::of(span.acked, event.now.since(span.started_at));
        let batch = span.acked.get() / u64::from(span.samples);
        self.batch = Bytes::new((self.batch.get() * 7 + batch) / 8);
        self.before_last = self.last;
        self.last = std::mem::replace(&mut self.current, Sampling::new(event.now));
        true
    }

    /// What is seen from here on has nothing to do with what was before.
    pub(super) fn restart(&mut self, now: Instant) {
        self.current = Sampling::new(now);
        self.last = Sampling::new(now);
        self.before_last = Sampling::new(now);
    }

    /// The smallest round-trip time of the last two spans, a full round trip, and what was in
    /// flight when its packet left; `Duration::MAX` before there was one.
    pub(super) fn standing(&self) -> Standing {
        let span = if self.last.rtt_min <= self.before_last.rtt_min {
            &self.last
        } else {
            &self.before_last
        };
        span.standing()
    }

    /// As [`Self::standing`], of the last span alone.
    pub(super) fn latest(&self) -> Standing {
        self.last.standing()
    }

    /// The highest delivery rate of the last two spans.
    pub(super) fn rate(&self) -> Rate {
        self.last.rate_max.max(self.before_last.rate_max)
    }

    /// Whether [`Self::rate`] is the path's: else the application sent less.
    pub(super) fn is_measured(&self) -> bool {
        self.last.is_measured || self.before_last.is_measured
    }

    /// What was acknowledged in the last span, over its length.
    pub(super) fn carried(&self) -> Rate {
        self.carried
    }

    /// Round trips are reckoned with a way back that is longer by `nanos` from here on.
    pub(super) fn shift(&mut self, nanos: i64) {
        for span in [&mut self.current, &mut self.last, &mut self.before_last] {
            if span.rtt_min != Duration::MAX {
                span.rtt_sum = shifted(span.rtt_sum, nanos.saturating_mul(span.samples.into()));
                span.rtt_min = shifted(span.rtt_min, nanos);
            }
        }
    }

    /// The shortest way back of the last span, minus the clocks' offset.
    pub(super) fn way_back(&self) -> Option<i64> {
        self.last.way_back
    }

    /// They are not comparable with what is to come.
    pub(super) fn forget_ways_back(&mut self) {
        for span in [&mut self.current, &mut self.last, &mut self.before_last] {
            span.way_back = None;
        }
    }

    /// What made round trips scatter is over.
    pub(super) fn forget_jitter(&mut self) {
        self.jitter = Duration::ZERO;
    }

    pub(super) fn jitter(&self) -> Duration {
        self.jitter
    }

    pub(super) fn jump(&self) -> Duration {
        self.jump
    }

    pub(super) fn batch(&self) -> Bytes {
        self.batch
    }
}
