//! Neighbours whose links may be borrowed: who is wanted, and what they are called as links.
//!
//! A neighbour's link goes by the neighbour's name, in the policy and wherever links are listed.
//! Who keeps such links in use is `web_links` for web mode, `link_follower` for sessions.

use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_core::{Identity, PublicKey};
use tabane_fetch::DeviceWay;
use tabane_linux::interfaces::Interface;
use tabane_neighbour::NeighbourWay;
use tabane_policy::LinkFacts;
use tabane_proxy::Destination;

use crate::failure::Failure;
use crate::store::{NeighbourEntry, RelayName, Store};

/// The word that policy files have for a neighbour's link.
pub(crate) const KIND: &str = "neighbour";

/// A neighbour who lends its link.
#[derive(Clone, Debug)]
pub(crate) struct Lender {
    pub(crate) name: RelayName,
    /// Where it listens.
    pub(crate) at: Destination,
    pub(crate) key: PublicKey,
}

/// The neighbours that are named; all that are known, where none is. One that is not there costs
/// nothing but a try.
pub(crate) fn find(wanted: &[RelayName], store: &Store) -> Result<Vec<Lender>> {
    let known = store.neighbours()?;
    for name in wanted {
        if known.iter().all(|(other, _)| other != name) {
            let text = format!("no neighbour is called '{name}'; `tabane share list` lists them");
            return Err(Failure::usage(text).into());
        }
    }
    let is_wanted = |name: &RelayName| wanted.is_empty() || wanted.contains(name);
    let known = known.into_iter().filter(|(name, _)| is_wanted(name));
    known
        .map(|(name, entry)| Lender::new(name, &entry))
        .collect()
}

impl Lender {
    fn new(name: RelayName, entry: &NeighbourEntry) -> Result<Self> {
        let damaged = || format!("neighbours/{name}.toml is damaged: remove it and pair again");
        Ok(Self {
            at: Destination::parse(&entry.address, None).with_context(damaged)?,
            key: entry.key.parse().with_context(damaged)?,
            name,
        })
    }

    /// Its link as policy files know it.
    pub(crate) fn facts(&self) -> LinkFacts<'_> {
        LinkFacts {
            name: self.name.as_str(),
            kind: KIND,
            metered: None,
        }
    }

    /// Whether an interface has its name: that is the link, then, and this one is not used.
    pub(crate) fn is_shadowed(&self, interfaces: &[Interface]) -> bool {
        interfaces.iter().any(|it| it.name == self.name.as_str())
    }

    /// Host and port, as sockets are told.
    pub(crate) fn place(&self) -> (String, u16) {
        place(&self.at)
    }

    /// The way to the web by its link.
    pub(crate) fn way(&self, identity: &Identity) -> Result<NeighbourWay> {
        let (host, port) = self.place();
        let near = Rc::new(DeviceWay::unbound());
        NeighbourWay::new(identity, self.name.as_str(), (&host, port), self.key, near)
            .context("TLS")
    }
}

/// Host and port, as sockets are told.
pub(crate) fn place(at: &Destination) -> (String, u16) {
    let host = at.host.to_string();
    (host.trim_matches(['[', ']']).to_owned(), at.port)
}
