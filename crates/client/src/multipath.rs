//! Plain connections over several links at once, where their servers speak multipath TCP.
//!
//! Owns the subflows of such connections: which of them there should be (a pure comparison of what
//! may carry with what does), and what each link has carried. Which links may carry a connection is
//! `plain_way`'s, and asked again whenever that may have changed. A connection whose subflows are
//! all over is over at once, as it would be by TCP; the kernel would wait a minute for others.

mod ledger;
mod note;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_linux::interfaces::DefaultRoute;
use tabane_linux::mptcp::{self, Events, PathManager, Subflow, Unusable};
use tabane_uplinks::COUNT_INTERVAL;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::plain_meter::Meter;
use ledger::Ledger;
use note::Note;

pub(crate) use note::clear_leftovers;

/// So much is moved until subflows are looked at before their time: what the last look has missed
/// when a connection ends is less.
const STEP: usize = 256 * 1024;

/// The connections of an instance.
pub(crate) struct Multipath {
    manager: RefCell<PathManager>,
    /// Who waits for news of a connection, by the kernel's number for it.
    waiting: RefCell<BTreeMap<u32, Rc<Notify>>>,
    so_far: Cell<u64>,
    follower: RefCell<Option<AbortHandle>>,
    _note: Note,
}

/// A link that may carry a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leg {
    pub(crate) link: String,
    /// The kernel's number for its interface.
    pub(crate) interface: u32,
    /// The one that subflows begin at, and the others that it has.
    pub(crate) addresses: Vec<IpAddr>,
    /// With another route a server that was not reached may be: routes come after addresses.
    pub(crate) routes: Vec<DefaultRoute>,
}

/// What a connection may have, if its server agrees.
pub(crate) struct Offer {
    pub(crate) multipath: Rc<Multipath>,
    /// The links that may carry it at this moment.
    pub(crate) legs: Box<dyn Fn() -> Vec<Leg>>,
    /// They may be others.
    pub(crate) changes: watch::Receiver<()>,
    pub(crate) meter: Meter,
}

/// The subflows of one connection.
pub(crate) struct Subflows {
    offer: Offer,
    token: u32,
    remote: SocketAddr,
    news: Rc<Notify>,
    moved: Rc<Moved>,
    /// The addresses that were links', and which one's; an address' place is its number.
    known: Vec<(IpAddr, String)>,
    /// Once for each: who refuses it is not asked again.
    tried: BTreeSet<Leg>,
    ledger: Ledger,
}

/// Payload that the connection has passed on, in both directions.
#[derive(Default)]
pub(crate) struct Moved {
    total: Cell<u64>,
    /// Since the subflows were looked at.
    fresh: Cell<usize>,
    news: Notify,
    step: Notify,
}

/// What is to be done so that the links that may carry a connection do, and no others.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    leave: Vec<Subflow>,
    join: Vec<Leg>,
}

impl Multipath {
    /// For this network namespace. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// What stands in the way, for people.
    pub(crate) fn open() -> Result<Rc<Self>> {
        clear_leftovers();
        mptcp::available()?;
        let (manager, news) = PathManager::open().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Unusable::NotAllowed.into(),
            _ => anyhow::Error::new(error).context("the kernel's path manager does not answer"),
        })?;
        let note = Note::leave().context("cannot leave a note under /run/tabane")?;
        let multipath = Rc::new(Self {
            manager: RefCell::new(manager),
            waiting: RefCell::default(),
            so_far: Cell::default(),
            follower: RefCell::default(),
            _note: note,
        });
        let following = tokio::task::spawn_local(follow(news, Rc::downgrade(&multipath)));
        multipath.follower.replace(Some(following.abort_handle()));
        Ok(multipath)
    }

    /// Connections by several links, now and so far; only servers that speak it count.
    pub(crate) fn connections(&self) -> (u64, u64) {
        (self.waiting.borrow().len() as u64, self.so_far.get())
    }
}

impl Drop for Multipath {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.take() {
            follower.abort();
        }
    }
}

/// Wakes who waits for news of a connection.
async fn follow(mut news: Events, multipath: std::rc::Weak<Multipath>) {
    loop {
        match news.next().await {
            Ok(token) => {
                let Some(multipath) = multipath.upgrade() else {
                    return;
                };
                if let Some(waiting) = multipath.waiting.borrow().get(&token) {
                    waiting.notify_one();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "connections stay by the links that they are by");
                return;
            }
        }
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("Offer")
            .field(&(self.legs)())
            .finish()
    }
}

