//! One link with endless senders, in virtual time, packet by packet.
//!
//! Measures what came through and how long it queued.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, Seed};

use super::sender::{Flow, Receiver, Sender, Stopped};

pub(super) const PACKET: Bytes = Bytes::new(1_472);
pub(super) const ACK_DELAY: Duration = Duration::from_millis(5);
/// How long the rate of a link is held constant when it follows a list of rates.
pub(super) const STEP: Duration = Duration::from_millis(20);

/// A link, and the manners of the hosts at its ends.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// What the rates are called in tables.
    pub(super) name: String,
    /// One rate per [`STEP`], repeated at its end.
    pub(super) rates: Vec<Rate>,
    pub(super) delay: Duration,
    pub(super) queue: Bytes,
    pub(super) loss: f64,
    /// The receiver acknowledges every so many packets, or after [`ACK_DELAY`].
    pub(super) ack_every: usize,
    /// Packets take longer by up to this, but never overtake each other.
    pub(super) jitter: Duration,
    /// Instead of queueing what exceeds the rate, drop it: `queue` is the depth of the bucket.
    pub(super) is_policed: bool,
    /// Acknowledgements take longer by up to this, and may overtake each other.
    pub(super) ack_jitter: Duration,
    /// The sender wakes later than it wants by up to this.
    pub(super) late: Duration,
    /// The receiver (and so the link) pauses every 5 ms on average, for up to this.
    pub(super) pause: Duration,
    /// The senders offer nothing in the second half of every such period.
    pub(super) idle_period: Option<Duration>,
    /// Until then they offer a packet or two at a time: programs agree on something first.
    pub(super) talk: Duration,
}

/// A steady link.
pub(super) fn at(kbps: u64, delay_ms: u64, queue_kb: u64) -> Link {
    let rate = Rate::from_bps(kbps * 1_000);
    varying(&rate.to_string(), vec![rate], delay_ms, queue_kb)
}

/// A link that follows `rates`.
pub(super) fn varying(name: &str, rates: Vec<Rate>, delay_ms: u64, queue_kb: u64) -> Link {
    Link {
        name: name.to_owned(),
        rates,
        delay: Duration::from_millis(delay_ms),
        queue: Bytes::kilo(queue_kb),
        loss: 0.0,
        ack_every: 2,
        jitter: Duration::ZERO,
        is_policed: false,
        ack_jitter: Duration::ZERO,
        late: Duration::from_micros(100),
        pause: Duration::ZERO,
        idle_period: None,
        talk: Duration::ZERO,
    }
}

impl Link {
    pub(super) fn loss(mut self, share: f64) -> Self {
        self.loss = share;
        self
    }

    pub(super) fn queue(mut self, size: Bytes) -> Self {
        self.queue = size;
        self
    }

    pub(super) fn acks(mut self, every: usize) -> Self {
        self.ack_every = every;
        self
    }

    pub(super) fn jitter(mut self, millis: u64) -> Self {
        self.jitter = Duration::from_millis(millis);
        self
    }

    pub(super) fn policed(mut self) -> Self {
        self.is_policed = true;
        self
    }

    pub(super) fn ack_jitter(mut self, millis: u64) -> Self {
        self.ack_jitter = Duration::from_millis(millis);
        self
    }

    pub(super) fn late(mut self, micros: u64) -> Self {
        self.late = Duration::from_micros(micros);
        self
    }

    pub(super) fn pause(mut self, micros: u64) -> Self {
        self.pause = Duration::from_micros(micros);
        self
    }

    pub(super) fn idle(mut self, period_ms: u64) -> Self {
        self.idle_period = Some(Duration::from_millis(period_ms));
        self
    }

    pub(super) fn talk(mut self, millis: u64) -> Self {
        self.talk = Duration::from_millis(millis);
        self
    }

    fn rate_at(&self, now: Instant) -> Rate {
        let step = now.as_nanos() / STEP.as_nanos() as u64;
        self.rates[step as usize % self.rates.len()]
    }

    /// When `bytes` that begin to be served at `start` are through.
    fn served_at(&self, start: Instant, bytes: Bytes) -> Instant {
        let step = STEP.as_nanos() as u64;
        let (mut now, mut left) = (start, bytes);
        loop {
            let rate = self.rate_at(now);
            let end = Instant::from_nanos((now.as_nanos() / step + 1) * step);
            let done = now + rate.time_for(left);
            if self.rates.len() == 1 || done <= end {
                return done;
            }
            left -= rate.amount_in(end - now);
            now = end;
        }
    }

    /// What the link can carry in `span`.
    fn capacity(&self, span: Duration) -> f64 {
        let steps = span.as_nanos() / STEP.as_nanos();
        let per_step = |step| self.rates[step as usize % self.rates.len()].amount_in(STEP);
        (0..steps).map(|step| per_step(step).get() as f64).sum()
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{} {:?} {}", self.name, self.delay, self.queue);
        if self.loss > 0.0 {
            text += &format!(" loss {}%", self.loss * 100.0);
        }
        if self.is_policed {
            text += " policed";
        }
        if self.ack_every != 2 {
            text += &format!(" acks/{}", self.ack_every);
        }
        for (word, span) in [
            ("jitter", self.jitter),
            ("ack-jitter", self.ack_jitter),
            ("late", self.late),
            ("pause", self.pause),
        ] {
            if span > Duration::from_micros(100) {
                text += &format!(" {word} {span:?}");
            }
        }
        f.pad(&text)
    }
}

