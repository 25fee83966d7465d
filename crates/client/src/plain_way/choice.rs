//! The choice of one plain connection's link: pure, of what is known at the moment.
//!
//! Owns which link takes what goes without a session, who pays for it, and which links may carry it
//! side by side. What is known of links is the table's; asking for it is `plain_way`'s.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tabane_base::{Prefix, Translator};
use tabane_core::PathPolicy;
use tabane_linux::{
    Egress,
    interfaces::{Interface, Kind},
};

use crate::plain::PlainWay;

/// No link that could carry it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("neither the relay nor a link that the policy allows leads there")]
pub(crate) struct NoPlainWay;

/// A link that may carry a connection.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) egress: Egress,
    pub(super) v4: Option<Ipv4Addr>,
    pub(super) v6: Option<Ipv6Addr>,
    /// What leads to IPv4, where it has none.
    pub(super) translators: Vec<Translator>,
    pub(super) policy: PathPolicy,
}

/// What the choice is made of.
pub(super) struct Choice<'a> {
    pub(super) dest: IpAddr,
    /// Where the routing table would send it from; `None` where it leads nowhere.
    pub(super) source: Option<IpAddr>,
    pub(super) interfaces: &'a [Interface],
    pub(super) candidates: Vec<Candidate>,
}

impl Candidate {
    /// Ours towards `dest`.
    pub(super) fn address_for(&self, dest: IpAddr) -> Option<IpAddr> {
        match dest {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// Nothing limits it that only a session keeps, and no mark leads to its gateway: the kernel
    /// gives all of a connection the same.
    fn is_free(&self) -> bool {
        let PathPolicy {
            weight,
            send_cap,
            receive_cap,
            ..
        } = self.policy;
        self.egress.mark.is_none() && weight >= 1.0 && send_cap.is_none() && receive_cap.is_none()
    }

    fn way(&self, dest: IpAddr) -> PlainWay {
        match self.translator(dest) {
            Some(translator) => PlainWay::Translated(self.egress.clone(), translator),
            None => PlainWay::Over(self.egress.clone()),
        }
    }

    /// What leads to `dest`, where nothing else does.
    fn translator(&self, dest: IpAddr) -> Option<Translator> {
        let IpAddr::V4(v4) = dest else { return None };
        let mut translators = self.translators.iter().filter(|_| self.v4.is_none());
        translators.find(|it| it.lead_to(v4).is_some()).copied()
    }
}

/// Those that carry a connection to `dest` side by side: the best, and what is as good. The kernel
/// fills each as far as it goes, so none that has a share or a cap is among them.
pub(super) fn together(candidates: &[Candidate], dest: IpAddr) -> Vec<&Candidate> {
    let fits = |it: &&Candidate| it.address_for(dest).is_some();
    let best = candidates.iter().filter(fits).map(|it| cost(&it)).min();
    let all = candidates.iter().filter(fits);
    all.filter(|it| it.is_free() && Some(cost(it)) == best)
        .collect()
}

impl Choice<'_> {
    /// `tolerates` says of an interface that is no candidate whether it may carry it all the same:
    /// a VPN, or a network that leads to no internet.
    pub(super) fn make(
        &self,
        tolerates: impl Fn(&Interface) -> bool,
    ) -> Result<PlainWay, NoPlainWay> {
        let fits = |candidate: &&Candidate| {
            let has_address = candidate.address_for(self.dest).is_some();
            has_address || candidate.translator(self.dest).is_some()
        };
        let best = self.candidates.iter().filter(fits).min_by_key(cost);
        let Some(routed) = self.routed() else {
            let best = best.filter(|_| self.source.is_none());
            return Ok(best.map_or(PlainWay::Routed, |best| best.way(self.dest)));
        };
        let is_ours = self.interfaces.iter().any(|it| has_address(it, self.dest));
        if is_ours || routed.kind == Kind::Loopback {
            return Ok(PlainWay::Routed);
        }
        let mut candidates = self.candidates.iter();
        match (candidates.find(|it| it.name == routed.name), best) {
            // Some systems leave the route of a pulled cable where it is.
            (_, Some(best)) if !routed.carrier && !self.is_near(routed) => Ok(best.way(self.dest)),
            // Neighbours are found on their own wire only.
            (Some(own), Some(best)) if cost(&best) < cost(&own) && !self.is_near(routed) => {
                Ok(best.way(self.dest))
            }
            (Some(_), _) => Ok(PlainWay::Routed),
            (None, _) if tolerates(routed) => Ok(PlainWay::Routed),
            (None, Some(best)) => Ok(best.way(self.dest)),
            (None, None) => Err(NoPlainWay),
        }
    }

    /// The link that has to pay for what takes this way; `None` for what stays on a near wire.
    pub(super) fn billed<'a>(&'a self, way: &'a PlainWay) -> Option<&'a str> {
        let link = match way {
            PlainWay::Over(egress) | PlainWay::Translated(egress, _) => {
                let mut candidates = self.candidates.iter();
                return candidates
                    .find(|it| it.egress == *egress)
                    .map(|it| &*it.name);
            }
            PlainWay::Routed => self.routed()?,
        };
        let is_ours = self.interfaces.iter().any(|it| has_address(it, self.dest));
        (link.kind != Kind::Loopback && !is_ours && !self.is_near(link)).then_some(&link.name)
    }

    /// The link that the routing table has for it.
    fn routed(&self) -> Option<&Interface> {
        let source = self.source?;
        self.interfaces.iter().find(|it| has_address(it, source))
    }

    fn is_near(&self, interface: &Interface) -> bool {
        let mut addresses = interface.addresses.iter();
        addresses.any(|own| {
            let wire = Prefix {
                address: own.address,
                bits: own.prefix_bits,
            };
            wire.contains(self.dest)
        })
    }
}

/// What one would rather not use, in the order in which sessions use links.
fn cost(candidate: &&Candidate) -> (bool, u8, bool) {
    let policy = &candidate.policy;
    (policy.backup, policy.priority, policy.metered)
}

fn has_address(interface: &Interface, address: IpAddr) -> bool {
    interface.addresses.iter().any(|it| it.address == address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_linux::interfaces::{InterfaceAddress, Scope, State};

    fn interface(name: &str, address: &str, kind: Kind) -> Interface {
        Interface {
            index: 1,
            name: name.to_owned(),
            kind,
            up: true,
            state: State::Up,
            carrier: true,
            mtu: 1500,
            controller: None,
            addresses: vec![InterfaceAddress {
                address: address.parse().unwrap(),
                prefix_bits: 24,
                scope: Scope::Global,
                ready: true,
            }],
            default_routes: Vec::new(),
            gateways: Vec::new(),
            behind: None,
            advertised: tabane_linux::advertised::Advertised::default(),
        }
    }

    fn candidate(name: &str, policy: PathPolicy) -> Candidate {
        Candidate {
            name: name.to_owned(),
            egress: Egress::interface(name),
            v4: Some(Ipv4Addr::UNSPECIFIED),
            v6: None,
            translators: Vec::new(),
            policy,
        }
    }

    /// Wi-Fi and phone, the table preferring the phone.
    fn choose(dest: &str, candidates: Vec<Candidate>, tolerates: bool) -> Option<PlainWay> {
        choose_with(true, dest, candidates, tolerates)
    }

    fn choose_with(
        phone_carrier: bool,
        dest: &str,
        candidates: Vec<Candidate>,
        tolerates: bool,
    ) -> Option<PlainWay> {
        let mut interfaces = [
            interface("lo", "127.0.0.1", Kind::Loopback),
            interface("wlan0", "192.168.1.2", Kind::Wifi),
            interface("usb0", "192.168.42.2", Kind::Ethernet),
        ];
        interfaces[2].carrier = phone_carrier;
        let choice = Choice {
            dest: dest.parse().unwrap(),
            source: "192.168.42.2".parse().ok(),
            interfaces: &interfaces,
            candidates,
        };
        choice.make(|_| tolerates).ok()
    }

    fn over(name: &str) -> Option<PlainWay> {
        Some(PlainWay::Over(Egress::interface(name)))
    }

    #[test]
    fn the_routing_table_s_link_is_taken_where_it_may_be() {
        let any = || ["usb0", "wlan0"].map(|name| candidate(name, PathPolicy::default()));
        assert_eq!(
            choose("203.0.113.2", any().to_vec(), false),
            Some(PlainWay::Routed)
        );
        let wifi = vec![candidate("wlan0", PathPolicy::default())];
        assert_eq!(choose("203.0.113.2", wifi.clone(), false), over("wlan0"));
        // No link, but nothing forbids it: a VPN, say.
        assert_eq!(choose("203.0.113.2", wifi, true), Some(PlainWay::Routed));
        assert_eq!(choose("203.0.113.2", Vec::new(), false), None);
        // Nothing leaves the machine.
        assert_eq!(
            choose("192.168.1.2", Vec::new(), false),
            Some(PlainWay::Routed)
        );
    }

    #[test]
    fn what_costs_by_volume_is_spared_but_for_its_own_wire() {
        let metered = PathPolicy {
            metered: true,
            priority: 1,
            ..PathPolicy::default()
        };
        let both = vec![
            candidate("usb0", metered),
            candidate("wlan0", PathPolicy::default()),
        ];
        assert_eq!(choose("203.0.113.2", both.clone(), false), over("wlan0"));
        assert_eq!(choose("192.168.42.1", both, false), Some(PlainWay::Routed));
        let lonely = vec![candidate("usb0", metered)];
        assert_eq!(choose("203.0.113.2", lonely, false), Some(PlainWay::Routed));
    }

    #[test]
    fn a_pulled_cable_is_left_although_its_route_stands() {
        let wifi = vec![candidate("wlan0", PathPolicy::default())];
        let pulled = |dest, candidates| choose_with(false, dest, candidates, true);
        assert_eq!(pulled("203.0.113.2", wifi.clone()), over("wlan0"));
        // What is told then is told by the system.
        assert_eq!(pulled("203.0.113.2", Vec::new()), Some(PlainWay::Routed));
        assert_eq!(pulled("192.168.42.1", wifi), Some(PlainWay::Routed));
    }

    #[test]
    fn links_carry_side_by_side_what_none_of_them_is_dearer_for() {
        let with = |name, policy| candidate(name, policy);
        let any = PathPolicy::default;
        let metered = PathPolicy {
            metered: true,
            ..any()
        };
        let half = PathPolicy {
            weight: 0.5,
            ..any()
        };
        let capped = PathPolicy {
            receive_cap: Some(tabane_base::Rate::from_mbps(1)),
            ..any()
        };
        let names = |candidates: &[Candidate], dest: &str| -> Vec<String> {
            let all = together(candidates, dest.parse().unwrap()).into_iter();
            all.map(|it| it.name.clone()).collect()
        };
        let all = [
            with("wlan0", any()),
            with("eth0", any()),
            with("usb0", metered),
            with("wwan0", half),
            with("wwan1", capped),
        ];
        assert_eq!(names(&all, "203.0.113.2"), ["wlan0", "eth0"]);
        assert_eq!(names(&all[2..3], "203.0.113.2"), ["usb0"]);
        assert!(names(&all, "2001:db8::1").is_empty());
    }

    #[test]
    fn a_link_without_the_family_is_no_way() {
        let wifi = vec![candidate("wlan0", PathPolicy::default())];
        assert_eq!(choose("2001:db8::1", wifi, false), None);
    }
}
