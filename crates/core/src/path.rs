//! One path of a session: its address, its state, and everything that is measured on it.
//!
//! Owns whether the path may be used, and joins recovery, round-trip time, delivery rate,
//! congestion control and pacing, which do not know each other. What travels on the path is not
//! its business.
//!
//! ```text
//!            challenge answered            probe timeout, no ACK
//!  Opening ───────────────────► Active ─────────────────────────► Silent
//!     │                           ▲   ◄─────────────────────────    │
//!     │                           └──── anything acknowledged       │
//!     └──────────────► Closed ◄─── closed, abandoned, interface gone┘
//! ```

use tabane_base::{Bytes, Duration, Instant, Rate, Rng};
use tabane_monitor::Direction;
use thiserror::Error;

use crate::close::{PathDownReason, Violation};
use crate::congestion::{AckEvent, Controller, Kind, LossEvent};
use crate::crypto::PathPhase;
use crate::delivery::DeliveryEstimator;
use crate::forward_delay::ForwardDelay;
use crate::id::{FourTuple, PathId};
use crate::mtu::{BASE_SIZE, MtuDiscovery};
use crate::pacer::Pacer;
use crate::policy::Policies;
use crate::probe::{LEAST, Probe, Prober, Report, Terms};
use crate::reading::{Counts, Reading, Readings};
use crate::received::Received;
use crate::recovery::{Recovery, SentFrame, SentFrames, SentPacket, Settled};
use crate::rest::Rest;
use crate::rtt::{INITIAL_RTT, RttEstimator};
use crate::snapshot::{PathSnapshot, PathStatus};
use crate::trace::TraceMetrics;
use crate::wire::AckFrame;

/// What may be sent to an address that has not proved itself, per byte from it (RFC 9000 §8.1).
const AMPLIFICATION: u64 = 3;
/// The first challenge is repeated after this, then ever later; a path over the slowest satellite
/// answers within it.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(300);
/// Challenges are never further apart: a link that begins to work is noticed soon.
const CHALLENGE_INTERVAL_MAX: Duration = Duration::from_secs(3);
/// A path that has not answered for so long is reported, though the challenges go on.
const CHALLENGE_PATIENCE: u32 = 4;
/// A silent path is probed at least so often.
const PROBE_INTERVAL_MAX: Duration = Duration::from_millis(1_000);
/// After such a silence the path's window says nothing about it any more.
const FORGET_AFTER: Duration = Duration::from_secs(3);
/// A path that was heard so recently may carry acknowledgements, whatever its round-trip time.
const FRESH_FOR: Duration = Duration::from_millis(50);
/// Packets acknowledged together are at most this part of the window, so that the window keeps
/// moving, and at most [`ACK_PACKETS_MAX`].
const ACKS_PER_WINDOW: u64 = 8;
const ACK_PACKETS_MAX: u64 = 32;

/// IPv4 and UDP headers of a packet; IPv6 has 20 bytes more.
const IP_UDP_HEADERS: u64 = 28;

/// Why a path command cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// It was never opened, or is closed.
    #[error("there is no such path")]
    Unknown,
    /// As many paths are open as either end allows.
    #[error("as many paths are open as a session can have")]
    LimitReached,
    /// Only clients open paths, and only in connected sessions.
    #[error("the session is not connected, or this end may not open paths")]
    NotConnected,
    /// Negative, more than everything, or not a number.
    #[error("the weight of a path lies between 0 and 1")]
    WeightOutOfRange,
    /// Above [`MAX_PRIORITY`](crate::MAX_PRIORITY).
    #[error("the priority of a path is at most {}", crate::MAX_PRIORITY)]
    PriorityOutOfRange,
}

/// Where the path stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The address has not answered yet.
    Opening {
        reported: bool,
    },
    Active,
    /// Nothing comes back; probed, not used.
    Silent {
        since: Instant,
    },
}

