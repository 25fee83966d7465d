//! What a link is to a client before anything is sent: a name, a way out, our addresses on it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tabane_base::Translator;
use tabane_core::PathPolicy;
use tabane_linux::Egress;

use super::carrier::{CarrierMemory, CarrierWish};

/// A link to use.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkBind {
    /// What to call it; the interface's name as a rule.
    pub name: String,
    /// By where its packets must leave, whatever the routing table says.
    pub egress: Option<Egress>,
    /// Our IPv4 address on it, unspecified to leave the choice to the kernel.
    pub v4: Option<Ipv4Addr>,
    /// Our IPv6 address on it, unspecified to leave the choice to the kernel.
    pub v6: Option<Ipv6Addr>,
    /// What leads to IPv4 where it has no address of that family (NAT64).
    pub translators: Vec<Translator>,
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
        Self::by_way_out(name, Egress::interface(name), v4, v6)
    }

    /// The link `name`, which leaves by `egress`.
    #[must_use]
    pub fn by_way_out(
        name: &str,
        egress: Egress,
        v4: Option<Ipv4Addr>,
        v6: Option<Ipv6Addr>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            egress: Some(egress),
            v4,
            v6,
            ..Self::unbound()
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
            egress: None,
            v4: Some(Ipv4Addr::UNSPECIFIED),
            v6: Some(Ipv6Addr::UNSPECIFIED),
            translators: Vec::new(),
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

    /// What its sockets are marked with, where the others' mark is `own`.
    pub(super) fn mark(&self, own: Option<u32>) -> Option<u32> {
        let egress = self.egress.as_ref();
        egress.and_then(|egress| egress.mark).or(own)
    }

    /// How `remote` is reached: the addresses to send to, which a translator may have to be asked
    /// for, each with ours.
    pub(super) fn ways_to(&self, remote: SocketAddr) -> Vec<(SocketAddr, SocketAddr)> {
        let v4 = self.v4.map(|ip| SocketAddr::new(ip.into(), 0));
        let v6 = self.v6.map(|ip| SocketAddr::new(ip.into(), 0));
        match (remote, v4, v6) {
            (SocketAddr::V4(_), Some(local), _) | (SocketAddr::V6(_), _, Some(local)) => {
                vec![(remote, local)]
            }
            (SocketAddr::V4(to), None, Some(local)) => {
                let translators = self.translators.iter();
                let led = translators.filter_map(|it| it.lead_to(*to.ip()));
                led.map(|ip| (SocketAddr::new(ip.into(), to.port()), local))
                    .collect()
            }
            (SocketAddr::V4(_), None, None) | (SocketAddr::V6(_), _, None) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_relay_is_reached_by_translators_where_there_is_no_ipv4() {
        let v6 = Some("2001:db8::1".parse().unwrap());
        let translators: Vec<Translator> = ["64:ff9b::", "2001:db8:64::"]
            .map(|prefix| Translator::advertised(prefix.parse().unwrap(), 96).unwrap())
            .to_vec();
        let bind = |v4| LinkBind {
            translators: translators.clone(),
            ..LinkBind::interface("wlan0", v4, v6)
        };
        let to = |bind: &LinkBind, text: &str| -> Vec<String> {
            let ways = bind.ways_to(text.parse().unwrap());
            ways.iter().map(|(to, _)| to.to_string()).collect()
        };
        let led = ["[64:ff9b::cb00:7101]:443", "[2001:db8:64::cb00:7101]:443"];
        assert_eq!(to(&bind(None), "203.0.113.1:443"), led);
        assert_eq!(to(&bind(None), "[2001:db8::2]:443"), ["[2001:db8::2]:443"]);
        assert!(to(&bind(None), "10.0.0.1:443").is_empty());
        let both = bind(Some(Ipv4Addr::new(192, 0, 2, 1)));
        assert_eq!(to(&both, "203.0.113.1:443"), ["203.0.113.1:443"]);
    }
}
