//! What a flow is known by.

use std::net::SocketAddr;

use crate::Side;
use crate::packet::Packet;

/// The two ends of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The end behind the radio link.
    pub mobile: SocketAddr,
    /// The other.
    pub server: SocketAddr,
}

impl Key {
    /// Of a packet that came `from` there.
    pub(crate) fn of(packet: &Packet<'_>, from: Side) -> Self {
        let (source, destination) = (packet.source(), packet.destination());
        let (mobile, server) = match from {
            Side::Radio => (source, destination),
            Side::Wired => (destination, source),
        };
        Self { mobile, server }
    }
}
