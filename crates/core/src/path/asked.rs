//! What a session asks and tells of a path beside packets: how good it is, what it owes the other
//! end, what was decided about it.
//!
//! Parts of a path are shown to be read; what changes them says what has happened.

use tabane_base::{Bytes, Duration, Instant};

use super::{Challenge, Path, Response, State, Totals};
use crate::crypto::PathPhase;
use crate::id::{FourTuple, PacketNumber, PathId};
use crate::policy::{PathPolicy, PathWish, Policies};
use crate::probe::Report;
use crate::received::Received;
use crate::recovery::{Recovery, SentPacket};
use crate::rtt::RttEstimator;
use crate::wire::Frame;

/// What another path acknowledges is repeated no more often than this.
const OWN_ACK_INTERVAL: Duration = Duration::from_millis(20);

impl Path {
    pub(crate) const fn id(&self) -> PathId {
        self.id
    }

    pub(crate) const fn tuple(&self) -> FourTuple {
        self.tuple
    }

    /// By acknowledgements, which return by whatever path.
    pub(crate) const fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    pub(crate) const fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    pub(crate) const fn received(&self) -> &Received {
        &self.received
    }

    pub(crate) const fn policies(&self) -> &Policies {
        &self.policies
    }

    pub(crate) const fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(crate) fn in_flight_mut(&mut self) -> impl Iterator<Item = &mut SentPacket> {
        self.recovery.in_flight_mut()
    }

    /// Nanoseconds that a packet takes there, after an instant of the peer's clock that is the same
    /// for all paths.
    pub(crate) fn forward_delay(&self) -> Option<i64> {
        self.forward.relative()
    }

    /// Since it first carried data.
    pub(crate) fn carries_for(&self, now: Instant) -> Duration {
        now.since(self.active_since)
    }

    pub(crate) const fn carried_datagram_at(&self) -> Option<Instant> {
        self.carried_datagram_at
    }

    pub(crate) const fn on_datagram(&mut self, now: Instant) {
        self.carried_datagram_at = Some(now);
    }

    /// So much of what it carries went once before.
    pub(crate) fn on_reinjected(&mut self, size: Bytes) {
        self.totals.reinjected += size;
    }

    // Keys.

    pub(crate) const fn key_phase(&self) -> PathPhase {
        self.phase
    }

    pub(crate) const fn set_key_phase(&mut self, phase: PathPhase) {
        self.phase = phase;
    }

    // What came.

    /// What is in a packet was read: it may be acknowledged.
    pub(crate) fn on_read(&mut self, now: Instant, pn: PacketNumber, ack_eliciting: bool) {
        self.received.on_received(now, pn, ack_eliciting);
    }

    /// A packet was thrown away for want of it; the peer is told of one whose number is given.
    pub(crate) fn on_shed(&mut self, now: Instant, told: Option<PacketNumber>) {
        if let Some(pn) = told {
            self.received.on_shed(now, pn);
        }
        self.totals.shed_packets += 1;
    }

    /// Whether it is left alone while the peer has too little.
    pub(crate) fn rests(&self, now: Instant) -> bool {
        !self.rest.is_over(now)
    }

    pub(crate) fn begin_rest(&mut self, now: Instant, round_trip: Duration) {
        self.rest.begin(now, round_trip);
    }

    // What is owed to the other end.

    pub(crate) fn ack_due_at(&self) -> Option<Instant> {
        self.received.due_at()
    }

    pub(crate) fn on_ping(&mut self, now: Instant) {
        self.received.on_ping(now);
    }

    pub(crate) fn emit_ack(&mut self, now: Instant, out: &mut Vec<u8>) {
        self.received.emit(now, self.id, out);
    }

    /// Whether what was acknowledged just now is acknowledged by the path itself, too: once in a
    /// round trip.
    pub(crate) fn takes_own_ack(&mut self, now: Instant) -> bool {
        let is_news = self.received.emitted_at() == Some(now);
        let is_due = is_news && self.own_ack_at <= now;
        if is_due {
            self.own_ack_at = now + self.rtt.smoothed().max(OWN_ACK_INTERVAL);
        }
        is_due && !matches!(self.state, State::Opening { .. })
    }

    /// How often the peer wants acknowledgements.
    pub(crate) fn on_frequency(&mut self, packets: u64, delay: Duration) {
        self.received.set_frequency(packets, delay);
    }

    /// Whether the peer is to be told how often we want them.
    pub(crate) const fn owes_frequency(&self) -> bool {
        self.frequency_due
    }

    /// Something is to leave that the other end acknowledges.
    pub(crate) const fn ask_sign_of_life(&mut self) {
        self.keep_alive_due = true;
    }

    pub(crate) const fn take_sign_of_life(&mut self) -> bool {
        std::mem::replace(&mut self.keep_alive_due, false)
    }

    /// Whether a timeout asks for probe packets.
    pub(crate) const fn owes_probes(&self) -> bool {
        self.probes_due > 0
    }

    pub(crate) const fn take_probes(&mut self) -> u8 {
        std::mem::replace(&mut self.probes_due, 0)
    }

    pub(crate) fn take_response(&mut self) -> Option<Response> {
        self.response.take()
    }

    pub(crate) fn challenge_at(&self) -> Option<Instant> {
        self.challenge.map(|challenge| challenge.due_at)
    }

    /// The challenge that is due, which is sent now.
    pub(crate) fn take_challenge(&mut self, now: Instant) -> Option<Challenge> {
        let due = self.challenge.filter(|challenge| challenge.due_at <= now)?;
        self.on_challenge_sent(now);
        Some(due)
    }

    pub(crate) const fn forget_challenge(&mut self) {
        self.challenge = None;
    }

    // Policies.

    pub(crate) fn set_policy(&mut self, now: Instant, policy: PathPolicy) {
        self.policies.set_own(policy);
        self.pace(now);
    }

    /// The peer has said this of the path.
    pub(crate) fn on_policy(&mut self, now: Instant, number: u64, wish: PathWish) {
        self.policies.on_heard(number, wish);
        self.pace(now);
    }

    /// What the peer is to be told, if there is anything to tell.
    pub(crate) fn take_policy(&mut self) -> Option<Frame<'static>> {
        self.policies.due = false;
        self.policies.frame(self.id)
    }

    /// It may not have arrived.
    pub(crate) const fn repeat_policy(&mut self) {
        self.policies.due = true;
    }

    // Measuring.

    pub(crate) fn request_probes(&mut self, trains: u32) {
        self.prober.request(trains);
    }

    pub(crate) fn take_probe_report(&mut self) -> Option<Report> {
        self.prober.take_report()
    }

    /// When larger packets may be tried again.
    pub(crate) const fn mtu_raised_at(&self) -> Option<Instant> {
        self.mtu.raise_at()
    }

    /// The size of a larger packet to try, which is sent now.
    pub(crate) fn take_mtu_probe(&mut self, now: Instant) -> Option<u16> {
        let size = self.mtu.wants_probe(now)?;
        self.mtu.on_probe_sent();
        Some(size)
    }
}
