//! Which interfaces are used as links: the ones named, else every usable one.
//!
//! Pure over the list of interfaces that the kernel gave; says why there is none.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::slice::from_ref;

use anyhow::{Result, bail};
use tabane_core::PathPolicy;
use tabane_fetch::DeviceWay;
use tabane_linux::{
    Egress,
    interfaces::{Interface, Unusable},
};
use tabane_policy::{Carriers, Decision};
use tabane_tunnel::{CarrierKind, CarrierWish, LinkBind, carrier::Proxy};

use crate::link_policy::LinkPolicy;
use tabane_store::UsageError;

/// Links by name.
pub type Links = BTreeMap<String, LinkBind>;

/// The links to begin with; fails, with the reasons, where there is none.
pub fn choose(interfaces: &[Interface], wanted: &[String], policy: &LinkPolicy) -> Result<Links> {
    if let Some(missing) = missing(interfaces, wanted) {
        return Err(UsageError::new(missing).into());
    }
    let links = usable(interfaces, wanted);
    if links.is_empty() {
        let candidates = interfaces
            .iter()
            .filter(|i| wanted.is_empty() || is_named(i, wanted));
        let reasons = candidates.filter_map(|interface| {
            let reason = why_not(interface, !wanted.is_empty())?;
            Some(format!("{} {reason}", interface.name))
        });
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        let would_do = interfaces.iter().find(|it| why_not(it, true).is_none());
        let advice = match would_do {
            Some(it) if wanted.is_empty() => format!("`--link {}` insists", it.name),
            Some(_) | None => "`tabane links` lists all there are, with what is amiss".to_owned(),
        };
        bail!("no interface can be used as a link ({reasons}); {advice}");
    }
    let links = allowed(interfaces, wanted, policy);
    if links.is_empty() {
        bail!(
            "the policy lets no link be used at present: see `tabane policy`; name one with --link \
             to insist"
        );
    }
    Ok(links)
}

/// What of `wanted` is not there, and what is, in words; `None` where all of it is.
pub fn missing(interfaces: &[Interface], wanted: &[String]) -> Option<String> {
    let missing = wanted.iter().filter(|name| is_missing(interfaces, name));
    let missing: Vec<String> = missing.map(|name| format!("'{name}'")).collect();
    let known: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
    (!missing.is_empty()).then(|| {
        let (missing, known) = (missing.join(" or "), known.join(", "));
        format!("there is no interface called {missing}; there are: {known}")
    })
}

/// Whether no interface, or gateway behind one, is called so.
pub(crate) fn is_missing(interfaces: &[Interface], name: &String) -> bool {
    !interfaces.iter().any(|it| is_named(it, from_ref(name)))
}

/// The links that can be used at this moment and may be, as the policy says; maybe none. Who names
/// a link insists on it.
pub fn allowed(interfaces: &[Interface], wanted: &[String], policy: &LinkPolicy) -> Links {
    let insists = PathPolicy::default();
    let allowed = usable(interfaces, wanted)
        .into_iter()
        .filter_map(|(name, bind)| {
            let interface = interfaces.iter().find(|interface| interface.name == name)?;
            let terms = policy.terms(interface);
            let path = terms.path;
            let is_named = is_named(interface, wanted);
            let path = path.or_else(|| is_named.then_some(insists))?;
            let carrier = carrier_wish(&name, &terms.decision);
            Some((
                name,
                LinkBind {
                    carrier,
                    ..bind.with_policy(path)
                },
            ))
        });
    allowed.collect()
}

/// What may carry a link's packets, as the policy says.
fn carrier_wish(link: &str, decision: &Decision) -> CarrierWish {
    let proxy = decision.proxy.as_ref().and_then(|text| {
        let parsed = text.parse::<Proxy>();
        let complain = |error| tracing::warn!("link {link}: the policy's proxy: {error}");
        parsed.map_err(complain).ok()
    });
    let kind = match decision.carrier {
        Carriers::Auto => CarrierKind::Auto,
        Carriers::Udp => CarrierKind::Udp,
        Carriers::Tls => CarrierKind::Tls,
    };
    CarrierWish { kind, proxy }
}

/// Whether the user has named a link; the name of an interface is that of all behind it.
pub fn is_named(interface: &Interface, wanted: &[String]) -> bool {
    let is_it = |name: &String| *name == interface.name || name == interface.interface();
    wanted.iter().any(is_it)
}

/// The links that can be used at this moment; maybe none.
fn usable(interfaces: &[Interface], wanted: &[String]) -> Links {
    let is_wanted = |i: &&Interface| wanted.is_empty() || is_named(i, wanted);
    let chosen = interfaces.iter().filter(is_wanted);
    let chosen = chosen.filter(|interface| why_not(interface, !wanted.is_empty()).is_none());
    chosen
        .map(|interface| (interface.name.clone(), bind(interface)))
        .collect()
}

