//! An endless sender and its receiver: drives controller, pacer and estimators as recovery would.
//!
//! Simple on purpose: no headers, no streams, losses found by packet order and probe timeout.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::{Bytes, Duration, Instant, Seed};

use super::bbr1::Bbr1;
use super::link::{ACK_DELAY, PACKET};
use crate::congestion::{AckEvent, Algorithm, Controller, ControllerSnapshot, Kind, LossEvent};
use crate::delivery::{DeliveryEstimator, SentState};
use crate::forward_delay::Trip;
use crate::pacer::Pacer;
use crate::rtt::RttEstimator;

/// What an acknowledgement repeats of earlier ones, so that overtaking does no harm.
const ACK_HISTORY: usize = 128;

/// Why a sender stopped sending.
pub(super) enum Stopped {
    /// The window is full: the next acknowledgement opens it.
    Window,
    /// Pacing allows more at this time.
    Pacing(Instant),
}

/// What drives a sender: ours, or a stranger on the same link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Flow {
    Ours(Kind),
    Bbr1,
}

impl From<Kind> for Flow {
    fn from(kind: Kind) -> Self {
        Self::Ours(kind)
    }
}

impl std::fmt::Display for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ours(kind) => kind.fmt(f),
            Self::Bbr1 => f.pad("bbr1"),
        }
    }
}

enum Driver {
    Ours(Controller),
    Foreign(Box<Bbr1>),
}

impl Driver {
    fn new(flow: Flow, now: Instant, seed: Seed) -> Self {
        match flow {
            Flow::Ours(kind) => {
                Self::Ours(Controller::new(kind, PACKET, now, seed.rng("controller")))
            }
            Flow::Bbr1 => Self::Foreign(Box::new(Bbr1::new(now))),
        }
    }

    fn get(&self) -> &dyn Algorithm {
        match self {
            Self::Ours(controller) => controller.algorithm(),
            Self::Foreign(bbr1) => bbr1.as_ref(),
        }
    }

    fn get_mut(&mut self) -> &mut dyn Algorithm {
        match self {
            Self::Ours(controller) => controller.algorithm_mut(),
            Self::Foreign(bbr1) => bbr1.as_mut(),
        }
    }
}

struct Sent {
    at: Instant,
    state: SentState,
}

pub(super) struct Sender {
    controller: Driver,
    pacer: Pacer,
    rtt: RttEstimator,
    /// Of all round trips.
    shortest: Option<Duration>,
    delivery: DeliveryEstimator,
    sent: BTreeMap<u64, Sent>,
    next_number: u64,
    /// The newest that counted as lost.
    latest_lost: Option<u64>,
    in_flight: Bytes,
    probe_backoff: u32,
    /// Tells acknowledgements apart, so that a timer knows whether one came since.
    pub(super) ack_count: u64,
    /// The wake-up that counts; others are stale.
    pub(super) wake_at: Instant,
}

impl Sender {
    pub(super) fn new(flow: Flow, now: Instant, seed: Seed) -> Self {
        let controller = Driver::new(flow, now, seed);
        Self {
            pacer: Pacer::new(now, controller.get().pacing_rate(), PACKET)
                .in_pairs(controller.get().is_sent_in_pairs()),
            controller,
            rtt: RttEstimator::default(),
            shortest: None,
            delivery: DeliveryEstimator::new(now),
            sent: BTreeMap::new(),
            next_number: 0,
            latest_lost: None,
            in_flight: Bytes::ZERO,
            probe_backoff: 0,
            ack_count: 0,
            wake_at: Instant::NEVER,
        }
    }

    /// Sends what window and pacing allow, giving each packet's number to `transmit`.
    pub(super) fn send(&mut self, now: Instant, mut transmit: impl FnMut(u64)) -> Stopped {
        self.pacer
            .set_rate(now, self.controller.get().pacing_rate());
        let window = self.controller.get().cwnd();
        while self.in_flight + PACKET <= window {
            if self.pacer.budget(now) < PACKET {
                return Stopped::Pacing(self.pacer.next_at(PACKET));
            }
            transmit(self.send_packet(now));
        }
        Stopped::Window
    }

    /// The application has nothing to send.
    pub(super) fn idle(&mut self) {
        self.delivery.mark_app_limited(self.in_flight);
    }

    /// The probe timeout passed without news; the number of the probe, if one is due.
    pub(super) fn probe(&mut self, now: Instant) -> Option<u64> {
        if self.sent.is_empty() {
            return None;
        }
        self.probe_backoff += 1;
        Some(self.send_packet(now))
    }

