//! Which links an interface is that has several gateways behind it: one a gateway.
//!
//! Pure over the list of interfaces and the policy. A gateway is one that the policy names, or that
//! a default route leads to, be it of DHCP or of router advertisements. The best one of each family
//! go together, as they do for the routing table, under the interface's name; the others have a
//! name made of the interface's and their own address. How packets are led to them is
//! `gateway_router`'s.

use std::net::IpAddr;

use tabane_base::Prefix;
use tabane_linux::interfaces::{
    self, Behind, DefaultRoute, Interface, InterfaceAddress, InterfaceError, Scope, Unusable,
};
use tabane_policy::{Gateway, Policy};
use tabane_tunnel::may_mark;

/// A gateway that packets are to be led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// The interface's.
    pub index: u32,
    /// Its addresses, and ours towards them.
    pub hops: Vec<(IpAddr, Option<IpAddr>)>,
    /// The networks on the interface's own wire.
    pub wires: Vec<Prefix>,
}

/// What came of it: the mark that leads there.
pub(crate) type Marked = (Planned, Result<u32, Unusable>);

/// A link in the place of an interface.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    name: String,
    addresses: Vec<IpAddr>,
    /// The routing table leads there by itself.
    is_first: bool,
    fault: Option<Unusable>,
}

/// The gateways for which routes have to be made.
pub(crate) fn plan(interfaces: &[Interface], policy: &Policy) -> Vec<Planned> {
    let usable = interfaces.iter().filter(|it| it.up && it.carrier);
    let all = usable.flat_map(|interface| {
        let parts = parts(interface, interfaces, policy).into_iter();
        let sound = parts.filter(|part| part.fault.is_none());
        sound.map(|part| planned(interface, &part.addresses))
    });
    all.collect()
}

/// The interfaces, with the links in the place of those that have several gateways; `marked` is
/// what came of the plan.
pub(crate) fn split(
    interfaces: &[Interface],
    policy: &Policy,
    marked: &[Marked],
) -> Vec<Interface> {
    let mark_of = |interface: &Interface, part: &Part| {
        let is_its = |(planned, _): &&Marked| {
            let addresses = planned.hops.iter().map(|(gateway, _)| gateway);
            planned.index == interface.index && addresses.eq(part.addresses.iter())
        };
        let outcome = marked.iter().find(is_its).map(|(_, outcome)| *outcome);
        match (part.fault, outcome) {
            (Some(fault), _) => Err(fault),
            (None, Some(Ok(mark))) => Ok(Some(mark)),
            (None, Some(Err(_))) if part.is_first => Ok(None),
            (None, Some(Err(why))) => Err(why),
            (None, None) => Err(Unusable::NoRoute),
        }
    };
    split_by(interfaces, policy, mark_of)
}

/// The interfaces of this host, with the links in the place of those that have several gateways,
/// where nothing is carried: as this process could use them.
///
/// # Errors
/// The kernel does not list them.
pub async fn list(policy: &Policy) -> Result<Vec<Interface>, InterfaceError> {
    let interfaces = interfaces::list().await?;
    let may = may_mark();
    Ok(split_by(&interfaces, policy, |_, part| match part.fault {
        Some(fault) => Err(fault),
        None if may || part.is_first => Ok(None),
        None => Err(Unusable::NoRight),
    }))
}

fn split_by(
    interfaces: &[Interface],
    policy: &Policy,
    mark_of: impl Fn(&Interface, &Part) -> Result<Option<u32>, Unusable>,
) -> Vec<Interface> {
    let mut all = Vec::new();
    for interface in interfaces {
        let parts = parts(interface, interfaces, policy);
        if parts.is_empty() {
            all.push(interface.clone());
        }
        for part in parts {
            let mut link = interface.clone();
            link.behind = Some(Behind {
                interface: link.name,
                mark: mark_of(interface, &part),
            });
            link.addresses = addresses(interface, &part.addresses);
            let leads = |gateway: &IpAddr| part.addresses.contains(gateway);
            let routes = &mut link.default_routes;
            routes.retain(|route| route.gateway.as_ref().is_some_and(leads));
            for gateway in &part.addresses {
                // One that the policy names leads on, whether the system knows of it or not.
                if !routes.iter().any(|it| it.gateway == Some(*gateway)) {
                    routes.push(DefaultRoute {
                        metric: u32::MAX,
                        is_v6: gateway.is_ipv6(),
                        gateway: Some(*gateway),
                    });
                }
            }
            link.name = part.name;
            all.push(link);
        }
    }
    all
}

