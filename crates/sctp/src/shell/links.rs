//! This host's links as SCTP uses them: IPv4, one socket each, all on one UDP port.
//!
//! Owns which interface has which number, what the policy says of it, and what it costs. The peer
//! sends to every address of ours at the port it heard first (RFC 6951 §5.4), so all sockets have
//! the same one.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Instant;

use crate::LinkId;
use anyhow::{Result, bail};
use tabane_base::Bytes;
use tabane_core::PathPolicy;
use tabane_linux::{
    Egress,
    interfaces::{self, Interface},
};
use tokio::sync::watch;

use super::driver::Driver;
use super::ways::Reach;
use tabane_store::Store;
use tabane_uplinks::{COUNT_INTERVAL, LinkRoll, Table, Tally, Uplinks, links};

/// Tries to find a port that is free on every link.
const PORT_TRIES: usize = 16;
/// The order of links that are used only when nothing else works: behind all priorities.
const BACKUP_TIER: u16 = 2 * 256;
const LAST_RESORT_TIER: u16 = BACKUP_TIER + 1;

/// A link in use.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub name: String,
    egress: Egress,
    pub reach: Reach,
    pub policy: PathPolicy,
    carried: Rc<Cell<Bytes>>,
}

impl Link {
    /// Links of the lowest number are used while one of them works. A transfer's demand has no end,
    /// so later priorities wait like backups, and so do metered links behind the others of their
    /// priority.
    pub(crate) fn tier(&self) -> u16 {
        match self.policy {
            PathPolicy { weight, .. } if weight <= 0.0 => LAST_RESORT_TIER,
            PathPolicy { backup: true, .. } => BACKUP_TIER,
            PathPolicy {
                priority, metered, ..
            } => 2 * u16::from(priority) + u16::from(metered),
        }
    }

    /// Which share of it may be used; a last resort is used whole.
    pub(crate) fn weight(&self) -> f64 {
        match self.policy.weight {
            weight if weight > 0.0 => weight,
            _ => 1.0,
        }
    }
}

/// All of them.
pub(crate) struct LinkSet {
    uplinks: Uplinks,
    tables: watch::Receiver<Rc<Table>>,
    /// The one in force here.
    table: Rc<Table>,
    tally: Tally,
    counted_at: Instant,
    links: Vec<Link>,
    /// What links have carried away that are gone.
    past: Vec<(String, Bytes)>,
    port: u16,
    next: u32,
}

impl LinkSet {
    /// Opens a socket on every usable link, or on those named.
    pub(crate) async fn open(
        driver: &mut Driver,
        wanted: Vec<String>,
        store: &Store,
    ) -> Result<Self> {
        let uplinks = Uplinks::start(store, wanted, LinkRoll::default()).await?;
        let mut tables = uplinks.subscribe();
        let table = tables.borrow_and_update().clone();
        links::choose(&table.interfaces, &table.wanted, &table.policy)?;
        let found = usable(&table);
        let mut set = Self {
            uplinks,
            tables,
            table,
            tally: Tally::default(),
            counted_at: Instant::now(),
            links: Vec::new(),
            past: Vec::new(),
            port: 0,
            next: 1,
        };
        if found.is_empty() {
            bail!("no link has an IPv4 address, which SCTP mode needs");
        }
        let mut tries = 0;
        // A port that is free on the first link may be taken on another.
        while let Err(error) = set.open_all(driver, &found) {
            tries += 1;
            for link in std::mem::take(&mut set.links) {
                driver.close(link.reach.link);
            }
            set.port = 0;
            if tries == PORT_TRIES {
                return Err(error);
            }
        }
        Ok(set)
    }

    fn open_all(&mut self, driver: &mut Driver, found: &[Link]) -> Result<()> {
        for link in found {
            self.add(driver, link.clone())?;
        }
        Ok(())
    }

    fn add(&mut self, driver: &mut Driver, mut link: Link) -> Result<LinkId> {
        let id = LinkId(self.next);
        self.next += 1;
        link.reach.link = id;
        self.port = driver.open(id, Some(&link.egress), link.reach.local, self.port)?;
        driver.set_cap(id, link.policy.send_cap);
        link.carried = driver.carried(id);
        self.tally.restart(&link.name);
        self.links.push(link);
        Ok(id)
    }

