//! This host's links, for everything in the process that uses them: one follower, one table.
//!
//! Owns the table in force. A table is made anew when interfaces, the policy file, NetworkManager's
//! word, a budget or a pause change, and sent to all who subscribe: sessions, web mode, SCTP, plain
//! connections. None of them lists interfaces or reads the policy itself, so that none disagrees
//! with another. Who uses links tells here what they carry ([`Uplinks::count`]).
//!
//! The settings' files are read and written by a thread of their own (`files`): a disk that hangs
//! delays news of the policy, and no packet.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_base::{Bytes, Translator};
use tabane_linux::advertised::{Advertisement, Advertisements};
use tabane_linux::interfaces::{self, Interface, Watch};
use tabane_policy::{Policy, PolicyError};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::gateway_router::GatewayRouter;
use crate::gateways::{self, Marked, Planned};
use crate::link_policy::LinkPolicy;
use crate::link_roll::LinkRoll;
use crate::networks;
use tabane_store::{NetworkMemory, Store, wall_clock::today};
use tabane_tunnel::CarrierMemory;

mod budgets;
mod files;
mod follower;
mod rounds;
mod tally;
mod watched;

use crate::table::Table;
pub use tally::{COUNT_INTERVAL, Tally};

use budgets::Budgets;
use files::{Files, News};

/// The links of the process. Copies are the same; the last one ends the follower, and writes down
/// what was counted.
#[derive(Clone)]
pub struct Uplinks(Rc<Shared>);

struct Shared {
    table: watch::Sender<Rc<Table>>,
    state: RefCell<State>,
    /// Every link that is known, for display.
    roll: LinkRoll,
    /// The interfaces that the user named; none: all usable ones.
    wanted: Vec<String>,
    /// The neighbours' names: their links may have budgets, too.
    neighbours: Vec<String>,
    revision: Cell<u64>,
    files: Files,
    follower: OnceCell<AbortHandle>,
}

struct State {
    /// As the kernel has them.
    interfaces: Vec<Interface>,
    /// The gateways behind them that packets are led to, or why they are not.
    gateways: Vec<Marked>,
    /// What routers say, and the translators that the resolver shows.
    advertised: Advertisements,
    resolved: Vec<Translator>,
    policy: LinkPolicy,
    budgets: Budgets,
    /// The links that the user has paused.
    paused: BTreeSet<String>,
    networks: NetworkMemory,
    /// The files that the policy has lists from, or would have where it is faulty.
    lists: Rc<BTreeSet<String>>,
}

impl Uplinks {
    /// Reads everything once, and follows from then on: all usable interfaces, or those of
    /// `wanted`. Links are put on `roll`. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// A file is faulty, or the kernel does not list its interfaces.
    pub async fn start(store: &Store, wanted: Vec<String>, roll: LinkRoll) -> Result<Self> {
        // Before the first look, so that no change falls in between.
        let watch = Watch::start().inspect_err(|error| {
            tracing::warn!(%error, "links that come and go are not noticed");
        });
        let mut follower = follower::Follower::new(watch.ok(), store);
        let policy = LinkPolicy::load_here(store).await?;
        let interfaces = interfaces::list().await;
        let interfaces = interfaces.context("cannot list the interfaces")?;
        let (files, news) = Files::start(store)?;
        let uplinks = Self::with(interfaces, policy, wanted, roll, files, names(store));
        follower.settle(&uplinks.0, false).await;
        follower.await_translators(&uplinks.0).await;
        uplinks.0.on_networks(networks(store));
        let following = tokio::task::spawn_local(follower.run(Rc::downgrade(&uplinks.0), news));
        // Nobody else has set it.
        let _ = uplinks.0.follower.set(following.abort_handle());
        Ok(uplinks)
    }

    fn with(
        interfaces: Vec<Interface>,
        policy: LinkPolicy,
        wanted: Vec<String>,
        roll: LinkRoll,
        files: Files,
        neighbours: Vec<String>,
    ) -> Self {
        let shared = Shared {
            table: watch::Sender::new(Rc::new(Table::empty(policy.clone()))),
            state: RefCell::new(State {
                lists: Rc::new(policy.policy().files().clone()),
                interfaces,
                gateways: Vec::new(),
                advertised: Advertisements::default(),
                resolved: Vec::new(),
                policy,
                budgets: Budgets::default(),
                paused: BTreeSet::new(),
                networks: NetworkMemory::default(),
            }),
            roll,
            wanted,
            neighbours,
            revision: Cell::new(0),
            files,
            follower: OnceCell::new(),
        };
        shared.publish();
        Self(Rc::new(shared))
    }

    /// The links as they are now.
    pub fn table(&self) -> Rc<Table> {
        self.0.table.borrow().clone()
    }