/// An address being asked to prove that it receives what we send there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Challenge {
    pub(crate) tuple: FourTuple,
    pub(crate) data: [u8; 8],
    pub(crate) due_at: Instant,
    attempts: u32,
}

/// Totals of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) sent: Bytes,
    pub(crate) received: Bytes,
    pub(crate) acked: Bytes,
    pub(crate) lost: Bytes,
    pub(crate) sent_packets: u64,
    pub(crate) received_packets: u64,
    pub(crate) lost_packets: u64,
    pub(crate) spurious_losses: u64,
    pub(crate) reinjected: Bytes,
}

/// What an acknowledgement or timer changed.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Packets whose contents arrived.
    pub(crate) acked: Vec<Settled>,
    /// Packets whose contents must go again.
    pub(crate) lost: Vec<Settled>,
    /// The path carries data again.
    pub(crate) up: bool,
    /// The path carries no data at present.
    pub(crate) down: Option<PathDownReason>,
}

/// One path.
pub(crate) struct Path {
    pub(crate) id: PathId,
    pub(crate) tuple: FourTuple,
    state: State,
    pub(crate) recovery: Recovery,
    pub(crate) received: Received,
    pub(crate) rtt: RttEstimator,
    delivery: DeliveryEstimator,
    controller: Controller,
    pacer: Pacer,
    pub(crate) mtu: MtuDiscovery,
    pub(crate) forward: ForwardDelay,
    pub(crate) phase: PathPhase,
    pub(crate) challenge: Option<Challenge>,
    /// Answers owed, with where they go.
    pub(crate) response: Option<([u8; 8], FourTuple)>,
    /// Whether `tuple` proved that it receives what we send.
    validated: bool,
    unvalidated_credit: Bytes,
    /// Probe packets that a timeout asks for.
    pub(crate) probes_due: u8,
    pub(crate) keep_alive_due: bool,
    pub(crate) frequency_due: bool,
    pub(crate) policies: Policies,
    pub(crate) prober: Prober,
    readings: Readings,
    told_frequency: u64,
    pub(crate) rest: Rest,
    /// When it last carried a datagram.
    pub(crate) carried_datagram_at: Option<Instant>,
    last_sent_at: Instant,
    last_received_at: Instant,
    last_eliciting_at: Instant,
    peer_ack_delay: Duration,
    pub(crate) totals: Totals,
    settled: Vec<Settled>,
}

impl Path {
    pub(crate) fn new(
        now: Instant,
        id: PathId,
        tuple: FourTuple,
        controller: Kind,
        max_udp_payload: u16,
        rng: Rng,
    ) -> Self {
        let packet = Bytes::new(BASE_SIZE.into());
        let controller = Controller::new(controller, packet, now, rng);
        let headers = if tuple.remote.is_ipv6() { 20 } else { 0 };
        Self {
            id,
            tuple,
            state: State::Opening { reported: false },
            recovery: Recovery::new(),
            received: Received::new(),
            rtt: RttEstimator::new(INITIAL_RTT),
            delivery: DeliveryEstimator::new(now),
            pacer: Pacer::new(now, controller.pacing_rate(), packet)
                .in_pairs(controller.is_sent_in_pairs()),
            controller,
            mtu: MtuDiscovery::new(max_udp_payload - headers),
            forward: ForwardDelay::default(),
            phase: PathPhase::default(),
            challenge: None,
            response: None,
            validated: false,
            unvalidated_credit: Bytes::ZERO,
            probes_due: 0,
            keep_alive_due: false,
            frequency_due: false,
            policies: Policies::default(),
            prober: Prober::new(now, IP_UDP_HEADERS + u64::from(headers)),
            readings: Readings::default(),
            told_frequency: 0,
            rest: Rest::default(),
            carried_datagram_at: None,
            last_sent_at: now,
            last_received_at: now,
            last_eliciting_at: now,
            peer_ack_delay: crate::config::MAX_ACK_DELAY,
            totals: Totals::default(),
            settled: Vec::new(),
        }
    }

