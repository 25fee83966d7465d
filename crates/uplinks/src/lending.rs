//! Lending this machine's link: friends and their terms as the store has them, what they carry
//! counted and kept.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tabane_base::Bytes;
use tabane_core::PublicKey;
use tabane_fetch::DeviceWay;
use tabane_linux::interfaces;
use tabane_neighbour::{
    Code, DATAGRAM_PORTS, DEFAULT_PORTS, DatagramOut, Desk, Friends, Offer, Share, Terms,
    answer_calls,
};
use tabane_policy::{Budget, Usage};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::MissedTickBehavior;

use crate::link_policy::LinkPolicy;
use crate::links;
use crate::near_by::Announcement;
use crate::surroundings::Surroundings;
use tabane_store::{
    FriendEntry, Store, TermsText,
    wall_clock::{today, unix_seconds},
};

/// How often friends and their terms are looked up, and what they carried is counted.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Where neighbours listen if nothing else is said.
pub const LENDING_PORT: u16 = 4511;

/// How a link is lent.
#[derive(Debug, Clone)]
pub struct LendingOrder {
    /// The interface whose link it is; `None`: the route that the system takes.
    pub link: Option<String>,
    /// Where friends connect; `None`: at [`LENDING_PORT`] of every address.
    pub listen: Option<SocketAddr>,
    /// The ports that friends may connect, and send, to; none: the usual ones.
    pub ports: Vec<u16>,
    /// It is not announced on the local networks.
    pub hidden: bool,
    /// What friends call this machine.
    pub name: String,
}

/// A link that is lent.
pub struct Lending {
    share: Share,
    listener: TcpListener,
    called: Option<UdpSocket>,
    key: PublicKey,
    surroundings: Rc<Surroundings>,
    ledger: Rc<RefCell<Ledger>>,
    port: u16,
    _noted: Noted,
    _announced: Option<Announcement>,
}

impl Lending {
    /// Listens, and tells the local networks.
    ///
    /// # Errors
    /// The port is taken, the link cannot be used, or the store cannot be read.
    pub async fn open(order: &LendingOrder, store: &Store) -> Result<Self> {
        let usual = || SocketAddr::from((Ipv6Addr::UNSPECIFIED, LENDING_PORT));
        let listen = order.listen.unwrap_or_else(usual);
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {listen}"))?;
        let (ports, datagram_ports) = match &order.ports[..] {
            [] => (&DEFAULT_PORTS[..], &DATAGRAM_PORTS[..]),
            given => (given, given),
        };
        let ledger = Rc::new(RefCell::new(Ledger::open(store)?));
        let identity = store.neighbour_identity()?;
        let key = identity.public_key();
        let surroundings = Surroundings::look().await;
        let surroundings = Rc::new(surroundings.context("cannot list this machine's networks")?);
        let near = Rc::clone(&surroundings);
        let is_lent = move |address| near.is_lent(address);
        let way_out = way_out(order.link.as_deref(), store).await?;
        let friends = ledger.borrow().friends.clone();
        let share = Share::new(
            &identity,
            &order.name,
            friends,
            way_out.only(is_lent.clone()),
            ports,
            Rc::new(StoreDesk(ledger.clone())),
        )
        .context("TLS")?
        .with_datagrams(DatagramOut {
            device: order.link.clone(),
            is_allowed: Rc::new(is_lent),
            ports: datagram_ports.to_vec(),
        });
        let bound = listener.local_addr()?;
        Ok(Self {
            share,
            called: callable(order, bound).await,
            key,
            surroundings,
            ledger,
            port: bound.port(),
            _noted: Noted::new(store, bound.port()),
            _announced: announce(order, key, bound),
            listener,
        })
    }

    /// Where friends connect.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many friends there are.
    pub fn friends(&self) -> usize {
        self.ledger.borrow().friends.keys().len()
    }