    /// The table in force, and its successors.
    pub fn subscribe(&self) -> watch::Receiver<Rc<Table>> {
        self.0.table.subscribe()
    }

    /// Every link that is known, used or not, and why it is not.
    pub fn roll(&self) -> &LinkRoll {
        &self.0.roll
    }

    /// A link has carried so much more. Where that ends its budget, there is another table when
    /// this returns.
    pub fn count(&self, link: &str, bytes: Bytes) {
        self.0.count(link, bytes);
    }

    /// The user pauses a link, or takes that back. Holds until the process ends, also while the
    /// link is gone; there is another table when this returns.
    pub fn pause(&self, link: &str, paused: bool) {
        let mut state = self.0.state.borrow_mut();
        let is_new = match paused {
            true => state.paused.insert(link.to_owned()),
            false => state.paused.remove(link),
        };
        drop(state);
        if is_new {
            tracing::info!(link, paused, "as the user wishes");
            self.0.publish();
        }
    }

    /// What the network that `interface` is in has taught of carriers; kept for the next time.
    pub fn remember(&self, interface: &Interface, carrier: CarrierMemory) {
        let mut state = self.0.state.borrow_mut();
        if let Some((network, word)) =
            networks::note(&mut state.networks, interface, carrier, today())
        {
            tracing::debug!(%network, %carrier, "remembered");
            self.0.files.note(network, word);
        }
    }
}

impl std::fmt::Debug for Uplinks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("Uplinks")
            .field(&self.table())
            .finish()
    }
}

/// The neighbours that are known.
fn names(store: &Store) -> Vec<String> {
    let known = store.neighbours().inspect_err(|error| {
        tracing::debug!("neighbours' budgets are not kept: {error:#}");
    });
    let known = known.unwrap_or_default().into_iter();
    known.map(|(name, _)| name.to_string()).collect()
}

/// What is kept of networks.
fn networks(store: &Store) -> NetworkMemory {
    NetworkMemory::read(store.root()).unwrap_or_else(|error| {
        tracing::warn!("what networks have taught is forgotten: {error:#}");
        NetworkMemory::default()
    })
}

impl Shared {
    /// Makes the table of what is known now, and sends it to everybody; where packets have to be
    /// led to other gateways first, the follower does that, and calls again.
    fn publish(&self) {
        let mut state = self.state.borrow_mut();
        if state.has_unled_gateways() {
            return;
        }
        let State {
            interfaces,
            gateways,
            policy,
            budgets,
            paused,
            networks,
            ..
        } = &mut *state;
        let links = gateways::split(interfaces, policy.policy(), gateways);
        let table = Table::new(links, &self.wanted, policy, self.revision.get());
        let table = table.with_memory(networks, today());
        budgets.renew(policy, table.facts_with(&self.neighbours));
        let table = table.with_budgets(budgets.links());
        let table = Rc::new(table.with_paused(paused.clone()));
        drop(state);
        self.roll.renew(&table);
        // No table is lent out meanwhile: whoever reads one takes a copy of the pointer.
        self.table.send_replace(table);
    }

    fn count(&self, link: &str, bytes: Bytes) {
        let mut state = self.state.borrow_mut();
        let State {
            policy, budgets, ..
        } = &mut *state;
        budgets.count(policy, link, bytes);
        self.roll.count(policy);
        let has_turned = budgets.has_turned(policy);
        drop(state);
        // Other programs are to know of a budget that is spent before they begin.
        self.files.carried(link, bytes, has_turned);
        if has_turned {
            self.publish();
        }
    }

    /// Has packets led to the gateways that are links, if they are others than before, or
    /// `anew`: what leads there may have gone.
    async fn settle(&self, router: &mut GatewayRouter, anew: bool) {
        let (is_settled, plan) = {
            let state = self.state.borrow();
            let is_settled = !state.has_unled_gateways();
            if is_settled && (!anew || state.gateways.is_empty()) {
                return;
            }
            (is_settled, state.plan())
        };
        let marked = router.lead(plan).await;
        let before = std::mem::replace(&mut self.state.borrow_mut().gateways, marked);
        if !is_settled || before != self.state.borrow().gateways {
            self.publish();
        }
    }

    fn on_interfaces(&self, interfaces: Vec<Interface>) {
        let mut state = self.state.borrow_mut();
        let has_carrier = |index| interfaces.iter().any(|it| it.index == index && it.carrier);
        state.advertised.retain(has_carrier);
        state.interfaces = interfaces;
        state.note_advertised();
        drop(state);
        self.publish();
    }

    fn on_networks(&self, networks: NetworkMemory) {
        self.state.borrow_mut().networks = networks;
        self.publish();
    }