impl Offer {
    /// A socket that asks the server for it; `None` where there is none just now.
    pub(crate) fn socket(&self, dest: SocketAddr) -> Option<TcpSocket> {
        let socket = mptcp::socket(dest.is_ipv6()).inspect_err(|error| {
            tracing::debug!(%error, "a connection goes over one link");
        });
        Some(TcpSocket::from_std_stream(socket.ok()?))
    }

    /// The subflows of `tcp`, which is connected; `None` where its server does not speak it.
    pub(crate) fn begin(self, tcp: &TcpStream) -> Option<Subflows> {
        let token = mptcp::token(tcp)?;
        let news = Rc::new(Notify::new());
        let waiting = &self.multipath.waiting;
        waiting.borrow_mut().insert(token, news.clone());
        let so_far = &self.multipath.so_far;
        so_far.set(so_far.get() + 1);
        Some(Subflows {
            remote: tcp.peer_addr().ok()?,
            offer: self,
            token,
            news,
            moved: Rc::default(),
            known: Vec::new(),
            tried: BTreeSet::new(),
            ledger: Ledger::default(),
        })
    }
}

impl Subflows {
    /// Is to be told of what passes.
    pub(crate) fn moved(&self) -> Rc<Moved> {
        self.moved.clone()
    }

    /// Keeps them as they should be, until none is left.
    pub(crate) async fn attend(&mut self, tcp: &TcpStream) {
        loop {
            if self.is_over(tcp) {
                return;
            }
            let due = self.moved.due();
            tokio::select! {
                () = self.news.notified() => {}
                () = due => {}
                changed = self.offer.changes.changed() => if changed.is_err() {
                    // The instance is ending, and the connection with it.
                    std::future::pending().await
                },
            }
        }
    }

    /// Looks at them, counts, and does what is to be done.
    fn is_over(&mut self, tcp: &TcpStream) -> bool {
        self.moved.fresh.set(0);
        let Ok(present) = mptcp::subflows(tcp) else {
            // One came or went meanwhile, which will be told.
            return false;
        };
        let legs = (self.offer.legs)();
        for leg in &legs {
            for address in &leg.addresses {
                if !self.known.iter().any(|(known, _)| known == address) {
                    self.known.push((*address, leg.link.clone()));
                }
            }
        }
        let known = &self.known;
        let link_of = |address: IpAddr| {
            let mut known = known.iter();
            Some(known.find(|(known, _)| *known == address)?.1.as_str())
        };
        for (link, bytes) in self.ledger.count(&present, link_of) {
            self.offer.meter.on_subflow(&link, bytes);
        }
        if present.iter().all(|subflow| subflow.is_closed) {
            return !mptcp::has_ended(tcp);
        }
        self.tried.retain(|leg| legs.contains(leg));
        let steps = Steps::between(&present, &legs, &self.tried);
        self.take(steps);
        false
    }

    fn take(&mut self, steps: Steps) {
        let mut manager = self.offer.multipath.manager.borrow_mut();
        for subflow in steps.leave {
            if let Err(error) = manager.leave(self.token, &subflow) {
                tracing::debug!(%error, from = %subflow.local, "a subflow was over already");
            }
        }
        for leg in steps.join {
            let address = leg.addresses[0];
            let place = self.known.iter().position(|(known, _)| *known == address);
            // 0 is what the connection began at.
            let id = place.and_then(|place| u8::try_from(place + 1).ok());
            let Some(id) = id else { continue };
            let end = (id, address, leg.interface);
            match manager.join(self.token, end, self.remote) {
                // The server has said nothing yet; that it does will be told.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
                Err(error) => tracing::debug!(%error, link = leg.link, "no subflow"),
                Ok(()) => tracing::debug!(remote = %self.remote, link = leg.link, "a subflow"),
            }
            self.tried.insert(leg);
        }
    }

    /// Counts what nobody has seen pass: it was over before anybody looked.
    pub(crate) fn settle(mut self, tcp: &TcpStream) {
        self.is_over(tcp);
        for (link, bytes) in self.ledger.rest(self.moved.total.get()) {
            self.offer.meter.on_subflow(&link, bytes);
        }
    }
}

impl Drop for Subflows {
    fn drop(&mut self) {
        self.offer
            .multipath
            .waiting
            .borrow_mut()
            .remove(&self.token);
    }
}

impl Moved {
    pub(crate) fn add(&self, bytes: usize) {
        self.total.set(self.total.get() + bytes as u64);
        self.fresh.set(self.fresh.get() + bytes);
        self.news.notify_one();
        if self.fresh.get() >= STEP {
            self.step.notify_one();
        }
    }

