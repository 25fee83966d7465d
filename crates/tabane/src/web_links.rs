//! The links that web mode fetches by: interfaces as the policy lets them be used, followed while
//! the process runs, and what they carry counted against their budgets.
//!
//! Which interfaces are links is `links`', which neighbours lend theirs `lent_links`', what the
//! policy says of both `link_policy`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use tabane_base::{Bytes, Duration};
use tabane_core::PathPolicy;
use tabane_fetch::{DeviceWay, Links, Way};
use tabane_linux::DirectoryWatch;
use tabane_linux::interfaces::{self, Interface, Watch};
use tabane_policy::{Budget, LinkUse};
use tabane_ranges::LinkFacts;
use tabane_tunnel::LinkBind;
use tokio::time::MissedTickBehavior;

use crate::lent_links::{self, Lender};
use crate::link_policy::{LinkPolicy, POLICY_FILE, Verdict};
use crate::links;
use crate::store::{RelayName, Store};

/// How often what links carry is counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// How often what was counted is written down.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
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
    /// The neighbours whose links may be borrowed, each with the way by it.
    lenders: Vec<(Lender, Rc<dyn Way>)>,
    /// The neighbours named by the user, who insists on them.
    insisted: Vec<RelayName>,
    /// Those whose links are in use.
    borrowed: BTreeSet<RelayName>,
    budgets: BTreeMap<String, Budget>,
    counted: BTreeMap<String, Bytes>,
    saved_at: Instant,
}

impl WebLinks {
    /// The links there are now, with those of `neighbours`: of all that are known, where none is
    /// named and no interface either. Fails, with the reasons, where there is no link.
    pub(crate) async fn find(
        wanted: Vec<String>,
        neighbours: &[RelayName],
        store: &Store,
    ) -> Result<Self> {
        let policy = LinkPolicy::load(store)?;
        let interfaces = interfaces::list().await.context("links")?;
        let lenders = match wanted.is_empty() || !neighbours.is_empty() {
            true => ways(lent_links::find(neighbours, store)?, store)?,
            false => Vec::new(),
        };
        if lenders.is_empty() || !wanted.is_empty() {
            links::choose(&interfaces, &wanted, &policy)?;
        }
        let mut found = Self {
            links: Links::default(),
            wanted,
            policy,
            known: BTreeMap::new(),
            lenders,
            insisted: neighbours.to_vec(),
            borrowed: BTreeSet::new(),
            budgets: BTreeMap::new(),
            counted: BTreeMap::new(),
            saved_at: Instant::now(),
        };
        found.apply(&interfaces);
        Ok(found)
    }

    /// What fetches use.
    pub(crate) fn links(&self) -> Links {
        self.links.clone()
    }

    /// The neighbours whose links may be among them.
    pub(crate) fn lenders(&self) -> Vec<String> {
        let lenders = self.lenders.iter();
        lenders.map(|(lender, _)| lender.name.to_string()).collect()
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
        self.write();
    }

    fn write(&mut self) {
        self.saved_at = Instant::now();
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
            let allowance = verdict.and_then(|verdict| self.allowance(&name, &verdict));
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
        // Behind the own ones, for the same reason.
        for index in 0..self.lenders.len() {
            self.apply_lender(index, interfaces);
        }
    }

    fn apply_lender(&mut self, index: usize, interfaces: &[Interface]) {
        let (lender, way) = self.lenders[index].clone();
        let name = lender.name.as_str();
        let verdict = self.policy.judge(&lender.facts());
        let allowance = self.allowance(name, &verdict);
        let insists = self.insisted.contains(&lender.name);
        let path = verdict.path;
        let path = path.or_else(|| insists.then(PathPolicy::default));
        let is_borrowed = self.borrowed.contains(&lender.name);
        let path = path.filter(|_| !lender.is_shadowed(interfaces));
        match path {
            Some(path) if is_borrowed => self.links.set_facts(name, facts(&path, allowance)),
            Some(path) => {
                self.links.add(name, way, facts(&path, allowance));
                self.counted.remove(name);
                self.borrowed.insert(lender.name);
            }
            None if is_borrowed => {
                // An interface of its name may have taken the place already.
                if !self.known.contains_key(name) {
                    self.links.remove(name);
                }
                tracing::info!(link = name, "the neighbour's link is not to be used");
                self.borrowed.remove(&lender.name);
            }
            None => {}
        }
    }

    /// What a link may still carry. From here on its budget is watched.
    fn allowance(&mut self, name: &str, verdict: &Verdict) -> Option<Bytes> {
        let (budget, used) = verdict.decision.budget.zip(verdict.used)?;
        if verdict.decision.usage != LinkUse::Never {
            self.budgets.insert(name.to_owned(), budget);
        }
        Some(budget.amount - used)
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
            let is_borrowed = self.borrowed.iter().any(|it| it.as_str() == name);
            let is_in_use = is_borrowed || self.known.contains_key(name);
            is_due |= is_in_use == self.policy.is_used_up(name, budget);
        }
        if self.saved_at.elapsed() >= SAVE_INTERVAL {
            self.write();
        }
        is_due
    }
}

impl Drop for WebLinks {
    fn drop(&mut self) {
        self.save();
    }
}

fn ways(lenders: Vec<Lender>, store: &Store) -> Result<Vec<(Lender, Rc<dyn Way>)>> {
    let identity = match lenders.is_empty() {
        true => return Ok(Vec::new()),
        false => store.neighbour_identity()?,
    };
    let ways = lenders.into_iter().map(|lender| {
        let way = lender.way(&identity)?;
        Ok((lender, way))
    });
    ways.collect()
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