    /// Lends until `told`, and gives what that came to; `None` where lending ended by itself.
    pub async fn run<T>(self, told: impl Future<Output = T>) -> Option<T> {
        let answering = async {
            match &self.called {
                Some(socket) => answer_calls(socket, self.key, unix_time).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            () = Rc::new(self.share).serve(self.listener) => None,
            () = answering => None,
            () = keep(&self.ledger) => None,
            () = self.surroundings.follow() => None,
            told = told => Some(told),
        };
        if let Err(error) = self.ledger.borrow_mut().look() {
            tracing::warn!("what friends have carried is not kept: {error:#}");
        }
        ended
    }
}

/// The budget that a friend's bytes are counted by; one without an end where there is none.
pub fn counted_by(terms: &TermsText) -> Budget {
    terms.budget().unwrap_or(Budget {
        amount: Bytes::new(u64::MAX),
        period: tabane_policy::Period::Month { from: 1 },
    })
}

/// Keeps where this listens, for `tabane share pair`, until it is dropped.
struct Noted(Store);

impl Noted {
    fn new(store: &Store, port: u16) -> Self {
        if let Err(error) = store.put_lending_port(port) {
            tracing::warn!("invitations will name the usual port: {error:#}");
        }
        Self(store.clone())
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_lending_port() {
            tracing::warn!("invitations may name this port later on: {error:#}");
        }
    }
}

/// Where it cannot be, friends say where this machine is.
fn announce(order: &LendingOrder, key: PublicKey, listen: SocketAddr) -> Option<Announcement> {
    if order.hidden || listen.ip().is_loopback() {
        return None;
    }
    let announced = Announcement::start(&order.name, listen.port(), key);
    announced
        .inspect_err(|error| tracing::warn!("not announced on the local networks: {error:#}"))
        .ok()
}

/// Where friends call one that is not announced; those who know its place need no such thing.
async fn callable(order: &LendingOrder, listen: SocketAddr) -> Option<UdpSocket> {
    // At an address of its own it is in that place or in none.
    if !order.hidden || !listen.ip().is_unspecified() {
        return None;
    }
    let bound = UdpSocket::bind(listen).await;
    let told = |error: &io::Error| tracing::warn!(%error, "friends cannot call this machine");
    bound.inspect_err(told).ok()
}

fn unix_time() -> Duration {
    Duration::from_secs(unix_seconds())
}

async fn way_out(link: Option<&str>, store: &Store) -> Result<DeviceWay> {
    let Some(name) = link else {
        return Ok(DeviceWay::unbound());
    };
    let interfaces = interfaces::list().await.context("links")?;
    let links = links::choose(&interfaces, &[name.to_owned()], &LinkPolicy::load(store)?)?;
    let bind = links.get(name).context("a link that was named")?;
    Ok(links::way(bind))
}

/// What friends may, and what they have had.
struct Ledger {
    store: Store,
    friends: Friends,
    usage: Usage,
    counted: BTreeMap<PublicKey, Bytes>,
    /// Those with limits that cannot be read.
    refused: BTreeSet<PublicKey>,
}

/// Counts and looks up, until it is dropped.
async fn keep(ledger: &RefCell<Ledger>) {
    let mut due = tokio::time::interval(LOOK_INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        ledger.borrow_mut().refresh();
    }
}

impl Ledger {
    fn open(store: &Store) -> Result<Self> {
        let mut ledger = Self {
            store: store.clone(),
            friends: Friends::default(),
            usage: store.lent()?,
            counted: BTreeMap::new(),
            refused: BTreeSet::new(),
        };
        ledger.look()?;
        Ok(ledger)
    }

    fn refresh(&mut self) {
        if let Err(error) = self.look() {
            tracing::warn!("friends stay as they were: {error:#}");
        }
    }

    /// Counts what was carried, then tells everybody's terms anew.
    fn look(&mut self) -> Result<()> {
        let entries = self.store.friends()?;
        let minute = minute_of_day();
        let mut is_new = false;
        let mut present = Vec::new();
        for (name, entry) in entries {
            let Ok(key) = entry.key.parse::<PublicKey>() else {
                tracing::warn!(friend = %name, "its key is damaged");
                continue;
            };
            present.push(key);
            let is_sound = entry.terms.is_sound();
            if is_sound {
                self.refused.remove(&key);
            } else if self.refused.insert(key) {
                tracing::warn!(
                    friend = %name,
                    "its budget, rate or hours are no limit: nothing is lent"
                );
            }
            let hours = entry.terms.hours();
            let budget = counted_by(&entry.terms);
            let carried = self.friends.carried(key);
            let before = self.counted.insert(key, carried).unwrap_or(Bytes::ZERO);
            if carried > before {
                let fresh = carried - before;
                self.usage.add(&entry.key, today(), fresh);
                is_new = true;
            }
            let used = self.usage.used(&entry.key, &budget, today());
            let has_budget = entry.terms.budget.is_some();
            let terms = Terms {
                name: name.to_string(),
                allowance: has_budget.then(|| budget.amount - used),
                cap: entry.terms.rate().map(|rate| rate.0),
                is_open: is_sound && hours.is_none_or(|hours| hours.contains(minute)),
            };
            self.friends.set(key, terms);
        }
        for key in self.friends.keys() {
            if !present.contains(&key) {
                self.friends.remove(key);
                self.counted.remove(&key);
            }
        }
        if is_new {
            self.store.put_lent(&self.usage)?;
        }
        Ok(())
    }
}

/// How many minutes have passed since midnight, by the clock on the wall.
fn minute_of_day() -> u16 {
    let now = jiff::Zoned::now();
    u16::from(now.hour().unsigned_abs()) * 60 + u16::from(now.minute().unsigned_abs())
}

/// The offer that `tabane share pair` has put into the store.
struct StoreDesk(Rc<RefCell<Ledger>>);

impl Desk for StoreDesk {
    fn attempt(&self) -> Option<Code> {
        let store = &self.0.borrow().store;
        let mut entry = store.offer().ok()??;
        if entry.paired.is_some() {
            return None;
        }
        let mut offer = Offer {
            code: entry.code.parse().ok()?,
            ends_at: Duration::from_secs(entry.ends_at),
            attempts_left: entry.attempts_left,
        };
        let code = offer.attempt(unix_time())?;
        entry.attempts_left = offer.attempts_left;
        // A try that cannot be written down would be one too many.
        store.put_offer(&entry).ok()?;
        Some(code)
    }

    fn paired(&self, name: &str, key: PublicKey) -> bool {
        let remember = || -> Result<bool> {
            let mut ledger = self.0.borrow_mut();
            let store = ledger.store.clone();
            let Some(mut offer) = store.offer()?.filter(|offer| offer.paired.is_none()) else {
                return Ok(false);
            };
            let friend = FriendEntry {
                key: key.to_string(),
                terms: offer.terms.clone(),
            };
            offer.paired = Some(store.put_friend(name, &friend)?.to_string());
            // The friend hears of its pairing after this, and may come at once.
            ledger.refresh();
            store.put_offer(&offer)?;
            Ok(true)
        };
        remember().unwrap_or_else(|error| {
            tracing::warn!("the friend cannot be remembered: {error:#}");
            false
        })
    }
}
