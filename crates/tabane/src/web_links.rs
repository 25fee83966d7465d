//! The links that web mode fetches by: interfaces as the policy lets them be used, followed while
//! the process runs, and what they carry counted against their budgets.
//!
//! Which interfaces are links is `links`', what the policy says `link_policy`'s. Neighbours' links
//! are added beside these, to the same [`Links`].

use std::collections::BTreeMap;
use std::ffi::CString;
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_base::{Bytes, Duration};
use tabane_core::PathPolicy;
use tabane_fetch::{DeviceWay, Links};
use tabane_linux::DirectoryWatch;
use tabane_linux::interfaces::{self, Interface, Watch};
use tabane_policy::Budget;
use tabane_ranges::LinkFacts;
use tabane_tunnel::LinkBind;
use tokio::time::MissedTickBehavior;

use crate::link_policy::{LinkPolicy, POLICY_FILE};
use crate::links;
use crate::store::Store;

/// How often what links carry is counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// What a byte of a body costs on the network, in thousandths: headers of IP, TCP, TLS and HTTP in
/// packets of 1,500 bytes.
const COST_PER_MILLE: u64 = 1_060;

/// Keeps [`Links`] as interfaces and policy have them.
pub(crate) struct WebLinks {
    links: Links,
    /// The interfaces named by the user; none: all usable ones.
    wanted: Vec<String>,
    policy: LinkPolicy,
    known: BTreeMap<String, LinkBind>,
    budgets: BTreeMap<String, Budget>,
    counted: BTreeMap<String, Bytes>,
}

impl WebLinks {
    /// The links there are now; fails, with the reasons, where there is none.
    pub(crate) async fn find(wanted: Vec<String>, store: &Store) -> Result<Self> {
        let policy = LinkPolicy::load(store)?;
        let interfaces = interfaces::list().await.context("links")?;
        links::choose(&interfaces, &wanted, &policy)?;
        let mut found = Self {
            links: Links::default(),
            wanted,
            policy,
            known: BTreeMap::new(),
            budgets: BTreeMap::new(),
            counted: BTreeMap::new(),
        };
        found.apply(&interfaces);
        Ok(found)
    }

    /// What fetches use.
    pub(crate) fn links(&self) -> Links {
        self.links.clone()
    }

    /// Follows changes and counts, until it is dropped.
    pub(crate) async fn follow(&mut self) {
        let watch = Watch::start();
        let Ok(mut watch) = watch else {
            return std::future::pending().await;
        };
        let files = DirectoryWatch::start(self.policy.directory());
        let mut counting = tokio::time::interval(COUNT_INTERVAL);
        counting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = watch.changed() => {
                    if change.is_none() {
                        return std::future::pending().await;
                    }
                }
                () = policy_changed(&files) => {
                    if let Err(error) = self.policy.reload() {
                        tracing::warn!("the policy stays as it was: {error:#}");
                        continue;
                    }
                }
                _ = counting.tick(), if !self.budgets.is_empty() => {
                    if !self.count() {
                        continue;
                    }
                }
            }
            match interfaces::list().await {
                Ok(interfaces) => self.apply(&interfaces),
                Err(error) => tracing::warn!(%error, "cannot list the interfaces"),
            }
        }
    }

    /// What was carried since is written down.
    pub(crate) fn save(&mut self) {
        self.count();
        if let Err(error) = self.policy.save() {
            tracing::warn!("what links have carried is not kept: {error:#}");
        }
    }

    fn apply(&mut self, interfaces: &[Interface]) {
        let current = links::allowed(interfaces, &self.wanted, &self.policy);
        self.budgets.clear();
        let links = &self.links;
        self.known.retain(|name, bind| {
            let interface = interfaces.iter().find(|interface| interface.name == *name);
            let keep = match (current.get(name), interface) {
                (Some(fresh), Some(interface)) => !links::is_outdated(bind, fresh, interface, true),
                _ => false,
            };
            if !keep {
                links.remove(name);
                tracing::info!(link = name, "link gone, changed or not to be used");
            }
            keep
        });
        // The cheapest route first: before anything is measured, order is all there is.
        let mut current: Vec<(String, LinkBind)> = current.into_iter().collect();
        current.sort_by_key(|(name, _)| {
            let interface = interfaces.iter().find(|interface| interface.name == *name);
            let routes = interface.map(|interface| interface.default_routes.iter());
            let metric = routes.and_then(|routes| routes.map(|route| route.metric).min());
            (metric.unwrap_or(u32::MAX), name.clone())
        });
        for (name, bind) in current {
            let interface = interfaces.iter().find(|interface| interface.name == name);
            let verdict = interface.map(|interface| self.policy.verdict(interface));
            let budget = verdict.and_then(|verdict| verdict.decision.budget.zip(verdict.used));
            if let Some((budget, _)) = budget {
                self.budgets.insert(name.clone(), budget);
            }
            let allowance = budget.map(|(budget, used)| budget.amount - used);
            let facts = facts(&bind.policy, allowance);
            if self.known.contains_key(&name) {
                self.links.set_facts(&name, facts);
            } else {
                let way = DeviceWay::new(&name, bind.v4.is_some(), bind.v6.is_some());
                self.links.add(&name, Rc::new(way), facts);
                self.counted.remove(&name);
            }
            self.known.insert(name, bind);
        }
    }

    /// Counts what links with a budget have carried. `true` where one is used up now, or its period
    /// has begun anew.
    fn count(&mut self) -> bool {
        let mut is_due = false;
        for (name, budget) in &self.budgets {
            let total = self.links.carried(name);
            let before = self.counted.insert(name.clone(), total);
            let fresh = total - before.unwrap_or(Bytes::ZERO);
            if fresh > Bytes::ZERO {
                let cost = Bytes::new(fresh.get() / 1_000 * COST_PER_MILLE + fresh.get() % 1_000);
                self.policy.count(name, budget, cost);
            }
            is_due |= self.known.contains_key(name) == self.policy.is_used_up(name, budget);
        }
        is_due
    }
}

impl Drop for WebLinks {
    fn drop(&mut self) {
        self.save();
    }
}

/// What the policy wishes of a link, in the words of transfers.
fn facts(policy: &PathPolicy, allowance: Option<Bytes>) -> LinkFacts {
    LinkFacts {
        weight: policy.weight,
        // A metered link waits behind the others of its priority.
        tier: policy.priority.saturating_mul(2) + u8::from(policy.metered),
        backup: policy.backup,
        metered: policy.metered,
        cap: policy.receive_cap,
        allowance,
        ..LinkFacts::default()
    }
}

async fn policy_changed(files: &std::io::Result<DirectoryWatch>) {
    let name = CString::new(POLICY_FILE).unwrap_or_default();
    match files {
        Ok(files) if files.changed(&name).await.is_ok() => {}
        _ => std::future::pending().await,
    }
}
