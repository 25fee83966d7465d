//! One link with an endless sender, in virtual time, packet by packet.
//!
//! Drives controller, pacer and estimators as recovery would, and measures what came through and
//! how long it queued. Simple on purpose: no headers, no streams, acknowledgements never lost.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, Seed};

use crate::congestion::{AckEvent, Controller, Kind, LossEvent};
use crate::delivery::{DeliveryEstimator, SentState};
use crate::pacer::Pacer;
use crate::rtt::RttEstimator;

const PACKET: Bytes = Bytes::new(1_472);
/// How long the rate of a link is held constant when it follows a list of rates.
pub(super) const STEP: Duration = Duration::from_millis(20);
const ACK_DELAY: Duration = Duration::from_millis(5);

/// A link, and the manners of the hosts at its ends.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// One rate per [`STEP`], repeated at its end.
    pub(super) rates: Vec<Rate>,
    pub(super) delay: Duration,
    pub(super) queue: Bytes,
    pub(super) loss: f64,
    /// The receiver acknowledges every so many packets, or after [`ACK_DELAY`].
    pub(super) ack_every: usize,
    /// The sender wakes later than it wants by up to this.
    pub(super) late: Duration,
    /// The receiver (and so the link) pauses every 5 ms on average, for up to this.
    pub(super) pause: Duration,
    /// The sender offers nothing in the second half of every such period.
    pub(super) idle_period: Option<Duration>,
}

impl Link {
    pub(super) fn new(kbps: u64, delay_ms: u64, queue_kb: u64) -> Self {
        Self {
            rates: vec![Rate::from_bps(kbps * 1_000)],
            delay: Duration::from_millis(delay_ms),
            queue: Bytes::kilo(queue_kb),
            loss: 0.0,
            ack_every: 2,
            late: Duration::from_micros(100),
            pause: Duration::ZERO,
            idle_period: None,
        }
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
            left = left - rate.amount_in(end - now);
            now = end;
        }
    }

    /// What the link could carry in `span`.
    fn capacity(&self, span: Duration) -> f64 {
        let steps = span.as_nanos() / STEP.as_nanos();
        let per_step = |step| self.rates[step as usize % self.rates.len()].amount_in(STEP);
        (0..steps).map(|step| per_step(step).get() as f64).sum()
    }
}

/// What a run showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Carried, of what the link could have carried.
    pub(super) utilisation: f64,
    pub(super) goodput: Rate,
    /// Lost of what was sent.
    pub(super) loss: f64,
    /// Time spent in the queue by packets: median and 95th percentile, the first second left out.
    pub(super) queue_p50: Duration,
    pub(super) queue_p95: Duration,
    /// Utilisation of the last half.
    pub(super) late_half: f64,
}

#[derive(Debug)]
enum Event {
    Wake,
    Delivered(u64),
    AckDue(u64),
    Ack(Vec<u64>),
    ProbeTimeout(u64),
}

struct Sent {
    at: Instant,
    state: SentState,
}

struct Run<'a> {
    link: &'a Link,
    rng: Rng,
    now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    event_count: u64,
    // sender
    controller: Controller,
    pacer: Pacer,
    rtt: RttEstimator,
    delivery: DeliveryEstimator,
    sent: BTreeMap<u64, Sent>,
    next_number: u64,
    in_flight: Bytes,
    ack_count: u64,
    probe_backoff: u32,
    wake_at: Instant,
    // link
    busy_until: Instant,
    queued: VecDeque<Instant>,
    next_pause_at: Instant,
    queue_times: Vec<Duration>,
    sent_packets: u64,
    lost_packets: u64,
    // receiver
    unacked: Vec<u64>,
    ack_round: u64,
    delivered: u64,
    delivered_late: u64,
    halfway: Instant,
    trace: bool,
    traced_at: Instant,
}

/// Runs `link` for `span` under `kind`.
pub(super) fn run(link: &Link, kind: Kind, span: Duration, seed: Seed) -> Outcome {
    run_traced(link, kind, span, seed, false)
}