/// Whether a link must be given up for `fresh`. Not while its addresses are still there: privacy
/// addresses come and go, and each change would cost a path what it has learnt. A family that is
/// new, and an address that is still there but no longer for use, count only where nothing is
/// carried.
pub fn is_outdated(
    bind: &LinkBind,
    fresh: &LinkBind,
    interface: &Interface,
    carries: bool,
) -> bool {
    let remains = |ip: IpAddr| {
        interface
            .addresses
            .iter()
            .any(|address| address.address == ip)
    };
    let lost_v4 = bind.v4.is_some_and(|v4| !remains(v4.into()));
    let lost_v6 = bind.v6.is_some_and(|v6| !remains(v6.into()));
    let gained = bind.translators != fresh.translators
        || bind.v4.is_none() && fresh.v4.is_some()
        || bind.v6.is_none() && fresh.v6.is_some();
    let is_past = |was: Option<IpAddr>, is: Option<IpAddr>| {
        let is_ready = |was| {
            let mut addresses = interface.addresses.iter();
            addresses.any(|it| it.address == was && it.ready)
        };
        is.is_some() && was.is_some_and(|was| !is_ready(was))
    };
    let is_past = is_past(bind.v4.map(Into::into), fresh.v4.map(Into::into))
        || is_past(bind.v6.map(Into::into), fresh.v6.map(Into::into));
    let goes_elsewhere = match (&bind.egress, &fresh.egress) {
        // A mark that leads nowhere any more leaves the choice to the routing table.
        (Some(was), Some(Egress { interface, mark })) => {
            was.interface != *interface || mark.is_some() && was.mark != *mark
        }
        (was, is) => was != is,
    };
    lost_v4 || lost_v6 || goes_elsewhere || (gained || is_past) && !carries
}

/// How a fetch goes by a link.
pub(crate) fn way(bind: &LinkBind) -> DeviceWay {
    let Some(egress) = &bind.egress else {
        return DeviceWay::unbound();
    };
    let way = DeviceWay::new(&egress.interface, bind.v4.is_some(), bind.v6.is_some());
    let way = way.marked(egress.mark);
    way.translated(bind.translators.clone())
}

/// Why an interface is not used as a link, where that is so, of those that `wanted` has, or of all.
pub fn why_unused(interface: &Interface, wanted: &[String], policy: &LinkPolicy) -> Option<String> {
    let is_named = is_named(interface, wanted);
    if let Some(reason) = why_not(interface, is_named) {
        return Some(reason.to_string());
    }
    match (is_named, wanted.is_empty()) {
        (true, _) => None,
        (false, true) => policy.terms(interface).why_unused(),
        (false, false) => Some(format!("only {} is to be used", wanted.join(", "))),
    }
}

/// Why an interface is no link. One that was named needs no more than to be up, with an address.
fn why_not(interface: &Interface, named: bool) -> Option<Unusable> {
    let has_address = interface.global_addresses().next().is_some();
    match interface.usable() {
        Ok(()) => None,
        Err(reason @ (Unusable::Down | Unusable::NoCarrier | Unusable::NoAddress)) => Some(reason),
        Err(reason) if interface.behind.as_ref().is_some_and(|it| it.mark.is_err()) => Some(reason),
        Err(_) if named && !interface.up => Some(Unusable::Down),
        Err(_) if named && !has_address => Some(Unusable::NoAddress),
        Err(_) if named => None,
        Err(reason) => Some(reason),
    }
}

