//! The links that web mode fetches by: interfaces as the policy lets them be used, followed while
//! the process runs, and what they carry counted against their budgets.
//!
//! Which own links there are is the table of [`Uplinks`], which neighbours lend theirs
//! `lent_links`'.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use anyhow::Result;
use tabane_base::Bytes;
use tabane_core::PathPolicy;
use tabane_fetch::{DeviceWay, Links, Way};
use tabane_ranges::LinkLimits;
use tabane_tunnel::LinkBind;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::lent_links::{self, Lender};
use crate::link_policy::LinkTerms;
use crate::link_roll::LinkRoll;
use crate::links;
use crate::table::Table;
use crate::uplinks::{COUNT_INTERVAL, Tally, Uplinks};
use tabane_store::{RelayName, Store};

/// What a byte of a body costs on the network, in thousandths: headers of IP, TCP, TLS and HTTP in
/// packets of 1,500 bytes.
const COST_PER_MILLE: u64 = 1_060;

/// Who says what is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// The user, who means what a name is found to mean.
    User,
    /// Web pages, which may have their names mean this machine.
    Pages,
}

/// A link of this machine's in use.
struct Own {
    bind: LinkBind,
    way: DeviceWay,
}

impl Own {
    fn new(bind: LinkBind, asker: Asker) -> Self {
        let way = links::way(&bind);
        let way = match asker {
            Asker::User => way,
            Asker::Pages => way.sparing_own(),
        };
        Self { bind, way }
    }

    /// Connects as `fresh` says from here on. Connections that are open stay as they are.
    fn renew(&mut self, fresh: LinkBind) {
        let (v4, v6) = (fresh.v4.is_some(), fresh.v6.is_some());
        self.way.renew(v4, v6, &fresh.translators);
        self.bind = fresh;
    }
}

/// Keeps [`Links`] as interfaces and policy have them.
pub struct WebLinks {
    links: Links,
    uplinks: Uplinks,
    tables: watch::Receiver<Rc<Table>>,
    /// The one in force here.
    table: Rc<Table>,
    known: BTreeMap<String, Own>,
    asker: Asker,
    /// The neighbours whose links may be borrowed, each with the way by it.
    lenders: Vec<(Lender, Rc<dyn Way>)>,
    /// The neighbours named by the user, who insists on them.
    insisted: Vec<RelayName>,
    /// Those whose links are in use.
    borrowed: BTreeSet<RelayName>,
    tally: Tally,
}

impl WebLinks {
    /// The links there are now, with those of `neighbours`: of all that are known, where none is
    /// named and no interface either. Fails, with the reasons, where there is no link.
    pub async fn find(
        wanted: Vec<String>,
        neighbours: &[RelayName],
        asker: Asker,
        store: &Store,
    ) -> Result<Self> {
        let is_any_wanted = wanted.is_empty();
        let uplinks = Uplinks::start(store, wanted, LinkRoll::default()).await?;
        let mut tables = uplinks.subscribe();
        let table = tables.borrow_and_update().clone();
        let lenders = match is_any_wanted || !neighbours.is_empty() {
            true => ways(lent_links::find(neighbours, store)?, store)?,
            false => Vec::new(),
        };
        if lenders.is_empty() || !is_any_wanted {
            links::choose(&table.interfaces, &table.wanted, &table.policy)?;
        }
        let mut found = Self {
            links: Links::default(),
            uplinks,
            tables,
            table,
            known: BTreeMap::new(),
            asker,
            lenders,
            insisted: neighbours.to_vec(),
            borrowed: BTreeSet::new(),
            tally: Tally::default(),
        };
        found.apply();
        Ok(found)
    }

    /// What fetches use.
    pub fn links(&self) -> Links {
        self.links.clone()
    }

    /// Which of them there are, used or not.
    pub fn uplinks(&self) -> Uplinks {
        self.uplinks.clone()
    }

