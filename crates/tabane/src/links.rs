//! Which interfaces are used as links: the ones named, else every usable one.
//!
//! Pure over the list of interfaces that the kernel gave; says why there is none.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Result, bail};
use tabane_linux::interfaces::{Interface, Unusable};
use tabane_tunnel::LinkBind;

use crate::failure::Failure;

/// Links by name.
pub(crate) type Links = BTreeMap<String, LinkBind>;

/// The links to begin with; fails, with the reasons, where there is none.
pub(crate) fn choose(interfaces: &[Interface], wanted: &[String]) -> Result<Links> {
    for name in wanted {
        if !interfaces.iter().any(|interface| interface.name == *name) {
            let known: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
            let known = known.join(", ");
            return Err(Failure::usage(format!(
                "there is no interface called '{name}'; there are: {known}"
            ))
            .into());
        }
    }
    let links = usable(interfaces, wanted);
    if links.is_empty() {
        let candidates = interfaces
            .iter()
            .filter(|i| wanted.is_empty() || wanted.contains(&i.name));
        let reasons = candidates.filter_map(|interface| {
            let reason = why_not(interface, !wanted.is_empty())?;
            Some(format!("{} {reason}", interface.name))
        });
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        bail!("no interface can be used as a link ({reasons}); name one with --link to insist");
    }
    Ok(links)
}

/// The links that can be used at this moment; maybe none.
pub(crate) fn usable(interfaces: &[Interface], wanted: &[String]) -> Links {
    let is_wanted = |i: &&Interface| wanted.is_empty() || wanted.contains(&i.name);
    let chosen = interfaces.iter().filter(is_wanted);
    let chosen = chosen.filter(|interface| why_not(interface, !wanted.is_empty()).is_none());
    chosen
        .map(|interface| (interface.name.clone(), bind(interface)))
        .collect()
}

/// Why an interface is no link. One that was named needs no more than to be up, with an address.
fn why_not(interface: &Interface, named: bool) -> Option<Unusable> {
    let has_address = interface.global_addresses().next().is_some();
    match interface.usable() {
        Ok(()) => None,
        Err(reason @ (Unusable::Down | Unusable::NoCarrier | Unusable::NoAddress)) => Some(reason),
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
    LinkBind::interface(&interface.name, v4, v6)
}