    /// The kernel may have learnt a gateway's card, of which it tells nobody.
    fn on_second_look(&self, interfaces: Vec<Interface>) {
        if self.state.borrow().interfaces != interfaces {
            self.on_interfaces(interfaces);
        }
    }

    fn has_unresolved(&self) -> bool {
        self.state
            .borrow()
            .interfaces
            .iter()
            .any(networks::is_unresolved)
    }

    fn on_advertisement(&self, news: Advertisement) {
        let now = std::time::Instant::now();
        let mut state = self.state.borrow_mut();
        state.advertised.on_advertisement(now, news);
        if state.note_advertised() {
            drop(state);
            self.publish();
        }
    }

    fn on_translators(&self, resolved: Vec<Translator>) {
        let mut state = self.state.borrow_mut();
        state.resolved = resolved;
        if state.note_advertised() {
            drop(state);
            self.publish();
        }
    }

    /// The links by which IPv4 is reached through a translator alone.
    fn without_v4(&self) -> Vec<String> {
        let state = self.state.borrow();
        let usable = state.interfaces.iter().filter(|it| it.usable().is_ok());
        let without = usable.filter(|it| !it.global_addresses().any(|ip| ip.is_ipv4()));
        without.map(|it| it.name.clone()).collect()
    }

    /// Whether IPv4 can be reached by no link yet.
    fn waits_for_v4(&self) -> bool {
        let state = self.state.borrow();
        let mut usable = state.interfaces.iter().filter(|it| it.usable().is_ok());
        usable.all(|it| {
            let has_v4 = it.global_addresses().any(|ip| ip.is_ipv4());
            !has_v4 && it.advertised.translators.is_empty()
        })
    }

    /// A budget's period may be over.
    fn on_tick(&self) {
        let state = self.state.borrow();
        let has_turned = state.budgets.has_turned(&state.policy);
        drop(state);
        if has_turned {
            self.publish();
        }
    }

    fn on_metered(&self, metered: BTreeMap<String, bool>) {
        if self.state.borrow_mut().policy.set_metered(metered) {
            tracing::info!("NetworkManager calls other links metered");
            self.publish();
        }
    }

    fn on_news(&self, news: News) {
        match news {
            News::Policy(policy) => self.on_policy(policy),
            News::Usage { usage, written } => {
                let mut state = self.state.borrow_mut();
                let State {
                    policy, budgets, ..
                } = &mut *state;
                budgets.on_usage(policy, usage, &written);
                self.roll.count(policy);
                let has_turned = budgets.has_turned(policy);
                drop(state);
                if has_turned {
                    self.publish();
                }
            }
        }
    }

    fn lists(&self) -> Rc<BTreeSet<String>> {
        self.state.borrow().lists.clone()
    }

    /// A faulty file changes nothing.
    fn on_policy(&self, read: Result<Policy>) {
        let lists = match &read {
            Ok(policy) => Some(policy.files().clone()),
            Err(error) => {
                let faulty = error.downcast_ref::<PolicyError>();
                faulty.map(|it| it.files.clone())
            }
        };
        if let Some(lists) = lists {
            self.state.borrow_mut().lists = Rc::new(lists);
        }
        match read {
            Ok(policy) => {
                self.roll.set_policy_fault(None);
                let mut state = self.state.borrow_mut();
                if *state.policy.policy() == policy {
                    return;
                }
                tracing::info!("new policy");
                state.policy.set_policy(policy);
                drop(state);
                self.revision.set(self.revision.get() + 1);
                self.publish();
            }
            Err(error) => {
                tracing::warn!("the policy stays as it was: {error:#}");
                self.roll.set_policy_fault(Some(format!("{error:#}")));
            }
        }
    }

    fn has_budgets(&self) -> bool {
        !self.state.borrow().budgets.is_empty()
    }
}

impl State {
    /// Puts what routers and the resolver say by now to the interfaces; whether it is new.
    fn note_advertised(&mut self) -> bool {
        let now = std::time::Instant::now();
        let mut is_new = false;
        for interface in &mut self.interfaces {
            let is_default = |router| interface.has_router(router);
            let mut said = self.advertised.of(now, interface.index, is_default);
            for translator in &self.resolved {
                if !said.translators.contains(translator) {
                    said.translators.push(*translator);
                }
            }
            is_new |= said != interface.advertised;
            interface.advertised = said;
        }
        is_new
    }

    fn plan(&self) -> Vec<Planned> {
        gateways::plan(&self.interfaces, self.policy.policy())
    }

    fn has_unled_gateways(&self) -> bool {
        let led = self.gateways.iter().map(|(planned, _)| planned);
        !led.eq(&self.plan())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get() {
            follower.abort();
        }
    }
}

#[cfg(test)]
mod tests;
