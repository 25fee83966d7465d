//! This host's links as SCTP uses them: IPv4, one socket each, all on one UDP port.
//!
//! Owns which interface has which number, and what the policy says of it. The peer sends to every
//! address of ours at the port it heard first (RFC 6951 §5.4), so all sockets have the same one.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, bail};
use tabane_core::PathPolicy;
use tabane_linux::interfaces::{self, Interface, Watch};
use tabane_sctp::LinkId;

use super::driver::Driver;
use super::ways::Reach;
use crate::link_policy::LinkPolicy;
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
    watch: Option<Watch>,
    links: Vec<Link>,
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
        let mut set = Self {
            wanted,
            policy,
            // Without it, links that come later are not noticed.
            watch: Watch::start().ok(),
            links: Vec::new(),
            port: 0,
            next: 1,
        };
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
        self.links.push(link);
        Ok(id)
    }

    /// Waits until the interfaces may have changed.
    pub(crate) async fn changed(&mut self) {
        let news = match &mut self.watch {
            Some(watch) => watch.changed().await,
            None => None,
        };
        if news.is_none() {
            self.watch = None;
            std::future::pending().await
        }
    }

    /// Looks again; gives the links that have come and those that have gone.
    pub(crate) async fn update(&mut self, driver: &mut Driver) -> Result<(Vec<Link>, Vec<Link>)> {
        let interfaces = list().await?;
        // A faulty file changes nothing.
        if let Err(error) = self.policy.reload() {
            tracing::warn!("{error:#}");
        }
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
            })
        });
        links.collect()
    }

    pub(crate) fn links(&self) -> &[Link] {
        &self.links
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

fn prefix_bits(interface: &Interface, local: Ipv4Addr) -> u8 {
    let same = |address: &&interfaces::InterfaceAddress| address.address == IpAddr::V4(local);
    let found = interface.addresses.iter().find(same);
    found.map_or(32, |address| address.prefix_bits)
}

async fn list() -> Result<Vec<Interface>> {
    interfaces::list()
        .await
        .context("cannot list the interfaces")
}
