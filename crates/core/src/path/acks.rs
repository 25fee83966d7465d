//! Acknowledgements, both ways: of what came by the path, and how often they are wanted of what
//! leaves by it.
//!
//! Owns which packets came, and when that is said. What the other end's acknowledgements tell of
//! the path is for `answers` to say.

use tabane_base::{Duration, Instant};

use super::{Path, State};
use crate::config::MAX_ACK_DELAY;
use crate::crypto::PathPhase;
use crate::id::PacketNumber;
use crate::received::Received;

/// What another path acknowledges is repeated no more often than this.
const OWN_ACK_INTERVAL: Duration = Duration::from_millis(20);
/// Packets acknowledged together are at most this part of the window, so that the window keeps
/// moving, and at most [`ACK_PACKETS_MAX`].
const ACKS_PER_WINDOW: u64 = 8;
const ACK_PACKETS_MAX: u64 = 32;

/// What of acknowledgements is known.
#[derive(Debug)]
pub(super) struct Acks {
    received: Received,
    /// When the path next acknowledges its own packets beside another that does.
    own_at: Instant,
    /// The peer keeps its own no longer than this.
    peer_delay: Duration,
    /// So many packets the peer was asked to acknowledge together.
    told: u64,
    tell_due: bool,
}

impl Acks {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            received: Received::new(),
            own_at: now,
            peer_delay: MAX_ACK_DELAY,
            told: 0,
            tell_due: false,
        }
    }

    pub(super) const fn peer_delay(&self) -> Duration {
        self.peer_delay
    }

    /// What the acknowledgement that is due has beside it should not wait.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.received.hasten(now);
    }
}

impl Path {
    pub(crate) const fn received(&self) -> &Received {
        &self.acks.received
    }

    pub(crate) const fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.acks.peer_delay = delay;
    }

    pub(crate) const fn set_key_phase(&mut self, phase: PathPhase) {
        self.acks.received.set_key_phase(phase);
    }

    /// What is in a packet was read: it may be acknowledged.
    pub(crate) fn on_read(&mut self, now: Instant, pn: PacketNumber, ack_eliciting: bool) {
        self.acks.received.on_received(now, pn, ack_eliciting);
    }

    /// A packet was thrown away for want of it; the peer is told of one whose number is given.
    pub(crate) fn on_shed(&mut self, now: Instant, told: Option<PacketNumber>) {
        if let Some(pn) = told {
            self.acks.received.on_shed(now, pn);
        }
        self.totals.shed_packets += 1;
    }

    pub(crate) fn ack_due_at(&self) -> Option<Instant> {
        self.acks.received.due_at()
    }

    pub(crate) fn on_ping(&mut self, now: Instant) {
        self.acks.received.on_ping(now);
    }

    pub(crate) fn emit_ack(&mut self, now: Instant, out: &mut Vec<u8>) {
        self.acks.received.emit(now, self.id, out);
    }

    /// Whether what was acknowledged just now is acknowledged by the path itself, too: once in a
    /// round trip.
    pub(crate) fn takes_own_ack(&mut self, now: Instant) -> bool {
        let is_news = self.acks.received.emitted_at() == Some(now);
        let is_due = is_news && self.acks.own_at <= now;
        if is_due {
            self.acks.own_at = now + self.rtt.smoothed().max(OWN_ACK_INTERVAL);
        }
        is_due && !matches!(self.state(), State::Opening { .. })
    }

    /// How often the peer wants acknowledgements.
    pub(crate) fn on_frequency(&mut self, packets: u64, delay: Duration) {
        self.acks.received.set_frequency(packets, delay);
    }

    /// Whether the peer is to be told how often we want them.
    pub(crate) const fn owes_frequency(&self) -> bool {
        self.acks.tell_due
    }

    /// How many packets the peer should acknowledge together; `None` while it knows.
    pub(super) fn review_frequency(&mut self) {
        let wanted = self.ack_packets();
        let told = self.acks.told;
        self.acks.tell_due |= wanted >= 2 * told || wanted * 2 <= told;
    }

    fn ack_packets(&self) -> u64 {
        let packets = self.controller.cwnd().get() / self.packet_size() as u64;
        (packets / ACKS_PER_WINDOW).clamp(2, ACK_PACKETS_MAX)
    }

    /// The frequency to ask for; considered told.
    pub(crate) fn take_frequency(&mut self) -> (u64, Duration) {
        self.acks.tell_due = false;
        self.acks.told = self.ack_packets();
        let delay = (self.rtt.min() / 4).max(Duration::from_millis(1));
        (self.acks.told, delay)
    }
}