/// As [`run`], printing the controller's state every 10 ms if `trace`.
pub(super) fn run_traced(
    link: &Link,
    kind: Kind,
    span: Duration,
    seed: Seed,
    trace: bool,
) -> Outcome {
    let now = Instant::EPOCH;
    let controller = Controller::new(kind, PACKET, now, seed.rng("controller"));
    let mut run = Run {
        link,
        rng: seed.rng("link"),
        now,
        events: BTreeMap::new(),
        event_count: 0,
        pacer: Pacer::new(now, controller.pacing_rate(), PACKET),
        controller,
        rtt: RttEstimator::default(),
        delivery: DeliveryEstimator::new(now),
        sent: BTreeMap::new(),
        next_number: 0,
        in_flight: Bytes::ZERO,
        ack_count: 0,
        probe_backoff: 0,
        wake_at: Instant::NEVER,
        busy_until: now,
        queued: VecDeque::new(),
        next_pause_at: now,
        queue_times: Vec::new(),
        sent_packets: 0,
        lost_packets: 0,
        unacked: Vec::new(),
        ack_round: 0,
        delivered: 0,
        delivered_late: 0,
        halfway: now + span / 2,
        trace,
        traced_at: now,
    };
    run.schedule(now, Event::Wake);
    run.until(now + span);
    run.outcome(span)
}