/// The links in the place of an interface, the routing table's own first; none where it is a link
/// itself.
fn parts(interface: &Interface, all: &[Interface], policy: &Policy) -> Vec<Part> {
    let is_its = |gateway: &&Gateway| gateway.interface == interface.name;
    let named: Vec<&Gateway> = policy.gateways().filter(is_its).collect();
    let mut found: Vec<IpAddr> = Vec::new();
    for gateway in interface.default_routes.iter().filter_map(|it| it.gateway) {
        if !found.contains(&gateway) {
            found.push(gateway);
        }
    }
    let best = |is_v4| found.iter().copied().find(|it| it.is_ipv4() == is_v4);
    let best: Vec<IpAddr> = [best(true), best(false)].into_iter().flatten().collect();
    if named.is_empty() && found.len() == best.len() {
        return Vec::new();
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for gateway in named {
        let is_taken = |address| parts.iter().any(|part| part.addresses.contains(address));
        let is_interface = |it: &Interface| it.name == gateway.name && it.name != interface.name;
        let fault = match () {
            () if gateway.addresses.iter().any(is_taken) => Some(Unusable::SameGateway),
            () if all.iter().any(is_interface) || names.contains(&&*gateway.name) => {
                Some(Unusable::SameName)
            }
            () => None,
        };
        names.push(&gateway.name);
        parts.push(Part {
            name: gateway.name.clone(),
            addresses: gateway.addresses.clone(),
            is_first: false,
            fault,
        });
    }
    found.retain(|it| !parts.iter().any(|part| part.addresses.contains(it)));
    join_best(&mut parts, &mut found, &best, interface);
    parts.extend(found.into_iter().map(|gateway| Part {
        name: format!("{}@{gateway}", interface.name),
        addresses: vec![gateway],
        is_first: false,
        fault: None,
    }));
    for part in &mut parts {
        part.is_first = part.fault.is_none() && part.addresses.iter().all(|it| best.contains(it));
    }
    parts.sort_by_key(|part| !part.is_first);
    parts
}

/// Nobody has said that the routing table's own gateways of both families are two links.
fn join_best(
    parts: &mut Vec<Part>,
    found: &mut Vec<IpAddr>,
    best: &[IpAddr],
    interface: &Interface,
) {
    let mut open: Vec<IpAddr> = best
        .iter()
        .copied()
        .filter(|it| found.contains(it))
        .collect();
    found.retain(|it| !open.contains(it));
    let has_best = |part: &&mut Part| part.addresses.iter().any(|it| best.contains(it));
    match (parts.iter_mut().find(has_best), &mut open[..]) {
        (_, []) => {}
        (Some(part), [one]) if part.addresses.len() == 1 => part.addresses.push(*one),
        _ => {
            let mut name = interface.name.clone();
            if parts.iter().any(|part| part.name == name) {
                name = format!("{name}@{}", open[0]);
            }
            parts.push(Part {
                name,
                addresses: open,
                is_first: false,
                fault: None,
            });
        }
    }
}

/// What of an interface's addresses goes with these gateways.
fn addresses(interface: &Interface, gateways: &[IpAddr]) -> Vec<InterfaceAddress> {
    let mut addresses = interface.addresses.clone();
    let shares = |own: &InterfaceAddress, gateway: IpAddr| {
        let wire = Prefix {
            address: own.address,
            bits: own.prefix_bits,
        };
        own.scope == Scope::Global && wire.contains(gateway)
    };
    addresses.retain(|own| {
        let is_same = |it: &&IpAddr| it.is_ipv4() == own.address.is_ipv4();
        match gateways.iter().find(is_same) {
            None => own.scope != Scope::Global,
            // A router that shares no network with us is on the wire all the same.
            Some(gateway) => {
                let any = interface.addresses.iter().any(|it| shares(it, *gateway));
                !any || own.scope != Scope::Global || shares(own, *gateway)
            }
        }
    });
    addresses
}

fn planned(interface: &Interface, gateways: &[IpAddr]) -> Planned {
    let own = addresses(interface, gateways);
    let usable: Vec<&InterfaceAddress> = own
        .iter()
        .filter(|it| it.ready && it.scope == Scope::Global)
        .collect();
    let source = |gateway: &IpAddr| {
        let same = usable
            .iter()
            .find(|it| it.address.is_ipv4() == gateway.is_ipv4());
        // Of several IPv6 addresses the kernel knows the one for each destination best.
        same.map(|it| it.address).filter(IpAddr::is_ipv4)
    };
    let mut wires: Vec<Prefix> = Vec::new();
    for own in &usable {
        let whole = if own.address.is_ipv4() { 32 } else { 128 };
        let wire = Prefix {
            address: own.address,
            bits: own.prefix_bits,
        };
        let first = wire.nth(0).filter(|_| (1..whole).contains(&wire.bits));
        let wire = first.map(|address| Prefix { address, ..wire });
        wires.extend(wire.filter(|wire| !wires.contains(wire)));
    }
    Planned {
        index: interface.index,
        hops: gateways.iter().map(|it| (*it, source(it))).collect(),
        wires,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::tests::interface;

    fn eth0(addresses: &[&str], gateways: &[&str]) -> Interface {
        let routes = gateways.iter().enumerate().map(|(metric, text)| {
            let gateway: IpAddr = text.parse().unwrap();
            DefaultRoute {
                metric: u32::try_from(metric).unwrap(),
                is_v6: gateway.is_ipv6(),
                gateway: Some(gateway),
            }
        });
        Interface {
            default_routes: routes.collect(),
            ..interface("eth0", addresses)
        }
    }

    fn policy(entries: &[(&str, &str)]) -> Policy {
        let entry = |(name, gateway): &(&str, &str)| {
            format!("[[link]]\nname = {name:?}\ninterface = \"eth0\"\ngateway = [{gateway}]\n")
        };
        let text: String = entries.iter().map(entry).collect();
        Policy::parse(&text).unwrap()
    }

    /// Each link with its gateways.
    fn links(interface: &Interface, policy: &Policy) -> Vec<String> {
        let others = [interface.clone(), self::interface("wlan0", &[])];
        let text = |part: &Part| {
            let addresses: Vec<String> = part.addresses.iter().map(IpAddr::to_string).collect();
            let first = if part.is_first { "*" } else { "" };
            let fault = part.fault.map_or_else(String::new, |it| format!(" {it:?}"));
            format!("{}{first}: {}{fault}", part.name, addresses.join(" "))
        };
        parts(interface, &others, policy).iter().map(text).collect()
    }

    #[test]
    fn a_gateway_is_a_link_where_there_are_several_or_the_user_names_it() {
        let own = ["192.168.1.10", "2001:db8::10"];
        for (gateways, named, expected) in [
            (&["192.168.1.1"][..], &[][..], &[][..]),
            (&["192.168.1.1", "fe80::1"], &[], &[]),
            (&[], &[], &[]),
            (
                &["192.168.1.1", "192.168.1.254", "fe80::1"],
                &[],
                &[
                    "eth0*: 192.168.1.1 fe80::1",
                    "eth0@192.168.1.254: 192.168.1.254",
                ],
            ),
            (
                &["fe80::1", "fe80::2"],
                &[],
                &["eth0*: fe80::1", "eth0@fe80::2: fe80::2"],
            ),
            // Named beside one that is found, which goes on under the interface's name.
            (
                &["192.168.1.1", "fe80::1"],
                &[("lte", "\"192.168.1.254\"")],
                &["eth0*: 192.168.1.1 fe80::1", "lte: 192.168.1.254"],
            ),
            // Both of the routing table's own are the same box, as long as nobody says otherwise.
            (
                &["192.168.1.1", "fe80::1"],
                &[("dsl", "\"192.168.1.1\""), ("lte", "\"192.168.1.254\"")],
                &["dsl*: 192.168.1.1 fe80::1", "lte: 192.168.1.254"],
            ),
            (
                &["192.168.1.1", "fe80::1"],
                &[
                    ("dsl", "\"192.168.1.1\""),
                    ("lte", "\"192.168.1.254\", \"fe80::1\""),
                ],
                &["dsl*: 192.168.1.1", "lte: 192.168.1.254 fe80::1"],
            ),
            // What cannot be is told of the later one.
            (
                &["192.168.1.1"],
                &[("dsl", "\"192.168.1.1\""), ("lte", "\"192.168.1.1\"")],
                &["dsl*: 192.168.1.1", "lte: 192.168.1.1 SameGateway"],
            ),
            (
                &["192.168.1.1"],
                &[("wlan0", "\"192.168.1.254\"")],
                &["eth0*: 192.168.1.1", "wlan0: 192.168.1.254 SameName"],
            ),
        ] {
            let found = links(&eth0(&own, gateways), &policy(named));
            assert_eq!(found, expected, "{gateways:?} {named:?}");
        }
    }

    #[test]
    fn a_link_has_the_addresses_and_networks_of_its_gateway() {
        let own = ["192.168.1.10", "10.0.0.10", "2001:db8::10"];
        let interface = eth0(&own, &["192.168.1.1", "10.0.0.1", "fe80::1"]);
        let (all, policy) = ([interface], policy(&[]));
        let plan = plan(&all, &policy);
        let own = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let sources: Vec<_> = plan.iter().flat_map(|it| &it.hops).map(|it| it.1).collect();
        assert_eq!(sources, [own("192.168.1.10"), None, own("10.0.0.10")]);
        let wire = |text: &str| Prefix::parse(text).unwrap();
        assert_eq!(plan[1].wires, [wire("10.0.0.0/24")]);
        // The routing table's own needs no mark; of the other one is told why it is not used.
        let refused: Vec<Marked> = plan
            .iter()
            .map(|it| (it.clone(), Err(Unusable::NoRight)))
            .collect();
        let links = split(&all, &policy, &refused);
        assert_eq!((links[0].usable(), links[0].egress().mark), (Ok(()), None));
        assert_eq!(links[1].usable(), Err(Unusable::NoRight));
        let marked: Vec<Marked> = plan.into_iter().zip([0x1100, 0x1101].map(Ok)).collect();
        let links = split(&all, &policy, &marked);
        let shown: Vec<_> = links
            .iter()
            .map(|it| (it.name.as_str(), it.interface(), it.egress().mark))
            .collect();
        let expected = [
            ("eth0", "eth0", Some(0x1100)),
            ("eth0@10.0.0.1", "eth0", Some(0x1101)),
        ];
        assert_eq!(shown, expected);
        let global: Vec<IpAddr> = links[1].global_addresses().collect();
        assert_eq!(global, ["10.0.0.10".parse::<IpAddr>().unwrap()]);
    }
}
