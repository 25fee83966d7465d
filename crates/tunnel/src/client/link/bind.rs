//! What a link is made of: an interface, addresses of ours on it, and how it may be used.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tabane_core::PathPolicy;

use crate::client::carrier::{CarrierMemory, CarrierWish};

/// A link to use.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkBind {
    /// What to call it; the interface's name as a rule.
    pub name: String,
    /// The interface that its packets must take, whatever the routing table says.
    pub interface: Option<String>,
    /// Our IPv4 address on it, unspecified to leave the choice to the kernel.
    pub v4: Option<Ipv4Addr>,
    /// Our IPv6 address on it, unspecified to leave the choice to the kernel.
    pub v6: Option<Ipv6Addr>,
    /// Where each relay is found over this link, by its place in the list, where that differs from
    /// [`RelayPeer::addrs`](super::RelayPeer::addrs); a relay that is not listed, nowhere.
    pub relay_addrs: Option<Vec<Vec<SocketAddr>>>,
    /// How it may be used, from its first packet on.
    pub policy: PathPolicy,
    /// What may carry its packets.
    pub carrier: CarrierWish,
    /// What its network has taught of that before.
    pub memory: Option<CarrierMemory>,
}

impl LinkBind {
    /// The interface `name` with our addresses on it.
    #[must_use]
    pub fn interface(name: &str, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) -> Self {
        Self {
            name: name.to_owned(),
            interface: Some(name.to_owned()),
            v4,
            v6,
            relay_addrs: None,
            policy: PathPolicy::default(),
            carrier: CarrierWish::default(),
            memory: None,
        }
    }

    /// A way by others, who pass datagrams on to each relay that are sent to these addresses of
    /// theirs; found as the routing table says.
    #[must_use]
    pub fn by_way_of(name: &str, relay_addrs: Vec<Vec<SocketAddr>>) -> Self {
        Self {
            name: name.to_owned(),
            relay_addrs: Some(relay_addrs),
            ..Self::unbound()
        }
    }

    /// Whatever link the routing table chooses.
    #[must_use]
    pub fn unbound() -> Self {
        Self {
            name: "default".to_owned(),
            interface: None,
            v4: Some(Ipv4Addr::UNSPECIFIED),
            v6: Some(Ipv6Addr::UNSPECIFIED),
            relay_addrs: None,
            policy: PathPolicy::default(),
            carrier: CarrierWish::default(),
            memory: None,
        }
    }

    /// The same, used as `policy` says.
    #[must_use]
    pub fn with_policy(self, policy: PathPolicy) -> Self {
        Self { policy, ..self }
    }

    pub(in crate::client) fn local(&self, remote: &SocketAddr) -> Option<SocketAddr> {
        match remote {
            SocketAddr::V4(_) => self.v4.map(|ip| SocketAddr::new(ip.into(), 0)),
            SocketAddr::V6(_) => self.v6.map(|ip| SocketAddr::new(ip.into(), 0)),
        }
    }
}