impl Run<'_> {
    fn schedule(&mut self, at: Instant, event: Event) {
        self.event_count += 1;
        self.events.insert((at, self.event_count), event);
    }

    fn until(&mut self, end: Instant) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at >= end {
                return;
            }
            self.now = at;
            match event {
                Event::Wake if at == self.wake_at || self.wake_at == Instant::NEVER => {
                    self.wake_at = Instant::NEVER;
                    self.send();
                }
                Event::Wake => {}
                Event::Delivered(number) => self.receive(number),
                Event::AckDue(round) if round == self.ack_round => self.acknowledge(),
                Event::AckDue(_) => {}
                Event::Ack(numbers) => self.handle_ack(&numbers),
                Event::ProbeTimeout(ack_count) => self.probe(ack_count),
            }
        }
    }

    // ---- sender ----

    fn send(&mut self) {
        self.pacer.set_rate(self.now, self.controller.pacing_rate());
        let is_idle = self.link.idle_period.is_some_and(|period| {
            self.now.as_nanos() % period.as_nanos() as u64 * 2 >= period.as_nanos() as u64
        });
        while self.in_flight + PACKET <= self.controller.cwnd() {
            if is_idle {
                self.delivery.mark_app_limited(self.in_flight);
                let next = self.now + Duration::from_millis(1);
                self.wake_at(next);
                return;
            }
            if self.pacer.budget(self.now) < PACKET {
                let late = self.rng.below(self.link.late.as_nanos() as u64 + 1);
                let at = self.pacer.next_at(self.pacer.quantum());
                self.wake_at(at + Duration::from_nanos(late));
                return;
            }
            self.send_packet();
        }
    }

    fn wake_at(&mut self, at: Instant) {
        self.wake_at = at;
        self.schedule(at, Event::Wake);
    }

    fn send_packet(&mut self) {
        let state = self.delivery.on_sent(self.now, PACKET, self.in_flight);
        self.controller.on_sent(self.now, PACKET, self.in_flight);
        self.pacer.on_sent(self.now, PACKET);
        if self.in_flight == Bytes::ZERO {
            self.arm_probe();
        }
        self.in_flight += PACKET;
        let number = self.next_number;
        self.next_number += 1;
        self.sent.insert(
            number,
            Sent {
                at: self.now,
                state,
            },
        );
        self.enqueue(number);
    }

    fn arm_probe(&mut self) {
        let timeout = (self.rtt.pto_base() + ACK_DELAY) * (1 << self.probe_backoff.min(6));
        self.schedule(self.now + timeout, Event::ProbeTimeout(self.ack_count));
    }

    fn probe(&mut self, ack_count: u64) {
        if ack_count == self.ack_count && !self.sent.is_empty() {
            self.probe_backoff += 1;
            self.send_packet();
            self.arm_probe();
        }
    }

    fn handle_ack(&mut self, numbers: &[u64]) {
        self.ack_count += 1;
        self.probe_backoff = 0;
        self.delivery.begin_ack();
        let mut largest = None;
        for number in numbers {
            if let Some(sent) = self.sent.remove(number) {
                self.in_flight -= PACKET;
                self.delivery
                    .on_packet_acked(self.now, PACKET, sent.at, &sent.state);
                largest = Some((*number, sent.at));
            }
        }
        let Some((largest, largest_sent_at)) = largest else {
            return;
        };
        self.rtt
            .update(self.now, self.now.since(largest_sent_at), Duration::ZERO);
        self.detect_losses(largest);
        let sample = self.delivery.finish_ack(self.now, self.rtt.min());
        self.controller.on_ack(&AckEvent {
            now: self.now,
            sample: &sample,
            rtt: &self.rtt,
            in_flight_after: self.in_flight,
            largest_acked_sent_at: largest_sent_at,
        });
        if self.trace && self.now.since(self.traced_at) >= Duration::from_millis(10) {
            self.traced_at = self.now;
            let snapshot = self.controller.snapshot();
            println!(
                "{} {:8} cwnd {} inflight {} pace {} bw {} min {:?} rtt {:?}",
                self.now,
                snapshot.state,
                snapshot.cwnd,
                self.in_flight,
                snapshot.pacing_rate,
                snapshot.bandwidth,
                snapshot.min_rtt,
                self.rtt.latest(),
            );
        }
        if !self.sent.is_empty() {
            self.arm_probe();
        }
        self.send();
    }

    fn detect_losses(&mut self, largest: u64) {
        let lost: Vec<u64> = self
            .sent
            .range(..largest.saturating_sub(2))
            .map(|(n, _)| *n)
            .collect();
        let mut newest: Option<Sent> = None;
        let mut oldest_at = Instant::NEVER;
        for number in &lost {
            let sent = self.sent.remove(number).expect("taken from the map");
            self.in_flight -= PACKET;
            self.delivery.on_packet_lost(PACKET);
            oldest_at = oldest_at.min(sent.at);
            newest = Some(sent);
        }
        if let Some(newest) = newest {
            let span = newest.at.since(oldest_at);
            self.controller.on_loss(&LossEvent {
                now: self.now,
                lost: Bytes::new(PACKET.get() * lost.len() as u64),
                largest_lost_sent_at: newest.at,
                in_flight: self.in_flight,
                tx_in_flight: newest.state.tx_in_flight,
                persistent: span > self.rtt.pto_base() * 3,
            });
        }
    }

    // ---- link ----

    fn enqueue(&mut self, number: u64) {
        self.sent_packets += 1;
        while self
            .queued
            .front()
            .is_some_and(|departs| *departs <= self.now)
        {
            self.queued.pop_front();
        }
        let queued = Bytes::new(PACKET.get() * self.queued.len() as u64);
        if queued + PACKET > self.link.queue + PACKET || self.rng.chance(self.link.loss) {
            self.lost_packets += 1;
            return;
        }
        let mut start = self.busy_until.max(self.now);
        if self.link.pause > Duration::ZERO && start >= self.next_pause_at {
            start += Duration::from_nanos(self.rng.below(self.link.pause.as_nanos() as u64));
            self.next_pause_at = start + Duration::from_micros(self.rng.below(10_000));
        }
        let departs = self.link.served_at(start, PACKET);
        if self.now >= Instant::from_millis(1_000) {
            self.queue_times.push(start.since(self.now));
        }
        self.busy_until = departs;
        self.queued.push_back(departs);
        self.schedule(departs + self.link.delay, Event::Delivered(number));
    }

    // ---- receiver ----

    fn receive(&mut self, number: u64) {
        self.delivered += 1;
        self.delivered_late += u64::from(self.now >= self.halfway);
        self.unacked.push(number);
        if self.unacked.len() >= self.link.ack_every {
            self.acknowledge();
        } else if self.unacked.len() == 1 {
            self.schedule(self.now + ACK_DELAY, Event::AckDue(self.ack_round));
        }
    }

    fn acknowledge(&mut self) {
        self.ack_round += 1;
        let numbers = std::mem::take(&mut self.unacked);
        self.schedule(self.now + self.link.delay, Event::Ack(numbers));
    }

    fn outcome(mut self, span: Duration) -> Outcome {
        let carried = (self.delivered * PACKET.get()) as f64;
        let carried_late = (self.delivered_late * PACKET.get()) as f64;
        let capacity = self.link.capacity(span);
        let late_capacity = capacity - self.link.capacity(span / 2);
        self.queue_times.sort_unstable();
        let quantile = |share: f64| {
            let index = (self.queue_times.len() as f64 * share) as usize;
            self.queue_times.get(index).copied().unwrap_or_default()
        };
        Outcome {
            utilisation: carried / capacity,
            goodput: Rate::of(Bytes::new(carried as u64), span),
            loss: self.lost_packets as f64 / self.sent_packets.max(1) as f64,
            queue_p50: quantile(0.5),
            queue_p95: quantile(0.95),
            late_half: carried_late / late_capacity,
        }
    }
}
