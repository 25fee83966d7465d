//! Keeps a client on the links there are, used as the policy says, and counts what they carry.
//!
//! Which links there are and what the policy says of them is the table of [`Uplinks`]; the
//! neighbours that carry this session are `lent_paths`'.

use std::rc::Rc;

use tabane_base::Bytes;
use tabane_core::PathStatus;
use tabane_policy::LinkFacts;
use tabane_tunnel::{Client, LinkBind, Volume};
use tokio::time::MissedTickBehavior;

use crate::lent_paths::LentPaths;
use crate::rule_book::RuleBook;
use tabane_uplinks::{
    COUNT_INTERVAL, Table, Tally, Uplinks,
    lent_links::Lender,
    links::{self, Links},
};

/// What a packet costs on the network beside its payload: the headers of IPv4 and UDP.
const PACKET_OVERHEAD: u64 = 28;

/// Follows the table of links for one client.
pub(crate) struct LinkFollower {
    client: Client,
    uplinks: Uplinks,
    /// The one in force for this client.
    table: Rc<Table>,
    known: Links,
    /// The neighbours' links beside the own ones.
    lent: LentPaths,
    rules: RuleBook,
    tally: Tally,
    /// What carries links here says what the network lets pass: not so towards a peer, who may be
    /// near.
    remembers: bool,
}

impl LinkFollower {
    /// For a client that uses `links`, which `table` has.
    pub(crate) fn new(
        client: Client,
        uplinks: Uplinks,
        table: Rc<Table>,
        links: Links,
        rules: RuleBook,
        lent: LentPaths,
    ) -> Self {
        rules.renew(table.policy.policy());
        Self {
            client,
            uplinks,
            table,
            known: links,
            lent,
            rules,
            tally: Tally::default(),
            remembers: true,
        }
    }

    /// The same for a session with a peer.
    pub(crate) fn of_peer(mut self) -> Self {
        self.remembers = false;
        self
    }

    /// Follows until the table has no successor.
    pub(crate) async fn run(mut self) {
        let mut tables = self.uplinks.subscribe();
        let mut counting = tokio::time::interval(COUNT_INTERVAL);
        counting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What has changed since it was started.
        tables.mark_changed();
        loop {
            tokio::select! {
                next = tables.changed() => {
                    if next.is_err() {
                        return;
                    }
                    let next = tables.borrow_and_update().clone();
                    self.put_in_force(next);
                }
                () = self.lent.changed() => {}
                () = self.client.carriers_changed() => {}
                _ = counting.tick(), if self.table.has_budgets() => {
                    self.count();
                    continue;
                }
            }
            self.apply();
            self.remember();
        }
    }

    fn put_in_force(&mut self, next: Rc<Table>) {
        // By the budgets in force until now.
        self.count();
        let before = std::mem::replace(&mut self.table, next);
        if before.revision != self.table.revision {
            self.rules.renew(self.table.policy.policy());
        }
    }

    /// Adds links that appear, removes those that vanish or may not be used, renews those whose
    /// addresses change, and tells the others how they are used.
    fn apply(&mut self) {
        let table = self.table.clone();
        let (interfaces, policy) = (&table.interfaces, &table.policy);
        let lent = self.lent.lenders().iter().map(Lender::facts);
        self.apply_rules(&table.facts().chain(lent).collect::<Vec<_>>());
        let roll = self.uplinks.roll();
        // Sessions with peers know of none.
        if !self.lent.lenders().is_empty() {
            roll.renew_lent(&table, self.lent.all(policy));
        }
        let mut current = table.links();
        if !self.remembers {
            current.values_mut().for_each(|bind| bind.memory = None);
        }
        let lent = self.lent.links(interfaces, policy);
        current.extend(lent.into_iter().map(|link| (link.name.clone(), link)));
        let snapshot = self.client.snapshot();
        let client = &self.client;
        self.known.retain(|name, bind| {
            let interface = table.interface(name);
            let link = snapshot.links.iter().find(|link| link.name == *name);
            let path = link.and_then(|link| link.path.as_ref());
            let carries = path.is_some_and(|path| path.status == PathStatus::Active);
            let keep = match (current.get(name), interface) {
                (Some(fresh), _) if fresh.relay_addrs != bind.relay_addrs => false,
                (Some(fresh), _) if fresh.carrier != bind.carrier => false,
                (Some(fresh), None) => fresh.relay_addrs.is_some(),
                (Some(fresh), Some(interface)) => {
                    !links::is_outdated(bind, fresh, interface, carries)
                }
                _ => false,
            };
            if !keep {
                let why = roll.why_unused(name);
                let why =
                    why.unwrap_or_else(|| "its addresses or carriers have changed".to_owned());
                client.remove_link(name, &why);
                tracing::info!(link = name, why, "link not used");
            }
            keep
        });
        for (name, bind) in current {
            if let (Some(memory), true) = (bind.memory, self.known.contains_key(&name)) {
                // The link may know better by now.
                client.recall(&name, memory);
            }
            match self.known.get_mut(&name) {
                Some(known) if known.policy == bind.policy => {}
                Some(known) => {
                    known.policy = bind.policy;
                    match client.set_link_policy(&name, bind.policy) {
                        Ok(()) => tracing::info!(link = name, "used in another way from here on"),
                        Err(error) => tracing::warn!("{error}"),
                    }
                }
                None => {
                    match client.add_link(bind.clone()) {
                        Ok(()) => tracing::info!(link = name, "link added"),
                        Err(error) => tracing::warn!(%error, "cannot add a link"),
                    }
                    self.known.insert(name, bind);
                }
            }
        }
    }

    /// Keeps what carries own links, for the next time in their networks.
    fn remember(&self) {
        if !self.remembers {
            return;
        }
        for link in self.client.snapshot().links {
            // A neighbour's is in a network of its own.
            let is_own = |bind: &&LinkBind| bind.relay_addrs.is_none();
            let own = self.known.get(&link.name).filter(is_own);
            let interface = own.and_then(|_| self.table.interface(&link.name));
            if let Some((interface, memory)) = interface.zip(link.memory) {
                self.uplinks.remember(interface, memory);
            }
        }
    }

    /// Says which links carry what belongs to which class, before any link comes that may not.
    fn apply_rules(&self, links: &[LinkFacts<'_>]) {
        for (class, links) in self.rules.classes(links) {
            self.client.set_class(class, links);
        }
        self.client.follow_labels();
    }

    /// Counts what links with a budget have carried.
    fn count(&mut self) {
        let total = |link: &String| (link.clone(), on_the_wire(&self.client.volume(link)));
        let totals = self.known.keys().map(total);
        self.tally.count(&self.uplinks, &self.table, totals);
    }
}

impl Drop for LinkFollower {
    fn drop(&mut self) {
        self.count();
    }
}

/// With headers, as the network counts it.
fn on_the_wire(volume: &Volume) -> Bytes {
    let packets = volume.sent_packets + volume.received_packets;
    volume.sent + volume.received + Bytes::new(packets * PACKET_OVERHEAD)
}
