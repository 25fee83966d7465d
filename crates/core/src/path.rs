//! One path of a session: its address, its state, and everything that is measured on it.
//!
//! Owns whether the path may be used, and joins recovery, round-trip time, delivery rate,
//! congestion control and pacing, which do not know each other. What travels on the path is not
//! its business.

mod acks;
mod answers;
mod asked;
mod life;
mod measuring;
mod paths;
mod retired;
mod sending;
mod validation;

use tabane_base::{Bytes, Duration, Instant, Seed};

use crate::close::PathDownReason;
use crate::congestion::{Controller, Kind};
use crate::delivery::DeliveryEstimator;
use crate::forward_delay::ForwardDelay;
use crate::id::{FourTuple, PacketNumber, PathId};
use crate::mtu::{BASE_SIZE, MtuDiscovery};
use crate::pacer::Pacer;
use crate::policy::Policies;
use crate::recovery::{Recovery, Settled};
use crate::rtt::{INITIAL_RTT, RttEstimator};
use crate::snapshot::{PathSnapshot, PathStatus, TraceMetrics};
use acks::Acks;
use life::Life;
pub(crate) use life::State;
use measuring::Measuring;
pub(crate) use measuring::QUESTION_SIZE;
pub(crate) use paths::Paths;
use validation::Address;

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
    /// The newest packet that counted as lost.
    latest_lost: Option<PacketNumber>,
}

impl Totals {
    /// A packet of `size` bytes counts as lost. `true` where not the one before it did so last.
    fn on_lost(&mut self, pn: PacketNumber, size: Bytes) -> bool {
        self.lost += size;
        self.lost_packets += 1;
        let before = self.latest_lost.replace(pn);
        before.map(PacketNumber::next) != Some(pn)
    }

    /// Packets that were lost, but for those that arrived after all.
    pub(crate) const fn lost_for_good(&self) -> u64 {
        self.lost_packets.saturating_sub(self.spurious_losses)
    }
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
    address: Address,
    life: Life,
    recovery: Recovery,
    acks: Acks,
    /// By acknowledgements, which return by whatever path.
    rtt: RttEstimator,
    forward: ForwardDelay,
    delivery: DeliveryEstimator,
    controller: Controller,
    pacer: Pacer,
    mtu: MtuDiscovery,
    policies: Policies,
    measuring: Measuring,
    totals: Totals,
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
            address: Address::new(tuple),
            life: Life::new(now),
            recovery: Recovery::new(now),
            acks: Acks::new(now),
            rtt: RttEstimator::new(INITIAL_RTT),
            forward: ForwardDelay::default(),
            delivery: DeliveryEstimator::new(now),
            pacer: Pacer::new(now, controller.pacing_rate(), packet)
                .in_pairs(controller.is_sent_in_pairs()),
            controller,
            mtu: MtuDiscovery::new(max_udp_payload - headers),
            policies: Policies::default(),
            measuring: Measuring::new(now, headers),
            totals: Totals::default(),
        }
    }

    /// The handshake has shown that the address answers.
    pub(crate) fn activate(&mut self, now: Instant, rtt: Option<Duration>) {
        self.address.validate();
        self.life.begin(now);
        if let Some(rtt) = rtt {
            self.rtt.update(now, rtt, Duration::ZERO);
            self.measuring.on_sample(now, rtt);
        }
    }

    /// Bytes a packet on this path may have.
    pub(crate) const fn packet_size(&self) -> usize {
        self.mtu.current() as usize
    }

    // What comes in.

    /// An authentic packet of `size` bytes came from `tuple`.
    pub(crate) fn on_received(&mut self, now: Instant, size: usize, tuple: FourTuple) {
        self.life.on_received(now);
        self.totals.received += Bytes::from(size);
        self.totals.received_packets += 1;
        self.on_sign_of_life(now);
        self.address.on_received(size, tuple);
    }

    /// Of what the peer has sent here, up to the newest that came.
    fn missing_packets(&self) -> u64 {
        let told = self.received().largest().map_or(0, |pn| pn.next().0);
        told.saturating_sub(self.totals.received_packets + self.totals.shed_packets)
    }

    /// Forgets what was measured.
    fn restart(&mut self, now: Instant) {
        self.controller.on_path_reset(now);
        self.rtt.reset();
        self.forward.reset();
        self.mtu.reset();
        self.measuring.reset(now);
        self.on_packet_size();
        self.pace(now);
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
        let (pair_out, pair_in) = self.measuring.pairs();
        PathSnapshot {
            id: self.id,
            tuple: self.tuple(),
            status: match self.state() {
                State::Opening { .. } => PathStatus::Opening,
                State::Active => PathStatus::Active,
                State::Silent { .. } => PathStatus::Silent,
            },
            rtt_smoothed: self.rtt.smoothed(),
            rtt_variation: self.rtt.variation(),
            rtt_min: self.rtt.min(),
            rtt_measured: self.rtt.is_measured(),
            round_trip: self.measuring.round_trip(),
            cwnd: controller.cwnd,
            in_flight: self.recovery.in_flight(),
            pacing_rate: controller.pacing_rate,
            delivery_rate: controller.bandwidth,
            controller_state: controller.state,
            pair_out,
            pair_in,
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
            last_received_at: self.last_received_at(),
        }
    }
}