    pub(super) fn probe_due_at(&self, now: Instant) -> Option<Instant> {
        let timeout = (self.rtt.pto_base() + ACK_DELAY) * (1 << self.probe_backoff.min(6));
        (!self.sent.is_empty()).then(|| now + timeout)
    }

    pub(super) fn send_packet(&mut self, now: Instant) -> u64 {
        let state = self.delivery.on_sent(now, PACKET, self.in_flight);
        self.controller
            .get_mut()
            .on_sent(now, PACKET, self.in_flight);
        self.pacer.on_sent(now, PACKET);
        self.in_flight += PACKET;
        let number = self.next_number;
        self.next_number += 1;
        self.sent.insert(number, Sent { at: now, state });
        number
    }

    pub(super) fn handle_ack(&mut self, now: Instant, numbers: &[u64]) {
        self.ack_count += 1;
        self.probe_backoff = 0;
        self.delivery.begin_ack();
        let mut largest = None;
        // Most of what is repeated is known: no need to look for it.
        let oldest = self.sent.keys().next().copied().unwrap_or(u64::MAX);
        for number in numbers.iter().filter(|number| **number >= oldest) {
            if let Some(sent) = self.sent.remove(number) {
                self.in_flight -= PACKET;
                self.delivery.on_packet_acked(PACKET, sent.at, &sent.state);
                largest = largest.max(Some((*number, sent.at)));
            }
        }
        let Some((largest, largest_acked_sent_at)) = largest else {
            return;
        };
        let round_trip = now.since(largest_acked_sent_at);
        let shortest = self.shortest.map_or(round_trip, |it| it.min(round_trip));
        self.shortest = Some(shortest);
        self.rtt.update(now, round_trip, Duration::ZERO);
        self.detect_losses(now, largest);
        let sample = self.delivery.finish_ack(now, now, self.rtt.min());
        self.controller.get_mut().on_ack(&AckEvent {
            now,
            sample: &sample,
            rtt: &self.rtt,
            trip: Some(Trip {
                latest: round_trip,
                least: shortest,
            }),
            way_back: None,
            in_flight_after: self.in_flight,
            largest_acked_sent_at,
        });
    }

    fn detect_losses(&mut self, now: Instant, largest: u64) {
        let until = largest.saturating_sub(2);
        let lost: Vec<u64> = self
            .sent
            .range(..until)
            .map(|(number, _)| *number)
            .collect();
        let mut newest: Option<Sent> = None;
        let mut runs = 0;
        let mut oldest_at = Instant::NEVER;
        for number in &lost {
            let sent = self.sent.remove(number).expect("taken from the map");
            self.in_flight -= PACKET;
            self.delivery.on_packet_lost(PACKET);
            runs += u32::from(self.latest_lost.map(|latest| latest + 1) != Some(*number));
            self.latest_lost = Some(*number);
            oldest_at = oldest_at.min(sent.at);
            newest = Some(sent);
        }
        let Some(newest) = newest else {
            return;
        };
        self.controller.get_mut().on_loss(&LossEvent {
            now,
            lost: Bytes::new(PACKET.get() * lost.len() as u64),
            runs,
            largest_lost_sent_at: newest.at,
            in_flight: self.in_flight,
            tx_in_flight: newest.state.tx_in_flight,
            persistent: newest.at.since(oldest_at) > self.rtt.pto_base() * 3,
        });
    }

    pub(super) fn snapshot(&self) -> ControllerSnapshot {
        self.controller.get().snapshot()
    }

    pub(super) fn in_flight(&self) -> Bytes {
        self.in_flight
    }
}

/// Takes packets, gives acknowledgements.
#[derive(Default)]
pub(super) struct Receiver {
    unacked: usize,
    recent: VecDeque<u64>,
    /// Tells acknowledgements apart, so that the timer knows whether one was given since.
    pub(super) round: u64,
}

impl Receiver {
    /// A packet came; true if it is the first since the last acknowledgement.
    pub(super) fn receive(&mut self, number: u64) -> bool {
        self.recent.push_back(number);
        if self.recent.len() > ACK_HISTORY {
            self.recent.pop_front();
        }
        self.unacked += 1;
        self.unacked == 1
    }

    pub(super) fn is_ack_due(&self, every: usize) -> bool {
        self.unacked >= every
    }

    pub(super) fn acknowledge(&mut self) -> Vec<u64> {
        self.round += 1;
        self.unacked = 0;
        self.recent.iter().copied().collect()
    }
}