    /// Follows changes and counts, until it is dropped.
    pub async fn follow(&mut self) {
        let mut counting = tokio::time::interval(COUNT_INTERVAL);
        counting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                next = self.tables.changed() => {
                    if next.is_err() {
                        return std::future::pending().await;
                    }
                    // By the budgets in force until now.
                    self.count();
                    self.table = self.tables.borrow_and_update().clone();
                    self.apply();
                }
                _ = counting.tick(), if self.table.has_budgets() => self.count(),
            }
        }
    }

    fn apply(&mut self) {
        let table = self.table.clone();
        let policy = &table.policy;
        let current = table.links();
        let lent = self.lenders.iter().map(|(lender, _)| {
            let insists = self.insisted.contains(&lender.name);
            let why = policy.terms_of(&lender.facts()).why_unused();
            (lender, why.filter(|_| !insists))
        });
        self.uplinks.roll().renew_lent(&table, lent.collect());
        let links = &self.links;
        self.known.retain(|name, own| {
            let interface = table.interface(name);
            let keep = match (current.get(name), interface) {
                (Some(fresh), Some(interface)) => {
                    !links::is_outdated(&own.bind, fresh, interface, true)
                }
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
            let interface = table.interface(name);
            let routes = interface.map(|interface| interface.default_routes.iter());
            let metric = routes.and_then(|routes| routes.map(|route| route.metric).min());
            (metric.unwrap_or(u32::MAX), name.clone())
        });
        for (name, bind) in current {
            let terms = table.interface(&name).map(|it| policy.terms(it));
            let allowance = terms.as_ref().and_then(allowance);
            let facts = facts(&bind.policy, allowance);
            if let Some(own) = self.known.get_mut(&name) {
                self.links.set_facts(&name, facts);
                own.renew(bind);
            } else {
                let own = Own::new(bind, self.asker);
                self.links.add(&name, Rc::new(own.way.clone()), facts);
                self.tally.restart(&name);
                self.known.insert(name, own);
            }
        }
        // Behind the own ones, for the same reason.
        for index in 0..self.lenders.len() {
            self.apply_lender(index, &table);
        }
    }

    fn apply_lender(&mut self, index: usize, table: &Table) {
        let (lender, way) = self.lenders[index].clone();
        let name = lender.name.as_str();
        let terms = table.policy.terms_of(&lender.facts());
        let allowance = allowance(&terms);
        let insists = self.insisted.contains(&lender.name);
        let path = terms.path;
        let path = path.or_else(|| insists.then(PathPolicy::default));
        let is_borrowed = self.borrowed.contains(&lender.name);
        let is_left_out = lender.is_shadowed(&table.interfaces) || table.is_paused(name);
        let path = path.filter(|_| !is_left_out);
        match path {
            Some(path) if is_borrowed => self.links.set_facts(name, facts(&path, allowance)),
            Some(path) => {
                self.links.add(name, way, facts(&path, allowance));
                self.tally.restart(name);
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

    /// Counts what links with a budget have carried.
    fn count(&mut self) {
        let borrowed = self.borrowed.iter().map(ToString::to_string);
        let in_use = self.known.keys().cloned().chain(borrowed);
        let totals = in_use.map(|link| {
            let bodies = self.links.carried(&link).get();
            let cost = bodies / 1_000 * COST_PER_MILLE + bodies % 1_000;
            (link, Bytes::new(cost))
        });
        self.tally.count(&self.uplinks, &self.table, totals);
    }
}

impl Drop for WebLinks {
    fn drop(&mut self) {
        self.count();
    }
}

/// What a link may still carry.
fn allowance(terms: &LinkTerms) -> Option<Bytes> {
    let (budget, used) = terms.decision.budget.zip(terms.used)?;
    Some(budget.amount - used)
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
fn facts(policy: &PathPolicy, allowance: Option<Bytes>) -> LinkLimits {
    LinkLimits {
        weight: policy.weight,
        // A metered link waits behind the others of its priority.
        tier: policy.priority.saturating_mul(2) + u8::from(policy.metered),
        backup: policy.backup,
        metered: policy.metered,
        cap: policy.receive_cap,
        allowance,
        ..LinkLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_link_that_gets_ipv4_after_ipv6_leads_to_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let first = LinkBind::interface("lo", None, Some(Ipv6Addr::LOCALHOST));
        let mut own = Own::new(first, Asker::Pages);
        let in_use: Rc<dyn Way> = Rc::new(own.way.clone());
        assert!(in_use.connect("127.0.0.1", port).await.is_err());
        let (v4, v6) = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        own.renew(LinkBind::interface("lo", Some(v4), Some(v6)));
        assert!(in_use.connect("127.0.0.1", port).await.is_ok());
    }
}
