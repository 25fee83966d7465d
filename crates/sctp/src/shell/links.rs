//! This host's links as SCTP uses them: a socket for each of their addresses, all on one UDP port.
//!
//! Owns which interface has which number, what the policy says of it, and what it costs. The peer
//! sends to every address of ours at the port it heard first (RFC 6951 §5.4), so all sockets have
//! the same one. Of the families of addresses those are used in which the peer was named.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use crate::{Families, LinkId};
use anyhow::{Result, bail};
use tabane_base::Bytes;
use tabane_control::LinkState;
use tabane_core::PathPolicy;
use tabane_linux::{
    Egress,
    interfaces::{self, Interface},
};
use tokio::sync::watch;

use super::driver::{Carried, Driver};
use super::ways::{Local, Reach};
use tabane_store::Store;
use tabane_uplinks::{COUNT_INTERVAL, LinkRoll, Table, Tally, Uplinks, links};

mod shown;

use shown::Shown;

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
    carried: Rc<Carried>,
    /// How its paths fared last.
    state: Rc<Cell<LinkState>>,
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

    fn addresses(&self) -> impl Iterator<Item = Address> {
        self.reach.locals().map(|local| Address {
            name: self.name.clone(),
            link: self.reach.link,
            local,
        })
    }

    /// In both directions.
    fn carried(&self) -> Bytes {
        self.carried.sent.get() + self.carried.received.get()
    }

    /// Its addresses that are none of these.
    fn without(&self, others: &Reach) -> impl Iterator<Item = Address> {
        let others: Vec<IpAddr> = others.locals().collect();
        self.addresses()
            .filter(move |address| !others.contains(&address.local))
    }

    /// Which share of it may be used; a last resort is used whole.
    pub(crate) fn weight(&self) -> f64 {
        match self.policy.weight {
            weight if weight > 0.0 => weight,
            _ => 1.0,
        }
    }
}

/// An address of ours that has come or gone.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The link's name.
    pub name: String,
    pub link: LinkId,
    pub local: IpAddr,
}

/// All of them.
pub(crate) struct LinkSet {
    families: Named,
    uplinks: Uplinks,
    tables: watch::Receiver<Rc<Table>>,
    /// The one in force here.
    table: Rc<Table>,
    tally: Tally,
    counted_at: Instant,
    links: Vec<Link>,
    /// The same, for whoever looks.
    shown: Rc<Shown>,
    /// What links have carried away that are gone.
    past: Vec<(String, Bytes)>,
    port: u16,
    next: u32,
}

impl LinkSet {
    /// Opens sockets on every usable link, or on those named, towards these addresses.
    pub(crate) async fn open(
        driver: &mut Driver,
        wanted: Vec<String>,
        remotes: &[SocketAddr],
        store: &Store,
    ) -> Result<Self> {
        let families = Named {
            v4: remotes.iter().any(SocketAddr::is_ipv4),
            v6: remotes.iter().any(SocketAddr::is_ipv6),
        };
        let uplinks = Uplinks::start(store, wanted, LinkRoll::default()).await?;
        let mut tables = uplinks.subscribe();
        let table = tables.borrow_and_update().clone();
        links::choose(&table.interfaces, &table.wanted, &table.policy)?;
        let found = usable(&table, families);
        let mut set = Self {
            families,
            uplinks,
            tables,
            table,
            tally: Tally::default(),
            counted_at: Instant::now(),
            links: Vec::new(),
            shown: Rc::default(),
            past: Vec::new(),
            port: 0,
            next: 1,
        };
        match families {
            _ if !found.is_empty() => {}
            Named { v4: false, .. } => bail!(
                "no link has an IPv6 address, as the peer's is; name one of IPv4 as well, if it \
                 has one"
            ),
            Named { v6: false, .. } => bail!(
                "no link has an IPv4 address, as the peer's is; name one of IPv6 as well, if it \
                 has one"
            ),
            Named { .. } => bail!("no link has an address"),
        }
        let mut tries = 0;
        // A port that is free on the first link may be taken on another.
        while let Err(error) = set.open_all(driver, &found) {
            tries += 1;
            for link in std::mem::take(&mut set.links) {
                close(driver, &link.reach);
            }
            set.port = 0;
            if tries == PORT_TRIES {
                return Err(error);
            }
        }
        set.show();
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
        for local in link.reach.locals() {
            match driver.open(id, Some(&link.egress), local, self.port) {
                Ok(port) => self.port = port,
                Err(error) => {
                    close(driver, &link.reach);
                    return Err(error);
                }
            }
        }
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
        let totals = links.map(|link| (link.name.clone(), link.carried()));
        self.tally.count(&self.uplinks, &self.table, totals);
    }

