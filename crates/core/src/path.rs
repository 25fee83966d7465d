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
mod asked;
mod measuring;
mod paths;
mod round_trip;
mod sending;
mod silence;
mod validation;

use tabane_base::{Bytes, Duration, Instant, Seed};

use crate::close::PathDownReason;
use crate::congestion::{Controller, Kind};
use crate::crypto::PathPhase;
use crate::delivery::DeliveryEstimator;
use crate::forward_delay::ForwardDelay;
use crate::id::{FourTuple, PacketNumber, PathId};
use crate::mtu::{BASE_SIZE, MtuDiscovery};
use crate::pacer::Pacer;
use crate::policy::Policies;
use crate::probe::Prober;
use crate::reading::Readings;
use crate::received::Received;
use crate::recovery::{Recovery, Settled};
use crate::rest::Rest;
use crate::rtt::{INITIAL_RTT, RttEstimator};
use crate::snapshot::{PathSnapshot, PathStatus, TraceMetrics};
pub(crate) use paths::Paths;
pub(crate) use round_trip::QUESTION_SIZE;
use round_trip::RoundTrip;
use silence::Excuse;

/// What may be sent to an address that has not proved itself, per byte from it (RFC 9000 §8.1).
const AMPLIFICATION: u64 = 3;
/// A path that was heard so recently may carry acknowledgements, whatever its round-trip time.
const FRESH_FOR: Duration = Duration::from_millis(50);

/// IPv4 and UDP headers of a packet; IPv6 has 20 bytes more.
const IP_UDP_HEADERS: u64 = 28;

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

/// What answers a challenge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) data: [u8; 8],
    pub(crate) to: FourTuple,
    /// The challenge asked for packets of full size too.
    pub(crate) is_full: bool,
}

/// An address being asked to prove that it receives what we send there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Challenge {
    pub(crate) tuple: FourTuple,
    pub(crate) data: [u8; 8],
    due_at: Instant,
    sent_at: Instant,
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
    /// Thrown away for want of memory.
    pub(crate) shed_packets: u64,
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
    /// One of the clocks has leapt: one-way times are no longer comparable with earlier ones.
    pub(crate) clock_leapt: bool,
}

/// One path.
pub(crate) struct Path {
    id: PathId,
    tuple: FourTuple,
    state: State,
    /// When the path first carried data.
    active_since: Instant,
    recovery: Recovery,
    received: Received,
    /// By acknowledgements, which return by whatever path.
    rtt: RttEstimator,
    round_trip: RoundTrip,
    delivery: DeliveryEstimator,
    controller: Controller,
    pacer: Pacer,
    mtu: MtuDiscovery,
    forward: ForwardDelay,
    phase: PathPhase,
    challenge: Option<Challenge>,
    /// An answer owed.
    response: Option<Response>,
    /// Whether `tuple` proved that it receives what we send.
    validated: bool,
    unvalidated_credit: Bytes,
    /// What the byte stream beneath takes; no limit where there is none.
    stream_room: Bytes,
    /// Probe packets that a timeout asks for.
    probes_due: u8,
    keep_alive_due: bool,
    frequency_due: bool,
    policies: Policies,
    prober: Prober,
    readings: Readings,
    told_frequency: u64,
    rest: Rest,
    /// When it last carried a datagram.
    carried_datagram_at: Option<Instant>,
    last_sent_at: Instant,
    last_received_at: Instant,
    last_eliciting_at: Instant,
    /// When this path next acknowledges its own packets beside another that does.
    own_ack_at: Instant,
    peer_ack_delay: Duration,
    excuse: Excuse,
    /// The path was opened by then, after its address had been asked several times.
    unanswered_until: Instant,
    /// The newest packet that counted as lost.
    latest_lost: Option<PacketNumber>,
    totals: Totals,
    settled: Vec<Settled>,
}

impl Path {
    pub(crate) fn new(
        now: Instant,
        id: PathId,
        tuple: FourTuple,
        controller: Kind,
        max_udp_payload: u16,
        seed: Seed,
    ) -> Self {
        let packet = Bytes::new(BASE_SIZE.into());
        let rng = seed.rng("controller");
        let is_ordered = tuple.socket.is_ordered();
        let controller = match is_ordered {
            true => Controller::ordered(packet, now, rng),
            false => Controller::new(controller, packet, now, rng),
        };
        let headers = if tuple.remote.is_ipv6() { 20 } else { 0 };
        Self {
            id,
            tuple,
            state: State::Opening { reported: false },
            active_since: now,
            recovery: Recovery::new(),
            received: Received::new(),
            rtt: RttEstimator::new(INITIAL_RTT),
            round_trip: RoundTrip::new(),
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
            stream_room: Bytes::MAX,
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
            own_ack_at: now,
            peer_ack_delay: crate::config::MAX_ACK_DELAY,
            excuse: Excuse::default(),
            unanswered_until: Instant::default(),
            latest_lost: None,
            totals: Totals::default(),
            settled: Vec::new(),
        }
    }

    /// The handshake has shown that the address answers.
    pub(crate) fn activate(&mut self, now: Instant, rtt: Option<Duration>) {
        self.validated = true;
        self.state = State::Active;
        self.active_since = now;
        if let Some(rtt) = rtt {
            self.rtt.update(now, rtt, Duration::ZERO);
            self.round_trip.on_sample(now, rtt);
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
        self.on_sign_of_life(now);
        if !self.validated && tuple == self.tuple {
            self.unvalidated_credit += Bytes::new(size as u64 * AMPLIFICATION);
        }
    }

    /// Of what the peer has sent here, up to the newest that came.
    fn missing_packets(&self) -> u64 {
        let told = self.received.largest().map_or(0, |pn| pn.next().0);
        told.saturating_sub(self.totals.received_packets + self.totals.shed_packets)
    }

    /// Forgets what was measured.
    fn restart(&mut self, now: Instant) {
        self.controller.on_path_reset(now);
        self.rtt.reset();
        self.round_trip.reset();
        self.forward.reset();
        self.mtu.reset();
        self.prober.reset(now);
        self.on_packet_size();
        self.pace(now);
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

    /// Packets that were lost, but for those that arrived after all.
    pub(crate) const fn lost_for_good(&self) -> u64 {
        let Totals {
            lost_packets,
            spurious_losses,
            ..
        } = self.totals;
        lost_packets.saturating_sub(spurious_losses)
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
            round_trip: self.round_trip.known(),
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
            missing_packets: self.missing_packets(),
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
