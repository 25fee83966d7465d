//! Neighbours' links, beside the own ones, for web mode.

use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_fetch::{DeviceWay, Links};
use tabane_neighbour::NeighbourWay;
use tabane_proxy::Destination;
use tabane_ranges::LinkFacts;

use crate::failure::Failure;
use crate::store::{RelayName, Store};

/// Adds the links of the neighbours that are named; of all that are known, where none is. One that
/// is not there costs a transfer nothing but a try.
pub(crate) fn add(links: &Links, wanted: &[RelayName], store: &Store) -> Result<()> {
    let known = store.neighbours()?;
    for name in wanted {
        if known.iter().all(|(other, _)| other != name) {
            let text = format!("no neighbour is called '{name}'; `tabane share list` lists them");
            return Err(Failure::usage(text).into());
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    let identity = store.neighbour_identity()?;
    let near = Rc::new(DeviceWay::unbound());
    for (name, entry) in known {
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        let damaged = || format!("neighbours/{name}.toml is damaged: remove it and pair again");
        let at = Destination::parse(&entry.address, None).with_context(damaged)?;
        let key = entry.key.parse().with_context(damaged)?;
        let host = at.host.to_string();
        let at = (host.trim_matches(['[', ']']), at.port);
        let near = Rc::clone(&near);
        let way = NeighbourWay::new(&identity, name.as_str(), at, key, near).context("TLS")?;
        links.add(name.as_str(), Rc::new(way), LinkFacts::default());
    }
    Ok(())
}