    /// Puts the newest table in force; gives the addresses that have come and those that have gone.
    pub(crate) fn update(&mut self, driver: &mut Driver) -> (Vec<Address>, Vec<Address>) {
        // By the budgets in force until now.
        self.count();
        self.table = self.tables.borrow_and_update().clone();
        let found = usable(&self.table, self.families);
        let (mut come, mut gone) = (Vec::new(), Vec::new());
        for mut known in std::mem::take(&mut self.links) {
            let is_it = |link: &&Link| link.name == known.name && link.egress == known.egress;
            match found.iter().find(is_it) {
                Some(fresh) => {
                    known.policy = fresh.policy;
                    driver.set_cap(known.reach.link, known.policy.send_cap);
                    let before = known.clone();
                    known.reach = self.readdress(driver, &known, &fresh.reach);
                    gone.extend(before.without(&known.reach));
                    come.extend(known.without(&before.reach));
                    self.links.push(known);
                }
                None => {
                    let sent = driver.sent(known.reach.link);
                    self.past.push((known.name.clone(), sent));
                    close(driver, &known.reach);
                    gone.extend(known.addresses());
                }
            }
        }
        for fresh in found {
            if self.links.iter().any(|known| known.name == fresh.name) {
                continue;
            }
            match self.add(driver, fresh) {
                Ok(_) => come.extend(self.links.last().into_iter().flat_map(Link::addresses)),
                Err(error) => tracing::warn!("{error:#}"),
            }
        }
        self.show();
        (come, gone)
    }

    /// Has a link's sockets at its addresses of this moment; gives what it has then.
    fn readdress(&self, driver: &mut Driver, known: &Link, fresh: &Reach) -> Reach {
        let (link, mut reach) = (known.reach.link, known.reach);
        let address = |local: Option<Local>| local.map(|local| local.address);
        // What goes comes last, since a link without sockets is forgotten.
        let mut families = [false, true];
        families.sort_by_key(|is_v6| fresh.local(*is_v6).is_none());
        for is_v6 in families {
            let (before, mut now) = (known.reach.local(is_v6), fresh.local(is_v6));
            if address(before) != address(now) {
                let opened =
                    now.map(|it| driver.open(link, Some(&known.egress), it.address, self.port));
                if let Some(Err(error)) = &opened {
                    tracing::warn!("{error:#}");
                    now = None;
                }
                if now.is_none() {
                    driver.close(link, is_v6);
                }
            }
            *reach.local_mut(is_v6) = now;
        }
        reach
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

    /// All addresses of ours, IPv6 first.
    pub(crate) fn locals(&self) -> Vec<IpAddr> {
        let locals = self.links.iter().flat_map(|link| link.reach.locals());
        let mut locals: Vec<IpAddr> = locals.collect();
        locals.sort_by_key(IpAddr::is_ipv4);
        locals
    }

    /// What an endpoint of these links is for.
    pub(crate) fn families(&self) -> Families {
        match self.families.v6 {
            true => Families::Both,
            false => Families::V4,
        }
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

/// In which families the peer was named.
#[derive(Clone, Copy, Debug)]
struct Named {
    v4: bool,
    v6: bool,
}

fn close(driver: &mut Driver, reach: &Reach) {
    for local in reach.locals() {
        driver.close(reach.link, local.is_ipv6());
    }
}

/// The links of `table` that have addresses of their own in these families: sockets of one port
/// cannot share one, as gateways behind one interface may.
fn usable(table: &Table, families: Named) -> Vec<Link> {
    let mut taken = BTreeSet::new();
    let links = table.links().into_values().filter_map(|bind| {
        let interface = table.interface(&bind.name)?;
        let v4 = bind.v4.filter(|_| families.v4).map(IpAddr::V4);
        let v6 = bind.v6.filter(|_| families.v6).map(IpAddr::V6);
        let mut own = |address: Option<IpAddr>| {
            let address = address.filter(|it| taken.insert(*it))?;
            let prefix_bits = prefix_bits(interface, address);
            Some(Local {
                address,
                prefix_bits,
            })
        };
        let reach = Reach {
            link: LinkId(0),
            v4: own(v4),
            v6: own(v6),
        };
        reach.locals().next()?;
        Some(Link {
            name: bind.name.clone(),
            egress: interface.egress(),
            reach,
            policy: bind.policy,
            carried: Rc::default(),
            state: Rc::new(Cell::new(LinkState::Active)),
        })
    });
    links.collect()
}

fn prefix_bits(interface: &Interface, local: IpAddr) -> u8 {
    let same = |address: &&interfaces::InterfaceAddress| address.address == local;
    let found = interface.addresses.iter().find(same);
    found.map_or(u8::MAX, |address| address.prefix_bits)
}