    /// Waits until it is time to look at the subflows.
    async fn due(&self) {
        self.news.notified().await;
        tokio::select! {
            () = sleep(COUNT_INTERVAL) => {}
            () = self.step.notified() => {}
        }
    }
}

impl Steps {
    /// From `present` to `legs`, of which those of `tried` have had their turn. Better by a link
    /// that may no longer carry it than broken: what has no other way goes on by the one it has,
    /// as it would by TCP.
    fn between(present: &[Subflow], legs: &[Leg], tried: &BTreeSet<Leg>) -> Self {
        let is_by = |subflow: &Subflow, leg: &Leg| leg.addresses.contains(&subflow.local.ip());
        let may_stay = |subflow: &&Subflow| legs.iter().any(|leg| is_by(subflow, leg));
        let alive = || present.iter().filter(|subflow| !subflow.is_closed);
        let is_carried = |leg: &&Leg| alive().any(|subflow| is_by(subflow, leg));
        let join = legs
            .iter()
            .filter(|leg| !is_carried(leg) && !tried.contains(leg));
        let mut established = alive().filter(|subflow| subflow.is_established);
        let others = || alive().filter(|subflow| !may_stay(subflow));
        let last = match established.clone().any(|subflow| may_stay(&subflow)) {
            true => None,
            false => established.next(),
        };
        Self {
            leave: others().filter(|it| Some(*it) != last).copied().collect(),
            join: join.cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    fn leg(link: &str, address: &str) -> Leg {
        Leg {
            link: link.to_owned(),
            interface: 2,
            addresses: vec![address.parse().unwrap()],
            routes: Vec::new(),
        }
    }

    fn wlan0() -> Leg {
        leg("wlan0", "192.0.2.2")
    }

    fn usb0() -> Leg {
        leg("usb0", "198.51.100.2")
    }

    fn subflow(of: &Leg, is_established: bool) -> Subflow {
        Subflow {
            local: SocketAddr::new(of.addresses[0], 40_000),
            remote: "203.0.113.2:443".parse().unwrap(),
            is_established,
            is_closed: false,
            bytes: 0,
        }
    }

    #[test]
    fn every_link_that_may_carries_and_no_other() {
        let [wlan, usb] = [subflow(&wlan0(), true), subflow(&usb0(), true)];
        let closed = Subflow {
            is_established: false,
            is_closed: true,
            ..wlan
        };
        let asked = subflow(&usb0(), false);
        let both = [wlan0(), usb0()];
        type Row<'a> = (&'a str, &'a [Subflow], &'a [Leg], &'a [Subflow], &'a [Leg]);
        let table: [Row<'_>; 9] = [
            ("begins", &[wlan], &both, &[], &[usb0()]),
            ("runs", &[wlan, usb], &both, &[], &[]),
            ("is being made", &[wlan, asked], &both, &[], &[]),
            ("forbidden", &[wlan, usb], &[wlan0()], &[usb], &[]),
            ("the first, too", &[wlan, usb], &[usb0()], &[wlan], &[]),
            ("there is no other yet", &[wlan, asked], &[usb0()], &[], &[]),
            ("nor will be", &[wlan, usb], &[], &[usb], &[]),
            (
                "the first is allowed again",
                &[closed, usb],
                &both,
                &[],
                &[wlan0()],
            ),
            (
                "not yet made, and forbidden",
                &[wlan, asked],
                &[wlan0()],
                &[asked],
                &[],
            ),
        ];
        for (name, present, legs, leave, join) in table {
            let steps = Steps::between(present, legs, &BTreeSet::new());
            assert_eq!((&*steps.leave, &*steps.join), (leave, join), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn subflows_are_looked_at_once_there_is_much_or_a_while_after_anything() {
        let (moved, begun_at) = (Moved::default(), Instant::now());
        moved.add(1);
        moved.due().await;
        assert_eq!(begun_at.elapsed(), COUNT_INTERVAL);
        moved.add(STEP);
        moved.due().await;
        assert_eq!(begun_at.elapsed(), COUNT_INTERVAL, "at once");
        let hour = std::time::Duration::from_secs(3_600);
        assert!(timeout(hour, moved.due()).await.is_err(), "nothing moves");
    }

    #[test]
    fn who_refuses_a_subflow_is_not_asked_again() {
        let present = [subflow(&wlan0(), true)];
        let tried = BTreeSet::from([usb0()]);
        let steps = Steps::between(&present, &[wlan0(), usb0()], &tried);
        assert_eq!(steps, Steps::default());
    }
}
