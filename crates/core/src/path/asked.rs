//! What a session asks and tells of a path beside packets: how good it is, what it owes the other
//! end, what was decided about it.
//!
//! Parts of a path are shown to be read; what changes them says what has happened.

use tabane_base::{Bytes, Instant};

use super::{Address, Path, Totals};
use crate::id::{FourTuple, PathId};
use crate::policy::{PathPolicy, PathWish, Policies};
use crate::recovery::{Recovery, SentPacket};
use crate::rtt::RttEstimator;
use crate::wire::Frame;

impl Path {
    pub(crate) const fn id(&self) -> PathId {
        self.id
    }

    pub(crate) const fn tuple(&self) -> FourTuple {
        self.address.tuple()
    }

    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) const fn address_mut(&mut self) -> &mut Address {
        &mut self.address
    }

    /// By acknowledgements, which return by whatever path.
    pub(crate) const fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    pub(crate) const fn recovery(&self) -> &Recovery {
        &self.recovery
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

    /// See [`Recovery::unrepeated_mut`](crate::recovery::Recovery::unrepeated_mut).
    pub(crate) fn unrepeated_mut(&mut self) -> (Bytes, impl Iterator<Item = &mut SentPacket>) {
        self.recovery.unrepeated_mut()
    }

    /// Nanoseconds that a packet takes there, after an instant of the peer's clock that is the same
    /// for all paths.
    pub(crate) fn forward_delay(&self) -> Option<i64> {
        self.forward.relative()
    }

    /// So much of what it carries went once before.
    pub(crate) fn on_reinjected(&mut self, size: Bytes) {
        self.totals.reinjected += size;
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

    // Sizes.

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