    /// Waits until there is another table of links.
    pub(crate) async fn changed(&mut self) {
        if self.tables.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Counts what links with a budget have carried, where it is time to. Where that ends a
    /// budget, there is another table.
    pub(crate) fn count_if_due(&mut self) {
        if self.table.has_budgets() && self.counted_at.elapsed() >= COUNT_INTERVAL {
            self.count();
        }
    }

    /// There is another table.
    pub(crate) fn has_news(&self) -> bool {
        self.tables.has_changed().unwrap_or(false)
    }

    fn count(&mut self) {
        self.counted_at = Instant::now();
        let links = self.links.iter();
        let totals = links.map(|link| (link.name.clone(), link.carried.get()));
        self.tally.count(&self.uplinks, &self.table, totals);
    }

    /// Puts the newest table in force; gives the links that have come and those that have gone.
    pub(crate) fn update(&mut self, driver: &mut Driver) -> (Vec<Link>, Vec<Link>) {
        // By the budgets in force until now.
        self.count();
        self.table = self.tables.borrow_and_update().clone();
        let found = usable(&self.table);
        let is_there = |known: &Link| {
            let same = |link: &&Link| {
                link.name == known.name
                    && link.reach.local == known.reach.local
                    && link.egress == known.egress
            };
            found.iter().find(same).cloned()
        };
        let mut gone = Vec::new();
        for mut known in std::mem::take(&mut self.links) {
            match is_there(&known) {
                Some(fresh) => {
                    known.policy = fresh.policy;
                    driver.set_cap(known.reach.link, known.policy.send_cap);
                    self.links.push(known);
                }
                None => {
                    let sent = driver.sent(known.reach.link);
                    self.past.push((known.name.clone(), sent));
                    driver.close(known.reach.link);
                    gone.push(known);
                }
            }
        }
        let mut come = Vec::new();
        for fresh in found {
            if self.links.iter().any(|known| known.name == fresh.name) {
                continue;
            }
            match self.add(driver, fresh) {
                Ok(_) => come.extend(self.links.last().cloned()),
                Err(error) => tracing::warn!("{error:#}"),
            }
        }
        (come, gone)
    }

    pub(crate) fn links(&self) -> &[Link] {
        &self.links
    }

    /// User data that each link has carried away, repetitions included; gone ones come first.
    pub(crate) fn sent(&self, driver: &Driver) -> Vec<(String, Bytes)> {
        let mut all: Vec<(String, Bytes)> = Vec::new();
        let present = self.links.iter();
        let present = present.map(|link| (link.name.clone(), driver.sent(link.reach.link)));
        for (name, sent) in self.past.iter().cloned().chain(present) {
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += sent,
                None => all.push((name, sent)),
            }
        }
        all
    }

    pub(crate) fn get(&self, id: LinkId) -> Option<&Link> {
        self.links.iter().find(|link| link.reach.link == id)
    }

    pub(crate) fn locals(&self) -> Vec<Ipv4Addr> {
        self.links.iter().map(|link| link.reach.local).collect()
    }

    /// The names, for messages.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.links.iter().map(|link| link.name.as_str()).collect();
        names.join(", ")
    }
}

impl Drop for LinkSet {
    fn drop(&mut self) {
        self.count();
    }
}

/// The links of `table` that have an IPv4 address of their own: sockets of one port cannot share
/// one, as gateways behind one interface may.
fn usable(table: &Table) -> Vec<Link> {
    let mut taken = BTreeSet::new();
    let links = table.links().into_values().filter_map(|bind| {
        let local = bind.v4.filter(|v4| taken.insert(*v4))?;
        let interface = table.interface(&bind.name)?;
        Some(Link {
            name: bind.name.clone(),
            egress: interface.egress(),
            reach: Reach {
                link: LinkId(0),
                local,
                prefix_bits: prefix_bits(interface, local),
            },
            policy: bind.policy,
            carried: Rc::default(),
        })
    });
    links.collect()
}

fn prefix_bits(interface: &Interface, local: Ipv4Addr) -> u8 {
    let same = |address: &&interfaces::InterfaceAddress| address.address == IpAddr::V4(local);
    let found = interface.addresses.iter().find(same);
    found.map_or(32, |address| address.prefix_bits)
}
