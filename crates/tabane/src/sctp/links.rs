//! This host's links as SCTP uses them: IPv4, one socket each, all on one UDP port.
//!
//! Owns which interface has which number, what the policy says of it, and what it costs. The peer
//! sends to every address of ours at the port it heard first (RFC 6951 §5.4), so all sockets have
//! the same one.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tabane_base::Bytes;
use tabane_core::PathPolicy;
use tabane_linux::interfaces::{self, Interface, Watch};
use tabane_sctp::LinkId;

use super::driver::Driver;
use super::ways::Reach;
use crate::budgets::{Budgets, COUNT_INTERVAL};
use crate::link_policy::{LinkPolicy, PolicyWatch};
use crate::links;
use crate::store::Store;

/// Tries to find a port that is free on every link.
const PORT_TRIES: usize = 16;
/// The order of links that are used only when nothing else works: behind all priorities.
const BACKUP_TIER: u16 = 256;
const LAST_RESORT_TIER: u16 = 257;

/// A link in use.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) reach: Reach,
    pub(crate) policy: PathPolicy,
    carried: Rc<Cell<Bytes>>,
}

impl Link {
    /// Links of the lowest number are used while one of them works. A transfer's demand has no end,
    /// so later priorities wait like backups.
    pub(crate) fn tier(&self) -> u16 {
        match self.policy {
            PathPolicy { weight, .. } if weight <= 0.0 => LAST_RESORT_TIER,
            PathPolicy { backup: true, .. } => BACKUP_TIER,
            PathPolicy { priority, .. } => priority.into(),
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
    wanted: Vec<String>,
    policy: LinkPolicy,
    budgets: Budgets,
    counted_at: Instant,
    watch: Option<Watch>,
    files: PolicyWatch,
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
        let policy = LinkPolicy::load(store)?;
        let interfaces = list().await?;
        links::choose(&interfaces, &wanted, &policy)?;
        let files = policy.watch();
        let mut set = Self {
            wanted,
            policy,
            budgets: Budgets::new(),
            counted_at: Instant::now(),
            // Without it, links that come later are not noticed.
            watch: Watch::start().ok(),
            files,
            links: Vec::new(),
            past: Vec::new(),
            port: 0,
            next: 1,
        };
        set.renew_budgets(&interfaces);
        let found = set.allowed(&interfaces);
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
        self.port = driver.open(id, Some(&link.name), link.reach.local, self.port)?;
        driver.set_cap(id, link.policy.send_cap);
        link.carried = driver.carried(id);
        self.budgets.restart(&link.name);
        self.links.push(link);
        Ok(id)
    }

    /// Waits until the interfaces or the policy may have changed.
    pub(crate) async fn changed(&mut self) {
        tokio::select! {
            () = self.files.changed() => {}
            () = interfaces_changed(&mut self.watch) => {}
        }
    }

    /// Counts what links with a budget have carried, where it is time to. `true` where one is used
    /// up now, or its period has begun anew.
    pub(crate) fn count_if_due(&mut self) -> bool {
        let is_due = !self.budgets.is_empty() && self.counted_at.elapsed() >= COUNT_INTERVAL;
        is_due && self.count()
    }

    fn count(&mut self) -> bool {
        self.counted_at = Instant::now();
        let links = self.links.iter();
        let carried = links.map(|link| (link.name.clone(), link.carried.get()));
        self.budgets.count(&mut self.policy, carried)
    }

    fn renew_budgets(&mut self, interfaces: &[Interface]) {
        let facts = interfaces.iter().map(|it| self.policy.facts(it));
        self.budgets.renew(&self.policy, facts);
    }

    /// Looks again; gives the links that have come and those that have gone.
    pub(crate) async fn update(&mut self, driver: &mut Driver) -> Result<(Vec<Link>, Vec<Link>)> {
        let interfaces = list().await?;
        // By the budgets in force until now.
        self.count();
        // A faulty file changes nothing.
        if let Err(error) = self.policy.reload() {
            tracing::warn!("{error:#}");
        }
        self.renew_budgets(&interfaces);
        let found = self.allowed(&interfaces);
        let is_there = |known: &Link| {
            let same =
                |link: &&Link| link.name == known.name && link.reach.local == known.reach.local;
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
        Ok((come, gone))
    }

    fn allowed(&self, interfaces: &[Interface]) -> Vec<Link> {
        let binds = links::allowed(interfaces, &self.wanted, &self.policy);
        let links = binds.into_values().filter_map(|bind| {
            let local = bind.v4?;
            let interface = interfaces.iter().find(|i| i.name == bind.name)?;
            Some(Link {
                name: bind.name.clone(),
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
        self.budgets.save(&mut self.policy);
    }
}

fn prefix_bits(interface: &Interface, local: Ipv4Addr) -> u8 {
    let same = |address: &&interfaces::InterfaceAddress| address.address == IpAddr::V4(local);
    let found = interface.addresses.iter().find(same);
    found.map_or(32, |address| address.prefix_bits)
}

async fn interfaces_changed(watch: &mut Option<Watch>) {
    let news = match watch {
        Some(watch) => watch.changed().await,
        None => None,
    };
    if news.is_none() {
        *watch = None;
        std::future::pending().await
    }
}

async fn list() -> Result<Vec<Interface>> {
    interfaces::list()
        .await
        .context("cannot list the interfaces")
}