/// What a run showed.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Carried, of what the link could have carried; in all and in the second half.
    pub(super) utilisation: f64,
    pub(super) second_half: f64,
    /// Each sender's part of what was carried in the second half.
    pub(super) shares: Vec<f64>,
    /// Lost of what was sent.
    pub(super) loss: f64,
    /// Time packets spent in the queue in the second half: median, 95th percentile.
    pub(super) queue_p50: Duration,
    pub(super) queue_p95: Duration,
}

#[derive(Debug)]
enum Event {
    Wake,
    Delivered(u64),
    AckDue(u64),
    Ack(Vec<u64>),
    ProbeDue(u64),
}

struct Run<'a> {
    link: &'a Link,
    rng: Rng,
    now: Instant,
    /// What happens next, to which sender.
    events: BTreeMap<(Instant, u64), (usize, Event)>,
    event_count: u64,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    busy_until: Instant,
    last_arrives_at: Instant,
    queued: VecDeque<Instant>,
    next_pause_at: Instant,
    halfway: Instant,
    sent: u64,
    lost: u64,
    /// Per sender: packets delivered in all, and in the second half.
    delivered: Vec<(u64, u64)>,
    queue_times: Vec<Duration>,
    /// Print each sender's state when this has passed.
    trace_at: Vec<Instant>,
}

/// Runs `link` for `span` with a sender of each of `flows`.
pub(super) fn run(link: &Link, flows: &[Flow], span: Duration, seed: Seed) -> Outcome {
    run_traced(link, flows, span, seed, false)
}

/// As [`run`]; with `trace`, prints the controllers' states every 10 ms.
pub(super) fn run_traced(
    link: &Link,
    flows: &[Flow],
    span: Duration,
    seed: Seed,
    trace: bool,
) -> Outcome {
    let now = Instant::EPOCH;
    let sender = |(index, flow): (usize, &Flow)| {
        Sender::new(*flow, now, seed.split(&format!("sender {index}")))
    };
    let mut run = Run {
        link,
        rng: seed.rng("link"),
        now,
        events: BTreeMap::new(),
        event_count: 0,
        senders: flows.iter().enumerate().map(sender).collect(),
        receivers: flows.iter().map(|_| Receiver::default()).collect(),
        busy_until: now,
        last_arrives_at: now,
        queued: VecDeque::new(),
        next_pause_at: now,
        halfway: now + span / 2,
        sent: 0,
        lost: 0,
        delivered: vec![(0, 0); flows.len()],
        queue_times: Vec::new(),
        trace_at: vec![if trace { now } else { Instant::NEVER }; flows.len()],
    };
    for index in 0..flows.len() {
        // The later ones join a second after each other.
        run.wake(index, Instant::from_millis(index as u64 * 1_000));
    }
    run.until(now + span);
    run.outcome(span)
}

