//! One direction of a link.
//!
//! ```text
//! handle_packet → drop-tail queue → transmitter → outage? loss? → delay + jitter → poll_output
//!                 (bytes)           (rate, trace)
//! ```
//!
//! Time moves only through the calls that carry `now`; whatever fell due in between happens in
//! order of its own time, so results do not depend on how often the link is polled. The packet
//! being transmitted is not in the queue: a queue of zero still passes packets one by one, and
//! what waits never exceeds the queue's limit. Order is always kept.

use std::collections::VecDeque;
use std::sync::Arc;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};

use crate::counters::{Counters, DropReason};
use crate::jitter::{Jitter, JitterShape};
use crate::loss::{LossModel, Losses};
use crate::schedule::{Change, Due, Outage, Schedule};
use crate::trace::Trace;
use crate::transmitter::Transmitter;

/// How fast a link sends, counted at IP level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateModel {
    /// The same at all times; `Rate::MAX` is no limit, `Rate::ZERO` lets nothing pass.
    Constant(Rate),
    /// Recorded delivery opportunities, repeating.
    Trace(Arc<Trace>),
}

/// The parameters of one direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// How fast it sends.
    pub rate: RateModel,
    /// The most that waits behind the packet being transmitted.
    pub queue: Bytes,
    /// One-way delay after transmission.
    pub delay: Duration,
    /// Further delay, in 0..=`jitter`; order is kept.
    pub jitter: Duration,
    /// How it is distributed.
    pub jitter_shape: JitterShape,
    /// What gets lost by chance.
    pub loss: LossModel,
    /// Changes by time, counted from the start of the schedule.
    pub changes: Vec<Change>,
    /// Spans in which packets vanish.
    pub outages: Vec<Outage>,
}

impl LinkConfig {
    /// A link without any limit: packets come out as they go in.
    #[must_use]
    pub const fn wire() -> Self {
        Self {
            rate: RateModel::Constant(Rate::MAX),
            queue: Bytes::MAX,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_shape: JitterShape::Uniform,
            loss: LossModel::None,
            changes: Vec::new(),
            outages: Vec::new(),
        }
    }

    /// Whether the link does nothing to packets.
    #[must_use]
    pub fn is_wire(&self) -> bool {
        *self == Self::wire()
    }

    /// The rate, or the mean rate of the trace, before any change.
    #[must_use]
    pub fn mean_rate(&self) -> Rate {
        match &self.rate {
            RateModel::Constant(rate) => *rate,
            RateModel::Trace(trace) => trace.mean_rate(),
        }
    }
}

/// One direction of a link, carrying packets of any kind.
///
/// Driving contract: [`handle_packet`](Self::handle_packet) for what goes in; then
/// [`poll_output`](Self::poll_output) until it returns `None`; then sleep until
/// [`poll_timeout`](Self::poll_timeout). A `now` earlier than one seen before counts as that one.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    now: Instant,
    transmitter: Transmitter,
    sending: Option<Waiting<P>>,
    queue: VecDeque<Waiting<P>>,
    flying: VecDeque<Flying<P>>,
    delay: Duration,
    losses: Losses,
    jitter: Jitter,
    schedule: Schedule,
    /// Scheduled outages that have begun and not ended.
    outages: u32,
    /// Outage ordered at run time.
    cut: bool,
    /// When the packet transmitted last arrives: none may arrive earlier.
    arrival_last: Instant,
    counters: Counters,
}

#[derive(Debug)]
struct Waiting<P> {
    came_at: Instant,
    payload: P,
    size: Bytes,
}

#[derive(Debug)]
struct Flying<P> {
    arrives_at: Instant,
    payload: P,
    size: Bytes,
}

impl<P> Link<P> {
    /// A link whose schedule and trace start at `start`.
    #[must_use]
    pub fn new(config: LinkConfig, seed: Seed, start: Instant) -> Self {
        Self {
            now: start,
            transmitter: transmitter(&config.rate, start),
            sending: None,
            queue: VecDeque::new(),
            flying: VecDeque::new(),
            delay: config.delay,
            losses: Losses::new(config.loss, seed.rng("loss")),
            jitter: Jitter::new(config.jitter, config.jitter_shape, seed.rng("jitter")),
            schedule: Schedule::new(&config.changes, &config.outages, start),
            outages: 0,
            cut: false,
            arrival_last: start,
            counters: Counters::default(),
            config,
        }
    }

