//! Lending: friends and their terms as the store has them, what they carry counted and kept.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::process::ExitCode;
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
use tabane_policy::Usage;
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::MissedTickBehavior;

use super::surroundings::Surroundings;
use super::{PORT, ServeArgs, counted_by, own_name};
use crate::output;
use crate::program;
use crate::signals;
use tabane_store::{
    FriendEntry, Store,
    wall_clock::{today, unix_seconds},
};
use tabane_uplinks::{LinkPolicy, links, near_by::Announcement};

/// How often friends and their terms are looked up, and what they carried is counted.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ServeArgs, store: &Store) -> Result<ExitCode> {
    tabane_tunnel::block_on(serve(args, store)).context("cannot set up the event loop")?
}

async fn serve(args: &ServeArgs, store: &Store) -> Result<ExitCode> {
    let signals = signals::catch()?;
    let listen = args
        .listen
        .unwrap_or_else(|| SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)));
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {listen}"))?;
    let (ports, datagram_ports) = match &args.ports[..] {
        [] => (&DEFAULT_PORTS[..], &DATAGRAM_PORTS[..]),
        given => (given, given),
    };
    let friends = Friends::default();
    let mut ledger = Ledger {
        store: store.clone(),
        friends: friends.clone(),
        usage: store.lent()?,
        counted: BTreeMap::new(),
        refused: BTreeSet::new(),
    };
    ledger.look()?;
    let ledger = Rc::new(RefCell::new(ledger));
    let identity = store.neighbour_identity()?;
    let (name, key) = (own_name(args.name.as_ref()), identity.public_key());
    let surroundings = Surroundings::look().await;
    let surroundings = Rc::new(surroundings.context("cannot list this machine's networks")?);
    let near = Rc::clone(&surroundings);
    let is_lent = move |address| near.is_lent(address);
    let way_out = way_out(args.link.as_deref(), store).await?;
    let share = Share::new(
        &identity,
        &name,
        friends,
        Rc::new(way_out.only(is_lent.clone())),
        ports,
        Rc::new(StoreDesk(ledger.clone())),
    )
    .context("TLS")?
    .with_datagrams(DatagramOut {
        device: args.link.clone(),
        is_allowed: Rc::new(is_lent),
        ports: datagram_ports.to_vec(),
    });
    let _noted = Noted::new(store, listener.local_addr()?.port());
    let _announced = announce(args, &name, key, listener.local_addr()?);
    let called = callable(args, listener.local_addr()?).await;
    let answering = async {
        match &called {
            Some(socket) => answer_calls(socket, key, unix_time).await,
            None => std::future::pending().await,
        }
    };
    output::line(&format!(
        "lending {} on port {} to {}; Ctrl-C ends it",
        args.link.as_deref().unwrap_or("this machine's link"),
        listener.local_addr()?.port(),
        match ledger.borrow().friends.keys().len() {
            0 => "nobody yet (`tabane share pair` shows a code)".to_owned(),
            1 => "one friend".to_owned(),
            count => format!("{count} friends"),
        }
    ))?;
    let ended = tokio::select! {
        () = Rc::new(share).serve(listener) => Ok(ExitCode::SUCCESS),
        () = answering => Ok(ExitCode::SUCCESS),
        () = keep(&ledger) => Ok(ExitCode::SUCCESS),
        () = surroundings.follow() => Ok(ExitCode::SUCCESS),
        arrived = signals.next() => arrived.map(|arrived| program::signal_code(arrived.signal)),
    };
    if let Err(error) = ledger.borrow_mut().look() {
        tracing::warn!("what friends have carried is not kept: {error:#}");
    }
    Ok(ended?)
}

/// Keeps where this listens, for `tabane share pair`, until it is dropped.
struct Noted<'a>(&'a Store);

impl<'a> Noted<'a> {
    fn new(store: &'a Store, port: u16) -> Self {
        if let Err(error) = store.put_lending_port(port) {
            tracing::warn!("invitations will name the usual port: {error:#}");
        }
        Self(store)
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_lending_port() {
            tracing::warn!("invitations may name this port later on: {error:#}");
        }
    }
}

/// Where it cannot be, friends say where this machine is.
fn announce(
    args: &ServeArgs,
    name: &str,
    key: PublicKey,
    listen: SocketAddr,
) -> Option<Announcement> {
    if args.hidden || listen.ip().is_loopback() {
        return None;
    }
    let announced = Announcement::start(name, listen.port(), key);
    announced
        .inspect_err(|error| tracing::warn!("not announced on the local networks: {error:#}"))
        .ok()
}

/// Where friends call one that is not announced; those who know its place need no such thing.
async fn callable(args: &ServeArgs, listen: SocketAddr) -> Option<UdpSocket> {
    // At an address of its own it is in that place or in none.
    if !args.hidden || !listen.ip().is_unspecified() {
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
    Ok(DeviceWay::new(name, bind.v4.is_some(), bind.v6.is_some()))
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