fn bind(interface: &Interface) -> LinkBind {
    let v4 = interface
        .global_addresses()
        .find_map(|address| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        });
    let v6 = interface
        .global_addresses()
        .find_map(|address| match address {
            IpAddr::V6(v6) => Some(v6),
            IpAddr::V4(_) => None,
        });
    let bind = LinkBind::by_way_out(&interface.name, interface.egress(), v4, v6);
    let translators = match v4 {
        None => interface.advertised.translators.clone(),
        Some(_) => Vec::new(),
    };
    LinkBind {
        translators,
        ..bind
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tabane_linux::interfaces::{DefaultRoute, InterfaceAddress, Kind, Scope, State};
    use tabane_store::Store;

    pub(crate) fn interface(name: &str, addresses: &[&str]) -> Interface {
        let address = |text: &&str| InterfaceAddress {
            address: text.parse().unwrap(),
            prefix_bits: 24,
            scope: Scope::Global,
            ready: true,
        };
        Interface {
            index: 2,
            name: name.to_owned(),
            kind: Kind::Ethernet,
            up: true,
            state: State::Up,
            carrier: true,
            mtu: 1500,
            controller: None,
            addresses: addresses.iter().map(address).collect(),
            default_routes: Vec::<DefaultRoute>::new(),
            gateways: Vec::new(),
            behind: None,
            advertised: tabane_linux::advertised::Advertised::default(),
        }
    }

    /// Nobody wished anything.
    fn policy() -> LinkPolicy {
        let store = Store::locate(Some("/nonexistent/tabane".into())).unwrap();
        LinkPolicy::load(&store).unwrap()
    }

    #[test]
    fn all_usable_interfaces_or_those_named() {
        let tunnel = Interface {
            kind: Kind::Tunnel,
            ..interface("tun0", &["10.8.0.2"])
        };
        let all = [
            interface("a", &["192.0.2.1", "2001:db8::1"]),
            interface("b", &[]),
            tunnel,
        ];
        let names = |wanted: &[&str]| -> Vec<String> {
            let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
            choose(&all, &wanted, &policy())
                .unwrap()
                .into_keys()
                .collect()
        };
        assert_eq!(names(&[]), ["a"]);
        assert_eq!(names(&["tun0"]), ["tun0"]);
        let links = choose(&all, &[], &policy()).unwrap();
        assert!(links["a"].v4.is_some() && links["a"].v6.is_some());
    }

    #[test]
    fn none_is_an_error_with_its_reasons() {
        let down = Interface {
            up: false,
            carrier: false,
            ..interface("a", &["192.0.2.1"])
        };
        let all = [down, interface("b", &[])];
        let error = choose(&all, &[], &policy()).unwrap_err().to_string();
        assert!(
            error.contains("a is down, b has no global address"),
            "{error}"
        );
        assert!(!error.contains("--link"), "it would not help: {error}");
        let error = choose(&all, &["b".to_owned()], &policy())
            .unwrap_err()
            .to_string();
        assert!(!error.contains("a is down"), "{error}");
        assert!(!error.contains("--link"), "that was tried: {error}");
        let tunnel = Interface {
            kind: Kind::Tunnel,
            ..interface("tun0", &["10.8.0.2"])
        };
        let error = choose(&[tunnel], &[], &policy()).unwrap_err().to_string();
        assert!(error.contains("`--link tun0`"), "{error}");
        let error = choose(&all, &["x".to_owned()], &policy())
            .unwrap_err()
            .to_string();
        assert!(error.contains("there are: a, b"), "{error}");
        let both = missing(&all, &["x".to_owned(), "a".to_owned(), "y".to_owned()]);
        assert!(both.unwrap().contains("called 'x' or 'y';"));
    }

    #[test]
    fn a_link_is_given_up_for_another_gateway_but_not_for_want_of_choice() {
        let all = interface("a", &["192.0.2.1"]);
        let by = |mark| LinkBind {
            egress: Some(Egress {
                mark,
                ..Egress::interface("a")
            }),
            ..bind(&all)
        };
        let outdated = |was, is| is_outdated(&by(was), &by(is), &all, true);
        assert!(outdated(Some(1), Some(2)) && outdated(None, Some(1)));
        assert!(!outdated(Some(1), Some(1)) && !outdated(Some(1), None));
    }

    #[test]
    fn a_link_lives_as_long_as_its_addresses() {
        let before = interface("a", &["192.0.2.1", "2001:db8::1"]);
        let bound = bind(&before);
        let outdated = |addresses: &[&str], carries| {
            let now = interface("a", addresses);
            is_outdated(&bound, &bind(&now), &now, carries)
        };
        assert!(!outdated(
            &["192.0.2.1", "2001:db8::0", "2001:db8::1"],
            true
        ));
        assert!(outdated(&["192.0.2.9", "2001:db8::1"], true));
        assert!(outdated(&["192.0.2.1"], true));
        let only_v4 = bind(&interface("a", &["192.0.2.1"]));
        assert!(!is_outdated(&only_v4, &bound, &before, true));
        assert!(is_outdated(&only_v4, &bound, &before, false));

        // A new prefix, while the one before is there for old connections' sake (RFC 4862 §5.5.4).
        let mut renumbered = interface("a", &["192.0.2.1", "2001:db8::1", "2001:db8:2::1"]);
        let fresh = bind(&renumbered);
        assert!(!is_outdated(&bound, &fresh, &renumbered, false));
        renumbered.addresses[1].ready = false;
        let fresh = bind(&renumbered);
        assert!(is_outdated(&bound, &fresh, &renumbered, false));
        assert!(!is_outdated(&bound, &fresh, &renumbered, true));
    }
}
