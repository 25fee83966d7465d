//! The links of this host at one moment: interfaces, and what the policy says of each.
//!
//! Pure, and never changed: a change is another table.

use std::collections::{BTreeMap, BTreeSet};

use tabane_linux::interfaces::Interface;
use tabane_policy::{LinkFacts, UnixDay};
use tabane_store::NetworkMemory;
use tabane_tunnel::CarrierMemory;

use crate::link_policy::LinkPolicy;
use crate::links::{self, Links};
use crate::networks;

/// See the module.
#[derive(Debug)]
pub struct Table {
    /// All that the host has, links or not; in the place of one with several gateways, its links.
    pub interfaces: Vec<Interface>,
    /// What they may be used for and have carried.
    pub policy: LinkPolicy,
    /// The interfaces that the user named; none: all usable ones.
    pub wanted: Vec<String>,
    /// Counts the policies so far.
    pub revision: u64,
    /// The links that have a data budget, be they in use or not.
    budgets: BTreeSet<String>,
    /// The links that the user has paused, be they there or not.
    pub(super) paused: BTreeSet<String>,
    /// What networks have taught of carriers, by the interfaces that are in them.
    memory: BTreeMap<String, CarrierMemory>,
}

impl Table {
    pub(super) fn empty(policy: LinkPolicy) -> Self {
        Self::new(Vec::new(), &[], &policy, 0)
    }

    pub(super) fn new(
        interfaces: Vec<Interface>,
        wanted: &[String],
        policy: &LinkPolicy,
        revision: u64,
    ) -> Self {
        Self {
            interfaces,
            policy: policy.clone(),
            wanted: wanted.to_vec(),
            revision,
            budgets: BTreeSet::new(),
            paused: BTreeSet::new(),
            memory: BTreeMap::new(),
        }
    }

    pub(super) fn with_budgets(self, budgets: BTreeSet<String>) -> Self {
        Self { budgets, ..self }
    }

    pub(super) fn with_paused(self, paused: BTreeSet<String>) -> Self {
        Self { paused, ..self }
    }

    pub(super) fn with_memory(self, memory: &NetworkMemory, today: UnixDay) -> Self {
        let recall = |it: &Interface| {
            let carrier = networks::recall(memory, it, today)?;
            Some((it.name.clone(), carrier))
        };
        Self {
            memory: self.interfaces.iter().filter_map(recall).collect(),
            ..self
        }
    }

    /// The own links that can be used and may be; maybe none.
    pub fn links(&self) -> Links {
        let mut links = links::allowed(&self.interfaces, &self.wanted, &self.policy);
        // Also a link that was insisted on before.
        links.retain(|name, _| !self.is_paused(name));
        for (name, bind) in &mut links {
            bind.memory = self.memory.get(name).copied();
        }
        links
    }

    /// Whether the user has paused the link, an own one or a neighbour's.
    pub fn is_paused(&self, link: &str) -> bool {
        self.paused.contains(link)
    }

    /// The interface that is the link of this name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|it| it.name == name)
    }

    /// All interfaces as policy files know them.
    pub fn facts(&self) -> impl Iterator<Item = LinkFacts<'_>> {
        self.interfaces.iter().map(|it| self.policy.facts(it))
    }

    /// The same, and the links of these neighbours.
    pub(super) fn facts_with<'a>(
        &'a self,
        neighbours: &'a [String],
    ) -> impl Iterator<Item = LinkFacts<'a>> {
        // An interface of its name has precedence.
        let lent = neighbours
            .iter()
            .filter(|name| self.interface(name).is_none());
        let lent = lent.map(|name| LinkFacts {
            name,
            interface: name,
            kind: crate::lent_links::KIND,
            metered: None,
        });
        self.facts().chain(lent)
    }

    /// Whether the link has a budget.
    pub fn has_budget(&self, link: &str) -> bool {
        self.budgets.contains(link)
    }

    /// Whether any link has a budget.
    pub fn has_budgets(&self) -> bool {
        !self.budgets.is_empty()
    }
}
