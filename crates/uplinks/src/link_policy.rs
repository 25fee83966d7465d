//! The policy and the accounts as this host has them: `policy.toml` and `usage.toml` beside the
//! other settings.
//!
//! Owns how they are read, and what a decision means for a path. What the files mean is the policy
//! crate's; `uplinks` follows and writes them.

use std::collections::BTreeMap;

use anyhow::Result;
use tabane_base::Bytes;
use tabane_core::PathPolicy;
use tabane_linux::interfaces::{Interface, Kind};
use tabane_policy::{Budget, Decision, LinkFacts, LinkUse, Policy, Usage};

use crate::network_manager::metered_links;
use tabane_store::{POLICY_FILE, Store, USAGE_FILE, read_policy, read_usage, wall_clock::today};

/// What links may be used for, and what they have carried.
#[derive(Debug, Clone)]
pub struct LinkPolicy {
    policy: Policy,
    /// As it was kept, and what was counted since.
    usage: Usage,
    /// What NetworkManager says of links, where it runs; the policy has the last word.
    metered: BTreeMap<String, bool>,
}

/// What the policy comes to for a link at this moment.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkTerms {
    /// What the policy says.
    pub decision: Decision,
    /// Carried in the present period of its budget.
    pub used: Option<Bytes>,
    /// How its path is used; `None`: not at all.
    pub path: Option<PathPolicy>,
}

impl LinkPolicy {
    /// Reads both files; where there is none, nothing was wished or carried.
    pub fn load(store: &Store) -> Result<Self> {
        Ok(Self {
            policy: read_policy(store.root())?,
            usage: read_usage(&store.root().join(USAGE_FILE))?,
            metered: BTreeMap::new(),
        })
    }

    /// The same, with what NetworkManager says of links.
    pub async fn load_here(store: &Store) -> Result<Self> {
        let mut policy = Self::load(store)?;
        policy.metered = metered_links().await;
        Ok(policy)
    }

    /// What NetworkManager says now; `true` where that is something else than before.
    pub(crate) fn set_metered(&mut self, metered: BTreeMap<String, bool>) -> bool {
        let was = std::mem::replace(&mut self.metered, metered);
        was != self.metered
    }

    /// An interface as policy files know it.
    pub fn facts<'a>(&self, interface: &'a Interface) -> LinkFacts<'a> {
        LinkFacts {
            name: &interface.name,
            interface: interface.interface(),
            kind: kind_word(interface.kind),
            metered: self.metered.get(interface.interface()).copied(),
        }
    }

    /// The policy file is another.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The accounts are others.
    pub(crate) fn set_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    /// What is wished.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How an interface is to be used now.
    pub fn terms(&self, interface: &Interface) -> LinkTerms {
        self.terms_of(&self.facts(interface))
    }

    /// How a link is to be used now, whatever it is.
    pub fn terms_of(&self, link: &LinkFacts<'_>) -> LinkTerms {
        let decision = self.policy.decide(link);
        let used = decision.budget.map(|budget| self.used(link.name, &budget));
        let is_used_up = decision
            .budget
            .zip(used)
            .is_some_and(|(budget, used)| used >= budget.amount);
        let path = (decision.usage != LinkUse::Never && !is_used_up).then(|| PathPolicy {
            weight: decision.weight,
            backup: decision.usage == LinkUse::Backup,
            metered: decision.metered,
            priority: decision.priority,
            send_cap: decision.up,
            receive_cap: decision.down,
        });
        LinkTerms {
            decision,
            used,
            path,
        }
    }

    /// What a link has carried in the present period of its budget.
    pub fn used(&self, link: &str, budget: &Budget) -> Bytes {
        self.usage.used(link, budget, today())
    }

    /// A link has carried so much more.
    pub fn count(&mut self, link: &str, bytes: Bytes) {
        self.usage.add(link, today(), bytes);
    }

    /// Whether a link may carry no more until its next period.
    pub fn is_used_up(&self, link: &str, budget: &Budget) -> bool {
        self.usage.is_used_up(link, budget, today())
    }
}

impl LinkTerms {
    /// Why it is not to be used, where that is so.
    pub fn why_unused(&self) -> Option<String> {
        let Decision { usage, line, .. } = self.decision;
        match (self.path, usage, self.decision.budget.zip(self.used)) {
            (Some(_), _, _) => None,
            (None, LinkUse::Normal | LinkUse::Backup, Some((budget, used))) => {
                Some(format!("{used} of its {budget} are used up"))
            }
            (None, _, _) => Some(match line {
                Some(line) => format!("{POLICY_FILE}:{line} says never"),
                None => "the policy says never".to_owned(),
            }),
        }
    }

    /// In a few words, for tables.
    pub fn text(&self) -> String {
        match (self.decision.budget, self.used, self.why_unused()) {
            (Some(_), Some(_), Some(why)) if self.decision.usage != LinkUse::Never => {
                format!("not used: {why}")
            }
            (Some(_), Some(used), _) => format!("{}, {used} used", self.decision),
            _ => self.decision.to_string(),
        }
    }
}

/// The word that policy files have for a kind of interface.
fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Ethernet => "ethernet",
        Kind::Wifi => "wifi",
        Kind::Cellular => "cellular",
        Kind::Ppp => "ppp",
        Kind::Bond => "bond",
        Kind::Vlan => "vlan",
        Kind::Veth => "veth",
        Kind::Bridge => "bridge",
        Kind::Tunnel => "tunnel",
        Kind::Dummy => "dummy",
        Kind::Loopback => "loopback",
        Kind::Other => "other",
    }
}
