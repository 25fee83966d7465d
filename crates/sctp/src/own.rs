//! An association that we began, as its packets show it.
//!
//! Owns what is known of it beside what the stack knows: which paths it has, what the peer listed,
//! and the accounts kept of every packet, both ways.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tabane_base::Duration;

use crate::brake::Brakes;
use crate::ffi::SctpAssoc;
use crate::packet;
use crate::path::{LinkId, PathId, PathTuple, SLOTS};
use crate::pulse::Pulses;
use crate::rescue::{Rescue, Sample};
use crate::told::Told;

/// See the module.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) association: SctpAssoc,
    /// The peer's SCTP port.
    pub(crate) port: u16,
    pub(crate) paths: [PathId; SLOTS],
    /// The tag that we gave it, which packets from the peer bear, and the peer's.
    pub(crate) tag: Option<u32>,
    pub(crate) peer_tag: Option<u32>,
    /// What the peer listed when the association was set up; `None` before that.
    pub(crate) listed: Option<Vec<IpAddr>>,
    /// INIT was sent once, and the cookie.
    pub(crate) has_asked: bool,
    pub(crate) has_echoed: bool,
    pub(crate) rescue: Rescue,
    pub(crate) told: Told,
    pub(crate) pulses: Pulses,
    pub(crate) brakes: Brakes,
    /// Paths that the stack is to leave alone from their next timeout on; at first all of them.
    pub(crate) left_alone: BTreeSet<PathId>,
    /// When something came from the peer that is no stranger's ABORT.
    pub(crate) heard_at: Duration,
    /// Numbers of packets where the stack is to hear of congestion.
    pub(crate) congested: Vec<u32>,
}

impl Own {
    pub(crate) fn new(
        now: Duration,
        association: SctpAssoc,
        port: u16,
        paths: [PathId; SLOTS],
    ) -> Self {
        Self {
            heard_at: now,
            association,
            port,
            paths,
            tag: None,
            peer_tag: None,
            listed: None,
            has_asked: false,
            has_echoed: false,
            rescue: Rescue::default(),
            told: Told::default(),
            pulses: Pulses::default(),
            brakes: Brakes::default(),
            left_alone: paths.into(),
            congested: Vec::new(),
        }
    }

    /// A packet is to leave: whose tags it tells.
    pub(crate) fn learn_tags(&mut self, packet: &[u8]) {
        let asked = packet::asked_tag(packet).or_else(|| packet::answered_tag(packet));
        self.tag = asked.or(self.tag);
        if packet::asked_tag(packet).is_none() {
            self.peer_tag = Some(packet::tag(packet));
        }
    }

    /// Whether a packet is of this association (RFC 9260 §8.5).
    pub(crate) fn is_of_it(&self, packet: &[u8]) -> bool {
        let expected = match packet::has_tag_given_back(packet) {
            true => [self.tag, self.peer_tag],
            false => [self.tag, None],
        };
        expected.contains(&Some(packet::tag(packet)))
    }

    /// A packet is to leave by a path. `false`: it must not.
    pub(crate) fn on_transmit(
        &mut self,
        now: Duration,
        path: PathId,
        way: PathTuple,
        packet: &[u8],
    ) -> bool {
        if !self.told.lets_pass(way.link, way.remote.is_ipv6(), packet) {
            return false;
        }
        self.told.on_transmit(packet);
        self.pulses.on_transmit(now, path, packet);
        self.rescue.on_transmit(now, path, packet);
        true
    }

    /// A packet has come by a path; gives the links that may be used from now on.
    pub(crate) fn on_packet(&mut self, now: Duration, path: PathId, packet: &[u8]) -> Vec<LinkId> {
        if !packet::is_disowning(packet) {
            self.heard_at = now;
        }
        self.rescue.on_packet(now, packet);
        self.note_arrivals(now);
        self.pulses.on_packet(path, packet);
        if packet::is_probe_answer(packet) {
            let waits = self.rescue.latest(path).is_some();
            self.pulses.on_answer(now, path, waits);
        }
        self.told.on_packet(packet)
    }

    /// A path leads another way, of which nothing is known.
    pub(crate) fn forget(&mut self, path: PathId) {
        self.pulses.forget(path);
        self.brakes.forget(path);
    }

    /// What has arrived lately, for those who watch that.
    pub(crate) fn note_arrivals(&mut self, now: Duration) {
        for path in self.rescue.arrivals() {
            let waits = self.rescue.latest(path).is_some();
            self.pulses.on_answer(now, path, waits);
        }
        for Sample { path, rtt } in self.rescue.samples() {
            if self.brakes.on_sample(path, rtt) {
                self.congested.extend(self.rescue.latest(path));
            }
        }
    }
}