    /// The handshake has shown that the address answers.
    pub(crate) fn activate(&mut self, now: Instant, rtt: Option<Duration>) {
        self.validated = true;
        self.state = State::Active;
        if let Some(rtt) = rtt {
            self.rtt.update(now, rtt, Duration::ZERO);
        }
    }

    pub(crate) fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.peer_ack_delay = delay;
    }

    pub(crate) const fn state(&self) -> State {
        self.state
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state == State::Active
    }

    pub(crate) const fn is_validated(&self) -> bool {
        self.validated
    }

    /// Bytes a packet on this path may have.
    pub(crate) const fn packet_size(&self) -> usize {
        self.mtu.current() as usize
    }

    // What comes in.

    /// An authentic packet of `size` bytes came from `tuple`.
    pub(crate) fn on_received(&mut self, now: Instant, size: usize, tuple: FourTuple) {
        self.last_received_at = now;
        self.totals.received += Bytes::from(size);
        self.totals.received_packets += 1;
        if !self.validated && tuple == self.tuple {
            self.unvalidated_credit += Bytes::new(size as u64 * AMPLIFICATION);
        }
    }

    /// Asks `tuple` to prove itself, unless it is being asked already.
    pub(crate) fn challenge(&mut self, now: Instant, tuple: FourTuple, data: [u8; 8]) {
        if self
            .challenge
            .is_none_or(|challenge| challenge.tuple != tuple)
        {
            self.challenge = Some(Challenge {
                tuple,
                data,
                due_at: now,
                attempts: 0,
            });
        }
    }

    /// The challenge left; when to repeat it.
    pub(crate) fn on_challenge_sent(&mut self, now: Instant) {
        if let Some(challenge) = &mut self.challenge {
            let wait = CHALLENGE_INTERVAL * (1 << challenge.attempts.min(4));
            challenge.attempts += 1;
            challenge.due_at = now + wait.min(CHALLENGE_INTERVAL_MAX);
        }
    }

    /// Whether the path should be reported as not working; once.
    pub(crate) fn report_unanswered(&mut self) -> bool {
        let patient = self
            .challenge
            .is_none_or(|c| c.attempts < CHALLENGE_PATIENCE);
        match &mut self.state {
            State::Opening { reported } if !patient && !*reported => {
                *reported = true;
                true
            }
            _ => false,
        }
    }

    /// A challenge was answered. `true` when the path may be used from now on.
    pub(crate) fn on_response(&mut self, now: Instant, data: [u8; 8]) -> bool {
        let Some(challenge) = self.challenge.take_if(|challenge| challenge.data == data) else {
            return false;
        };
        if challenge.tuple != self.tuple {
            let other_host = challenge.tuple.remote.ip() != self.tuple.remote.ip();
            self.tuple = challenge.tuple;
            if other_host {
                // Another port is a NAT's new mapping on the same link; another address may be
                // another link (RFC 9000 §9.4).
                self.restart(now);
            }
        }
        self.validated = true;
        if matches!(self.state, State::Opening { .. }) {
            self.state = State::Active;
            return true;
        }
        false
    }

    /// Forgets what was measured.
    fn restart(&mut self, now: Instant) {
        self.controller.on_path_reset(now);
        self.rtt.reset();
        self.forward.reset();
        self.mtu.reset();
        self.prober.reset(now);
        self.on_packet_size();
        self.pace(now);
    }

    /// Holds the pacer to what the controller and the path's owners allow.
    pub(crate) fn pace(&mut self, now: Instant) {
        let rate = self.policies.allowed(self.controller.pacing_rate());
        self.pacer.set_rate(now, rate);
    }

    fn on_packet_size(&mut self) {
        let size = Bytes::from(self.packet_size());
        self.controller.on_mtu(size);
        self.pacer.set_packet(size);
    }

    /// Takes in an acknowledgement of packets of this path. `reverse_mean` is the mean of
    /// [`Self::reverse`] over all paths.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        ack: &AckFrame,
        reverse_mean: Option<i64>,
        news: &mut News,
    ) -> Result<(), Violation> {
        let mut settled = std::mem::take(&mut self.settled);
        self.recovery.on_ack(ack, |packet| settled.push(packet))?;
        self.delivery.begin_ack();
        let mut largest: Option<(u64, Instant)> = None;
        let mut behind = Duration::ZERO;
        let mut in_flight_acked = false;
        for Settled {
            pn,
            packet,
            was_lost,
        } in &settled
        {
            if *was_lost {
                self.totals.spurious_losses += 1;
                self.controller.on_spurious_loss(now);
                continue;
            }
            let size = Bytes::new(packet.size.into());
            self.totals.acked += size;
            if packet.in_flight {
                in_flight_acked = true;
                self.delivery
                    .on_packet_acked(now, size, packet.sent_at, &packet.delivery);
            }
            self.mtu.on_packet_acked(packet.size);
            self.on_mtu_probe_acked(now, packet);
            if packet.ack_eliciting && largest.is_none_or(|(other, _)| *pn > other) {
                largest = Some((*pn, packet.sent_at));
                behind = behind_in_train(packet, ack);
            }
        }
        if let Some((pn, sent_at)) = largest
            && pn == ack.largest()
        {
            let sample = now.since(sent_at).saturating_sub(behind);
            let delay = ack.delay.min(self.peer_ack_delay);
            self.rtt.update(now, sample, delay);
            self.forward.on_sample(sent_at, ack.largest_at);
            self.readings.on_round_trip(sample.saturating_sub(delay));
            self.readings.on_one_way(sent_at, ack.largest_at);
        }
        if let Some((_, sent_at)) = largest {
            self.on_alive(now, news);
            let lost_before = news.lost.len();
            self.recovery.detect_lost(now, &self.rtt, &mut news.lost);
            self.on_lost(now, &news.lost[lost_before..], false);
            if in_flight_acked {
                let sample = self.delivery.finish_ack(now, self.rtt.min());
                self.controller.on_ack(&AckEvent {
                    now,
                    sample: &sample,
                    rtt: &self.rtt,
                    trip: reverse_mean.and_then(|reverse| self.forward.trip(reverse)),
                    way_back: sample.rtt.and_then(|rtt| self.forward.way_back(rtt)),
                    in_flight_after: self.recovery.in_flight(),
                    largest_acked_sent_at: sent_at,
                });
            }
            self.pace(now);
            self.review_frequency();
        }
        news.acked.append(&mut settled);
        self.settled = settled;
        Ok(())
    }

    /// The one-way time from the peer minus the clocks' offset, in nanoseconds.
    pub(crate) fn reverse(&self) -> Option<i64> {
        self.forward.reverse(self.rtt.smoothed())
    }

    fn on_mtu_probe_acked(&mut self, now: Instant, packet: &SentPacket) {
        for frame in packet.frames.iter() {
            if let SentFrame::MtuProbe(size) = frame
                && self.mtu.on_probe_acked(now, size)
            {
                self.on_packet_size();
            }
        }
    }

    /// Something newly sent was acknowledged.
    fn on_alive(&mut self, now: Instant, news: &mut News) {
        self.recovery.on_alive();
        self.probes_due = 0;
        if let State::Silent { since } = self.state {
            self.state = State::Active;
            news.up = true;
            if now.since(since) > FORGET_AFTER {
                self.controller.on_path_reset(now);
            }
        }
    }

    fn on_lost(&mut self, now: Instant, lost: &[Settled], persistent: bool) {
        let mut amount = Bytes::ZERO;
        let mut newest: Option<&SentPacket> = None;
        for Settled { packet, .. } in lost {
            let size = Bytes::new(packet.size.into());
            self.delivery.on_packet_lost(size);
            let probe = packet.frames.iter().find_map(|frame| match frame {
                SentFrame::MtuProbe(size) => Some(size),
                _ => None,
            });
            if let Some(size) = probe {
                // A probe that is too large says nothing about congestion (RFC 8899 §3).
                self.mtu.on_probe_lost(now, size);
                continue;
            }
            if self.mtu.on_packet_lost(now, packet.size) {
                self.on_packet_size();
            }
            self.totals.lost += size;
            self.totals.lost_packets += 1;
            amount += size;
            newest = Some(packet);
        }
        if let Some(packet) = newest {
            self.controller.on_loss(&LossEvent {
                now,
                lost: amount,
                largest_lost_sent_at: packet.sent_at,
                in_flight: self.recovery.in_flight(),
                tx_in_flight: packet.delivery.tx_in_flight,
                persistent,
            });
            self.pace(now);
        }
    }

    /// How many packets the peer should acknowledge together; `None` while it knows.
    fn review_frequency(&mut self) {
        let wanted = self.ack_packets();
        let told = self.told_frequency;
        self.frequency_due |= wanted >= 2 * told || wanted * 2 <= told;
    }

    fn ack_packets(&self) -> u64 {
        let packets = self.controller.cwnd().get() / self.packet_size() as u64;
        (packets / ACKS_PER_WINDOW).clamp(2, ACK_PACKETS_MAX)
    }

    /// The frequency to ask for; considered told.
    pub(crate) fn take_frequency(&mut self) -> (u64, Duration) {
        self.frequency_due = false;
        self.told_frequency = self.ack_packets();
        (
            self.told_frequency,
            (self.rtt.min() / 4).max(Duration::from_millis(1)),
        )
    }

    // Measuring.

    /// When a train of probes is due that may leave; `data_at` is when the session last carried
    /// data.
    pub(crate) fn probe_at(&self, data_at: Instant) -> Option<Instant> {
        self.may_probe().then(|| self.prober.due_at(data_at))?
    }

    /// Whether a train may take the place of a keep-alive.
    pub(crate) fn may_probe_instead(&self, now: Instant) -> bool {
        self.may_probe() && self.prober.allowed_at() <= now
    }

    fn may_probe(&self) -> bool {
        let pair = Bytes::new(LEAST * self.packet_size() as u64);
        self.is_active() && self.validated && !self.policies.metered() && self.window_room() >= pair
    }

    /// A train of probes begins, if there is room for it.
    pub(crate) fn begin_probe(&mut self, now: Instant) -> Option<Probe> {
        let terms = Terms {
            packet: self.packet_size() as u64,
            room: self.window_room(),
        };
        self.prober.begin(now, terms)
    }

    /// A packet of the other end's train arrived.
    pub(crate) fn on_probe(&mut self, now: Instant, probe: Probe, size: usize) {
        if let Some(train) = self.prober.on_probe(now, probe, size as u64) {
            // The report rides with the acknowledgement, whose delay would blur the round trip.
            self.received.hasten(now);
            self.readings.on_train(Direction::In, train);
        }
    }

    /// The other end tells how a train arrived.
    pub(crate) fn on_probe_report(&mut self, now: Instant, report: Report) {
        if let Some(train) = self.prober.on_report(now, report) {
            self.readings.on_train(Direction::Out, train);
        }
    }

    /// What was measured since the last reading, if it is time for one.
    pub(crate) fn take_reading(&mut self, now: Instant) -> Option<Reading> {
        let counts = Counts {
            delivered: self.totals.acked,
            sent: self.totals.sent_packets,
            lost: self
                .totals
                .lost_packets
                .saturating_sub(self.totals.spurious_losses),
        };
        self.readings.take(now, (self.id, self.tuple), counts)
    }

    // Time.

    pub(crate) fn loss_timer(&self) -> Option<Instant> {
        if matches!(self.state, State::Opening { .. }) {
            return None;
        }
        self.recovery.loss_at().or_else(|| self.pto_at())
    }

    fn pto_at(&self) -> Option<Instant> {
        let at = self.recovery.pto_at(&self.rtt, self.peer_ack_delay)?;
        // Back-off must not make a path that has come back wait long to be noticed.
        let latest = self.last_eliciting_at
            + PROBE_INTERVAL_MAX.max(2 * (self.rtt.pto_base() + self.peer_ack_delay));
        Some(at.min(latest))
    }

    /// The loss timer fired. `others`: whether another path can carry what is in flight here.
    pub(crate) fn on_loss_timer(&mut self, now: Instant, others: bool, news: &mut News) {
        let lost_before = news.lost.len();
        if self.recovery.loss_at().is_some_and(|at| at <= now) {
            self.recovery.detect_lost(now, &self.rtt, &mut news.lost);
            self.on_lost(now, &news.lost[lost_before..], false);
            return;
        }
        if self.pto_at().is_none_or(|at| at > now) {
            return;
        }
        self.recovery.on_pto();
        self.probes_due = 2;
        if others {
            self.give_up_in_flight(now, news);
        }
        let patient = !others && self.recovery.pto_count() < 3;
        if self.is_active() && !patient {
            self.state = State::Silent { since: now };
            news.down = Some(PathDownReason::NoAnswer);
        }
    }

    /// Hands everything in flight over to other paths, in the order it was sent (SBAM figure 3).
    /// The controller does not hear of it: whether anything was lost is not known.
    pub(crate) fn give_up_in_flight(&mut self, now: Instant, news: &mut News) {
        let before = news.lost.len();
        self.recovery.lose_all(&mut news.lost);
        for Settled { packet, .. } in &news.lost[before..] {
            self.delivery.on_packet_lost(Bytes::new(packet.size.into()));
            for frame in packet.frames.iter() {
                if let SentFrame::MtuProbe(size) = frame {
                    self.mtu.on_probe_lost(now, size);
                }
            }
        }
    }

    /// When silence on the path should be broken.
    pub(crate) fn keep_alive_at(&self, interval: Duration) -> Option<Instant> {
        let quiet_since = self.last_received_at.max(self.last_eliciting_at);
        match self.state {
            State::Active => Some(quiet_since + interval),
            State::Silent { .. } if !self.recovery.has_eliciting_in_flight() => {
                Some(self.last_eliciting_at + PROBE_INTERVAL_MAX)
            }
            State::Opening { .. } | State::Silent { .. } => None,
        }
    }

    // What goes out.

    /// Bytes that may go to `tuple` before it has proved itself.
    pub(crate) fn amplification_room(&self) -> Bytes {
        if self.validated {
            Bytes::MAX
        } else {
            self.unvalidated_credit
        }
    }

    /// Bytes the window still lets through.
    pub(crate) fn window_room(&self) -> Bytes {
        self.controller.cwnd() - self.recovery.in_flight()
    }

    /// Bytes that may leave now, by window and pacer.
    pub(crate) fn room(&self, now: Instant) -> Bytes {
        self.window_room().min(self.pacer.budget(now))
    }

    /// When the pacer lets a full packet out.
    pub(crate) fn paced_at(&self) -> Instant {
        self.pacer.next_at(Bytes::from(self.packet_size()))
    }

    pub(crate) fn rate(&self) -> Rate {
        self.controller.pacing_rate()
    }

    pub(crate) fn cwnd(&self) -> Bytes {
        self.controller.cwnd()
    }

    /// Whether acknowledgements sent here are likely to arrive: it was heard of late. During a
    /// transfer every live path is heard of all the time; on a quiet session none is suspected.
    pub(crate) fn is_fresh(&self, newest: Instant) -> bool {
        self.last_received_at + (2 * self.rtt.smoothed()).max(FRESH_FOR) >= newest
    }

    pub(crate) const fn last_sent_at(&self) -> Instant {
        self.last_sent_at
    }

    pub(crate) const fn last_received_at(&self) -> Instant {
        self.last_received_at
    }

    pub(crate) const fn last_eliciting_at(&self) -> Instant {
        self.last_eliciting_at
    }

    /// Nothing to send though the path would take it: what is measured is the application.
    pub(crate) fn on_app_limited(&mut self) {
        self.delivery.mark_app_limited(self.recovery.in_flight());
    }

    /// A packet of `size` bytes leaves.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        size: usize,
        ack_eliciting: bool,
        key_generation: u64,
        frames: SentFrames,
    ) {
        let bytes = Bytes::from(size);
        self.totals.sent += bytes;
        self.totals.sent_packets += 1;
        self.last_sent_at = now;
        if !self.validated {
            self.unvalidated_credit -= bytes;
        }
        if !ack_eliciting {
            self.recovery.on_untracked_sent();
            return;
        }
        self.last_eliciting_at = now;
        if self.policies.allowed(self.rate()) < self.rate() {
            // Held below what the path takes: what is measured is the wish, not the path.
            self.on_app_limited();
        }
        let in_flight = self.recovery.in_flight();
        self.controller.on_sent(now, bytes, in_flight);
        let delivery = self.delivery.on_sent(now, bytes, in_flight);
        self.pacer.on_sent(now, bytes);
        self.recovery.on_sent(SentPacket {
            sent_at: now,
            size: size as u16,
            ack_eliciting,
            in_flight: true,
            reinjected: false,
            key_generation: key_generation as u32,
            delivery,
            frames,
        });
    }

    /// A full packet leaves, as far as the pacer is concerned.
    pub(crate) fn pace_out(&mut self, now: Instant) {
        self.pacer.on_sent(now, Bytes::from(self.packet_size()));
    }

    pub(crate) fn trace_metrics(&self) -> TraceMetrics {
        let controller = self.controller.snapshot();
        TraceMetrics {
            rtt_smoothed: self.rtt.smoothed(),
            rtt_latest: self.rtt.latest(),
            rtt_min: self.rtt.min(),
            rtt_variation: self.rtt.variation(),
            cwnd: controller.cwnd,
            in_flight: self.recovery.in_flight(),
            pacing_rate: controller.pacing_rate,
            phase: controller.state,
        }
    }

    pub(crate) fn snapshot(&self) -> PathSnapshot {
        let controller = self.controller.snapshot();
        PathSnapshot {
            id: self.id,
            tuple: self.tuple,
            status: match self.state {
                State::Opening { .. } => PathStatus::Opening,
                State::Active => PathStatus::Active,
                State::Silent { .. } => PathStatus::Silent,
            },
            rtt_smoothed: self.rtt.smoothed(),
            rtt_variation: self.rtt.variation(),
            rtt_min: self.rtt.min(),
            rtt_measured: self.rtt.is_measured(),
            cwnd: controller.cwnd,
            in_flight: self.recovery.in_flight(),
            pacing_rate: controller.pacing_rate,
            delivery_rate: controller.bandwidth,
            controller_state: controller.state,
            pair_out: self.prober.bandwidth_out(),
            pair_in: self.prober.bandwidth_in(),
            sent: self.totals.sent,
            received: self.totals.received,
            acked: self.totals.acked,
            lost: self.totals.lost,
            sent_packets: self.totals.sent_packets,
            received_packets: self.totals.received_packets,
            lost_packets: self.totals.lost_packets,
            spurious_losses: self.totals.spurious_losses,
            reinjected: self.totals.reinjected,
            mtu: self.mtu.current(),
            weight: self.policies.weight(),
            backup: self.policies.backup(),
            metered: self.policies.metered(),
            policy: self.policies.own(),
            last_received_at: self.last_received_at,
        }
    }
}

/// How long after the first of its train a probe arrived: that is how long it queued behind its own
/// kind, and no part of a round trip.
fn behind_in_train(packet: &SentPacket, ack: &AckFrame) -> Duration {
    let place = packet.frames.iter().find_map(|frame| match frame {
        SentFrame::Probe(place) => Some(usize::from(place)),
        _ => None,
    });
    let ahead = ack.times.len().min(place.unwrap_or(0));
    ahead
        .checked_sub(1)
        .map_or(Duration::ZERO, |index| ack.times[index])
}