impl Run<'_> {
    fn schedule(&mut self, at: Instant, index: usize, event: Event) {
        self.event_count += 1;
        self.events.insert((at, self.event_count), (index, event));
    }

    fn until(&mut self, end: Instant) {
        while let Some(((at, _), (index, event))) = self.events.pop_first() {
            if at >= end {
                return;
            }
            self.now = at;
            match event {
                Event::Wake if at == self.senders[index].wake_at => self.send(index),
                Event::Wake => {}
                Event::Delivered(number) => self.receive(index, number),
                Event::AckDue(round) if round == self.receivers[index].round => {
                    self.acknowledge(index);
                }
                Event::AckDue(_) => {}
                Event::Ack(numbers) => {
                    self.senders[index].handle_ack(at, &numbers);
                    self.trace(index);
                    self.arm_probe(index);
                    self.send(index);
                }
                Event::ProbeDue(acks) if acks == self.senders[index].ack_count => {
                    if let Some(number) = self.senders[index].probe(at) {
                        self.enqueue(index, number);
                    }
                    self.arm_probe(index);
                }
                Event::ProbeDue(_) => {}
            }
        }
    }

    fn wake(&mut self, index: usize, at: Instant) {
        self.senders[index].wake_at = at;
        self.schedule(at, index, Event::Wake);
    }

    fn arm_probe(&mut self, index: usize) {
        if let Some(at) = self.senders[index].probe_due_at(self.now) {
            let acks = self.senders[index].ack_count;
            self.schedule(at, index, Event::ProbeDue(acks));
        }
    }

    fn send(&mut self, index: usize) {
        let is_idle = self.link.idle_period.is_some_and(|period| {
            let period = period.as_nanos() as u64;
            self.now.as_nanos() % period * 2 >= period
        });
        if is_idle {
            self.senders[index].idle();
            self.wake(index, self.now + Duration::from_millis(1));
            return;
        }
        if self.now < Instant::EPOCH + self.link.talk {
            self.talk(index);
            return;
        }
        let was_empty = self.senders[index].in_flight() == Bytes::ZERO;
        let mut numbers = Vec::new();
        let stopped = self.senders[index].send(self.now, |number| numbers.push(number));
        for number in numbers {
            self.enqueue(index, number);
        }
        if was_empty {
            self.arm_probe(index);
        }
        if let Stopped::Pacing(at) = stopped {
            let late = self.rng.below(self.link.late.as_nanos() as u64 + 1);
            self.wake(index, at.max(self.now) + Duration::from_nanos(late));
        }
    }

    /// A packet or two, once the ones before were answered.
    fn talk(&mut self, index: usize) {
        if self.senders[index].in_flight() == Bytes::ZERO {
            for _ in 0..=self.rng.below(2) {
                let number = self.senders[index].send_packet(self.now);
                self.enqueue(index, number);
            }
            self.senders[index].idle();
            self.arm_probe(index);
        }
        self.wake(index, self.now + Duration::from_millis(1));
    }

    fn enqueue(&mut self, index: usize, number: u64) {
        self.sent += 1;
        while self
            .queued
            .front()
            .is_some_and(|departs| *departs <= self.now)
        {
            self.queued.pop_front();
        }
        let queued = Bytes::new(PACKET.get() * self.queued.len() as u64);
        // One packet is being sent and queues no longer.
        if queued > self.link.queue || self.rng.chance(self.link.loss) {
            self.lost += 1;
            return;
        }
        let mut start = self.busy_until.max(self.now);
        if self.link.pause > Duration::ZERO && start >= self.next_pause_at {
            start += Duration::from_nanos(self.rng.below(self.link.pause.as_nanos() as u64));
            self.next_pause_at = start + Duration::from_micros(self.rng.below(10_000));
        }
        if self.now >= self.halfway && !self.link.is_policed {
            self.queue_times.push(start.since(self.now));
        }
        self.busy_until = self.link.served_at(start, PACKET);
        self.queued.push_back(self.busy_until);
        // A policer's bucket empties like a queue, but nobody waits in it.
        let leaves_at = if self.link.is_policed {
            self.now
        } else {
            self.busy_until
        };
        let jitter = self.rng.below(self.link.jitter.as_nanos() as u64 + 1);
        let arrives_at = leaves_at + self.link.delay + Duration::from_nanos(jitter);
        let arrives_at = arrives_at.max(self.last_arrives_at);
        self.last_arrives_at = arrives_at;
        self.schedule(arrives_at, index, Event::Delivered(number));
    }

    fn receive(&mut self, index: usize, number: u64) {
        self.delivered[index].0 += 1;
        self.delivered[index].1 += u64::from(self.now >= self.halfway);
        let is_first = self.receivers[index].receive(number);
        if self.receivers[index].is_ack_due(self.link.ack_every) {
            self.acknowledge(index);
        } else if is_first {
            let round = self.receivers[index].round;
            self.schedule(self.now + ACK_DELAY, index, Event::AckDue(round));
        }
    }

    fn acknowledge(&mut self, index: usize) {
        let numbers = self.receivers[index].acknowledge();
        let jitter = self.rng.below(self.link.ack_jitter.as_nanos() as u64 + 1);
        let arrives_at = self.now + self.link.delay + Duration::from_nanos(jitter);
        self.schedule(arrives_at, index, Event::Ack(numbers));
    }

    fn trace(&mut self, index: usize) {
        if self.now < self.trace_at[index] {
            return;
        }
        self.trace_at[index] = self.now + Duration::from_millis(10);
        let queue = self.busy_until.since(self.now);
        let in_flight = self.senders[index].in_flight();
        let state = self.senders[index].snapshot();
        println!(
            "{} #{index} in flight {in_flight} queue {queue:?} {state:?}",
            self.now
        );
    }

    fn outcome(mut self, span: Duration) -> Outcome {
        let bytes = |packets: u64| (packets * PACKET.get()) as f64;
        let all: u64 = self.delivered.iter().map(|delivered| delivered.0).sum();
        let late: u64 = self.delivered.iter().map(|delivered| delivered.1).sum();
        let share = |delivered: &(u64, u64)| delivered.1 as f64 / late.max(1) as f64;
        let capacity = self.link.capacity(span);
        let late_capacity = capacity - self.link.capacity(span / 2);
        self.queue_times.sort_unstable();
        let quantile = |share: f64| {
            let index = (self.queue_times.len() as f64 * share) as usize;
            self.queue_times.get(index).copied().unwrap_or_default()
        };
        Outcome {
            utilisation: bytes(all) / capacity,
            second_half: bytes(late) / late_capacity,
            shares: self.delivered.iter().map(share).collect(),
            loss: self.lost as f64 / self.sent.max(1) as f64,
            queue_p50: quantile(0.5),
            queue_p95: quantile(0.95),
        }
    }
}