    /// Takes a packet of `size` (counted at IP level) that reaches the link at `now`.
    ///
    /// # Errors
    /// Only [`DropReason::QueueFull`]; what is dropped later is only counted.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        payload: P,
        size: Bytes,
    ) -> Result<(), DropReason> {
        self.advance(now);
        self.counters.offered.add(size);
        let packet = Waiting {
            came_at: self.now,
            payload,
            size,
        };
        if self.sending.is_none() {
            self.counters.inside.add(size);
            self.transmitter.begin(self.now, size, false);
            self.sending = Some(packet);
            return Ok(());
        }
        let queued = self.counters.queued + size;
        if queued > self.config.queue {
            self.counters.drop_one(DropReason::QueueFull, size);
            return Err(DropReason::QueueFull);
        }
        self.counters.inside.add(size);
        self.counters.queued = queued;
        self.counters.queued_max = self.counters.queued_max.max(queued);
        self.queue.push_back(packet);
        Ok(())
    }

    /// The next packet that has arrived at the far end by `now`.
    pub fn poll_output(&mut self, now: Instant) -> Option<P> {
        self.advance(now);
        if self.flying.front()?.arrives_at > self.now {
            return None;
        }
        let packet = self.flying.pop_front()?;
        self.counters.inside.take(packet.size);
        self.counters.delivered.add(packet.size);
        Some(packet.payload)
    }

    /// When to poll again: a packet may arrive then, none does earlier. `None` while nothing can
    /// come without further input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if let Some(packet) = self.flying.front() {
            return Some(packet.arrives_at);
        }
        self.sending.as_ref()?;
        let arrives_at = (self.transmitter.completes_at() + self.delay).max(self.arrival_last);
        // A change on the way may make it earlier or later: look again then.
        Some(arrives_at.min(self.schedule.next_at())).filter(|at| *at != Instant::NEVER)
    }

    /// Changes the rate from `now` on, in place of the rate or trace so far.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        self.advance(now);
        self.transmitter.set_rate(self.now, rate);
    }

    /// Changes the one-way delay of packets transmitted from `now` on.
    pub fn set_delay(&mut self, now: Instant, delay: Duration) {
        self.advance(now);
        self.delay = delay;
    }

    /// Changes the loss model from `now` on.
    pub fn set_loss(&mut self, now: Instant, loss: LossModel) {
        self.advance(now);
        self.losses.set_model(loss);
    }

    /// Makes packets vanish from `now` on, or ends that. Scheduled outages go on regardless.
    pub fn set_outage(&mut self, now: Instant, cut: bool) {
        self.advance(now);
        self.cut = cut;
    }

    /// Starts schedule and trace anew at `now`, all parameters as configured and no outage;
    /// packets inside stay inside.
    pub fn restart_schedule(&mut self, now: Instant) {
        self.advance(now);
        let now = self.now;
        self.transmitter = transmitter(&self.config.rate, now);
        if let Some(packet) = &self.sending {
            self.transmitter.begin(now, packet.size, false);
        }
        self.delay = self.config.delay;
        self.losses.set_model(self.config.loss);
        self.schedule = Schedule::new(&self.config.changes, &self.config.outages, now);
        self.outages = 0;
        self.cut = false;
    }

    /// Whether packets vanish at present.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.cut || self.outages > 0
    }

    /// The parameters as configured.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// How long the packet has waited that is being transmitted; nothing when there is none.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        let sending = self.sending.as_ref();
        sending.map_or(Duration::ZERO, |packet| now.since(packet.came_at))
    }

    /// A copy of the counters.
    #[must_use]
    pub fn snapshot(&self) -> Counters {
        self.counters
    }

    /// Lets everything due by `now` happen, in order of time.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        loop {
            let completes_at = match self.sending {
                Some(_) => self.transmitter.completes_at(),
                None => Instant::NEVER,
            };
            let changes_at = self.schedule.next_at();
            if completes_at.min(changes_at) > self.now {
                return;
            }
            if changes_at <= completes_at {
                match self.schedule.poll(self.now) {
                    Some(due) => self.apply(changes_at, due),
                    None => return,
                }
            } else {
                self.transmitted(completes_at);
            }
        }
    }

    fn apply(&mut self, at: Instant, due: Due) {
        match due {
            Due::Change { rate, delay, loss } => {
                if let Some(rate) = rate {
                    self.transmitter.set_rate(at, rate);
                }
                if let Some(delay) = delay {
                    self.delay = delay;
                }
                if let Some(loss) = loss {
                    self.losses.set_model(loss);
                }
            }
            Due::OutageBegins => self.outages += 1,
            Due::OutageEnds => self.outages = self.outages.saturating_sub(1),
        }
    }

    /// The packet being sent is out at `at`; the next one follows without a gap.
    fn transmitted(&mut self, at: Instant) {
        self.transmitter.complete();
        let sent = self.sending.take();
        if let Some(next) = self.queue.pop_front() {
            self.counters.queued -= next.size;
            self.transmitter.begin(at, next.size, true);
            self.sending = Some(next);
        }
        let Some(Waiting { payload, size, .. }) = sent else {
            return;
        };
        let lost = self.losses.strikes();
        let jitter = self.jitter.draw(at);
        if self.is_out() || lost {
            let reason = if self.is_out() {
                DropReason::Outage
            } else {
                DropReason::Loss
            };
            self.counters.inside.take(size);
            self.counters.drop_one(reason, size);
            return;
        }
        self.arrival_last = (at + self.delay + jitter).max(self.arrival_last);
        self.flying.push_back(Flying {
            arrives_at: self.arrival_last,
            payload,
            size,
        });
    }
}

fn transmitter(rate: &RateModel, start: Instant) -> Transmitter {
    match rate {
        RateModel::Constant(rate) => Transmitter::constant(*rate),
        RateModel::Trace(trace) => Transmitter::trace(Arc::clone(trace), start),
    }
}

#[cfg(test)]
mod tests;
