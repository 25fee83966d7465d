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

mod answers;
mod silence;
mod validation;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng};
use tabane_monitor::Direction;
use thiserror::Error;

use crate::close::PathDownReason;
use crate::congestion::{Controller, Kind};
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
use crate::recovery::{Recovery, SentFrames, SentPacket, Settled};
use crate::rest::Rest;
use crate::rtt::{INITIAL_RTT, RttEstimator};
use crate::snapshot::{PathSnapshot, PathStatus};
use crate::trace::TraceMetrics;

/// What may be sent to an address that has not proved itself, per byte from it (RFC 9000 §8.1).
const AMPLIFICATION: u64 = 3;
/// A path that was heard so recently may carry acknowledgements, whatever its round-trip time.
const FRESH_FOR: Duration = Duration::from_millis(50);

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

    /// How fast packets may leave.
    pub(crate) fn paced_rate(&self) -> Rate {
        self.controller.pacing_rate()
    }

    /// What the path carries: as fast as packets are paced, but no more than the window in a
    /// round trip. On a very short link pacing alone may allow many times what the link takes.
    pub(crate) fn rate(&self) -> Rate {
        self.paced_rate()
            .min(Rate::of(self.cwnd(), self.rtt.smoothed()))
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
        let paced = self.paced_rate();
        if self.policies.allowed(paced) < paced {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SocketId;
    use tabane_base::Seed;

    /// A path whose packets may leave far faster than its window comes back: what the scheduler
    /// counts upon is the window's rate. It left the other link idle once.
    #[test]
    fn a_path_carries_no_more_than_its_window_in_a_round_trip() {
        let now = Instant::from_millis(1_000);
        let remote = "192.0.2.1:4510".parse().expect("an address");
        let tuple = FourTuple {
            socket: SocketId(0),
            local_ip: None,
            remote,
        };
        let rng = Seed(7).rng("controller");
        let mut path = Path::new(now, PathId(0), tuple, Kind::Tabane, 1_472, rng);
        let round_trip = Duration::from_millis(50);
        path.activate(now, Some(round_trip));
        let by_window = Rate::of(path.cwnd(), round_trip);
        assert!(path.paced_rate() > by_window.scaled(10.0));
        assert_eq!(path.rate(), by_window);
    }
}
