//! An association that we began, as its packets show it.
//!
//! Owns what is known of it beside what the stack knows: which paths it has, what the peer listed,
//! and the accounts kept of every packet, both ways.

use std::net::Ipv4Addr;

use tabane_base::Duration;

use crate::ffi::SctpAssoc;
use crate::path::{LinkId, PathId, SLOTS};
use crate::pulse::Pulses;
use crate::rescue::Rescue;
use crate::told::Told;

/// See the module.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) association: SctpAssoc,
    /// The peer's SCTP port.
    pub(crate) port: u16,
    pub(crate) paths: [PathId; SLOTS],
    /// What the peer listed when the association was set up; `None` before that.
    pub(crate) listed: Option<Vec<Ipv4Addr>>,
    /// The cookie was sent once.
    pub(crate) has_echoed: bool,
    pub(crate) rescue: Rescue,
    pub(crate) told: Told,
    pub(crate) pulses: Pulses,
}

impl Own {
    pub(crate) fn new(association: SctpAssoc, port: u16, paths: [PathId; SLOTS]) -> Self {
        Self {
            association,
            port,
            paths,
            listed: None,
            has_echoed: false,
            rescue: Rescue::default(),
            told: Told::default(),
            pulses: Pulses::default(),
        }
    }

    /// A packet is to leave by a path, over a link. `false`: it must not.
    pub(crate) fn on_transmit(
        &mut self,
        now: Duration,
        path: PathId,
        link: LinkId,
        packet: &[u8],
    ) -> bool {
        if !self.told.lets_pass(link, packet) {
            return false;
        }
        self.told.on_transmit(packet);
        self.pulses.on_transmit(now, path, packet);
        self.rescue.on_transmit(now, path, packet);
        true
    }

    /// A packet has come by a path; gives the links that may be used from now on.
    pub(crate) fn on_packet(&mut self, path: PathId, packet: &[u8]) -> Vec<LinkId> {
        self.rescue.on_packet(packet);
        self.pulses.on_packet(path, packet);
        self.told.on_packet(packet)
    }
}
