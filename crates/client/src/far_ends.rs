//! The far ends of an instance: the relay, if there is one, and the peers reached straight.
//!
//! Owns which of them there are, and which peer a destination is. In which order they are tried is
//! `via`'s. Each far end has a client of its own, side by side on one thread, with the same links,
//! policy and rules.

mod ranges;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use anyhow::Result;
use tabane_base::{Duration, Host};
use tabane_core::{CloseReason, PublicKey};
use tabane_tunnel::{
    Client, ClientSnapshot, Families, Journal, Label, LinkError, LinkWish, SessionTrace, Target,
};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::bypass::Bypass;
use crate::client_session::SessionPlan;
use crate::discovery::{self, Discovery};
use crate::exposing::Exposures;
use crate::lan_hosts::LanHosts;
use crate::peers::Peer;
use crate::plain::MeteredWay;
use crate::plain_way::{NoPlainWay, PlainBond, PlainWays};
use crate::portals::Probe;
use crate::rule_book::RuleBook;
use crate::sites::Sites;
use crate::surroundings::Surroundings;
use crate::via::RelayState;
use tabane_store::{DEFAULT_PORT, PeerEntry, RelayName, Store, wall_clock::unix_seconds};
use tabane_uplinks::LinkRoll;

/// How long the first connections may have to wait for the names of peers.
const NAMES_WAIT: Duration = Duration::from_secs(1);
/// How long a command may have to wait for the relay's word on families: a round trip or two.
const FAMILIES_WAIT: Duration = Duration::from_millis(500);
/// No more are looked for when there are so many; each takes part in every choice of a way.
const MAX_PEERS: usize = 64;

/// The far ends. Copies are the same.
#[derive(Clone)]
pub struct FarEnds(Rc<Inner>);

struct Inner {
    relay: Option<Client>,
    peers: RefCell<Vec<Rc<Peer>>>,
    /// Where there are peers, or may be.
    surroundings: Option<Rc<Surroundings>>,
    /// Where the user wishes it.
    discovery: Option<Discovery>,
    journal: Journal,
    /// `None` where the routing table has its way.
    plain: Option<PlainWays>,
    bypass: Bypass,
    exposures: Exposures,
    sites: Sites,
    lan_hosts: LanHosts,
    /// By which families the relay reaches others; `None` until it has said so.
    families: watch::Sender<Option<Families>>,
    /// The peers' addresses, or the relay's families, have changed.
    moved: Rc<Notify>,
    followers: RefCell<Vec<AbortHandle>>,
}

/// A client with whom it is for.
pub(crate) struct FarEnd {
    /// Name and key of the peer; `None`: the relay.
    pub peer: Option<(String, String)>,
    pub client: Client,
}

/// A session of a client's, or the place of one.
pub struct Seen {
    /// Name and key of the peer; `None`: the relay.
    pub peer: Option<(String, String)>,
    /// It is not one of those that are left because their relay goes down.
    pub is_present: bool,
    /// What is known of it at this moment.
    pub snapshot: ClientSnapshot,
}

impl FarEnds {
    /// The session with the relay, if one is known, and the peers beside it. A silent relay is
    /// waited for only where there is nothing else. Must be called within a `LocalSet`.
    pub async fn connect(plan: &SessionPlan, store: &Store) -> Result<Self> {
        let relay = plan.connect_relay(store).await?;
        Ok(Self::new(relay, plan, store, None).await)
    }

    /// The same, but nothing is waited for: links and the relay may come later. Its sockets carry
    /// `mark`.
    pub async fn start(plan: &SessionPlan, store: &Store, mark: u32) -> Result<Self> {
        let relay = match plan.has_relays() {
            true => Some(plan.start(store, Some(mark)).await?),
            false => None,
        };
        Ok(Self::new(relay, plan, store, Some(mark)).await)
    }

    /// The relay's client beside the peers of `plan`; waits a moment for the names of these. Must
    /// be called within the `LocalSet` of the client.
    async fn new(
        relay: Option<Client>,
        plan: &SessionPlan,
        store: &Store,
        mark: Option<u32>,
    ) -> Self {
        let journal = relay.as_ref().map(Client::journal).unwrap_or_default();
        let peers = plan.peers.iter().cloned();
        let peers: Vec<_> = peers
            .map(|(name, entry)| Rc::new(Peer::new(name, entry)))
            .collect();
        let moved = Rc::new(Notify::new());
        let mut followers: Vec<_> = peers.iter().map(|peer| follow(peer, &moved)).collect();
        let (families, sites) = (watch::Sender::new(None), Sites::default());
        if let Some(relay) = &relay {
            followers.push(follow_families(relay, &families, &moved));
            followers.push(ranges::follow_sites(relay, &sites, &moved));
        }
        let deadline = Instant::now() + NAMES_WAIT;
        for peer in &peers {
            peer.resolved(deadline).await;
        }
        Self(Rc::new(Inner {
            relay,
            peers: RefCell::new(peers),
            discovery: plan.discovers.map(Discovery::new),
            plain: Some(PlainWays::new(plan.clone(), store.clone())),
            bypass: Bypass::default(),
            exposures: Exposures::default(),
            sites,
            lan_hosts: LanHosts::default(),
            surroundings: Some(Rc::new(Surroundings::new(
                plan,
                store,
                mark,
                journal.clone(),
            ))),
            journal,
            families,
            moved,
            followers: RefCell::new(followers),
        }))
    }

    /// The relay's client.
    pub fn relay(&self) -> Option<&Client> {
        self.0.relay.as_ref()
    }

    /// What went without any of them.
    pub fn bypass(&self) -> &Bypass {
        &self.0.bypass
    }

    /// What of the relay leads here.
    pub fn exposures(&self) -> &Exposures {
        &self.0.exposures
    }

    /// From now on what the store keeps leads here, as it is now and as it will be. Must be called
    /// within a `LocalSet`.
    pub fn expose_kept(&self, store: &Store) {
        let (Some(relay), Some(rules)) = (self.relay(), self.rules()) else {
            return;
        };
        let (relay, rules, store) = (relay.clone(), rules.clone(), store.clone());
        let exposures = self.0.exposures.clone();
        let following = async move { exposures.follow_store(&relay, &rules, &store).await };
        let mut followers = self.0.followers.borrow_mut();
        followers.push(tokio::task::spawn_local(following).abort_handle());
    }

    /// The host by which others find the relay that is used.
    pub fn relay_host(&self) -> Option<Host> {
        let place = self.relay()?.snapshot().relay.unwrap_or(0);
        let surroundings = self.0.surroundings.as_ref()?;
        surroundings.plan.relay_host(place)
    }

    /// The rules for what is carried.
    pub fn rules(&self) -> Option<&RuleBook> {
        let surroundings = self.0.surroundings.as_ref()?;
        Some(&surroundings.plan.rules)
    }

    /// The links that are known.
    pub fn roll(&self) -> Option<&LinkRoll> {
        let surroundings = self.0.surroundings.as_ref()?;
        Some(&surroundings.plan.roll)
    }

    /// What links that fail are asked for, to find login pages.
    pub(crate) fn portal_probe(&self) -> Option<Probe> {
        self.0.surroundings.as_ref()?.plan.portal_probe.clone()
    }

    /// Who is asked for names in the place of this host's resolvers; none: nobody.
    pub(crate) fn link_resolvers(&self) -> Vec<SocketAddr> {
        let surroundings = self.0.surroundings.as_ref();
        surroundings.map_or_else(Vec::new, |it| it.plan.resolvers.clone())
    }

    /// Whether there are any peers.
    pub(crate) fn has_peers(&self) -> bool {
        !self.0.peers.borrow().is_empty()
    }

    fn peers(&self) -> Vec<Rc<Peer>> {
        self.0.peers.borrow().clone()
    }

    /// A session straight to `target`, and what to ask for there; waits a moment for one that is
    /// being set up. Whether anybody speaks tabane at another address is found out for the next
    /// time, where what bears `label` may go there.
    pub async fn straight(
        &self,
        target: &Target,
        label: Option<&Label>,
    ) -> Option<(Client, Target)> {
        let found = self
            .peers()
            .into_iter()
            .find_map(|peer| Some((peer.serves(target)?, peer)));
        let Some((target, peer)) = found else {
            self.wonder(target, label);
            return None;
        };
        let client = peer.session(self.0.surroundings.as_ref()?).await?;
        Some((client, target))
    }

    /// What is known of the relay at this moment.
    pub(crate) fn relay_state(&self) -> RelayState {
        match self.relay() {
            None => RelayState::Absent,
            Some(relay) if relay.is_given_up() => RelayState::Silent,
            Some(_) => RelayState::Reachable,
        }
    }

    /// By which link what bears `label` goes to `dest` without any of them.
    ///
    /// # Errors
    /// The user allows none that leads there.
    pub(crate) async fn plain_way(
        &self,
        dest: SocketAddr,
        label: Option<&Label>,
    ) -> Result<MeteredWay, NoPlainWay> {
        let Some(plain) = &self.0.plain else {
            return Ok(MeteredWay::unmetered());
        };
        plain.choose(dest, label, &self.snapshots()).await
    }

    /// What goes by several links without any of them; `None` where the routing table has its way.
    pub fn plain_bond(&self) -> Option<PlainBond> {
        self.0.plain.as_ref().map(PlainWays::bond)
    }

    /// Finds out in the background whether `target` is a peer.
    fn wonder(&self, target: &Target, label: Option<&Label>) {
        let (Some(discovery), Target::Address(address)) = (&self.0.discovery, target) else {
            return;
        };
        let ip = address.ip().to_canonical();
        if self.0.peers.borrow().len() >= MAX_PEERS || !discovery.take_turn(ip) {
            return;
        }
        let class = label
            .map(|label| label.treatment().class)
            .unwrap_or_default();
        let inner = Rc::downgrade(&self.0);
        let asking = async move {
            let surroundings = inner.upgrade()?.surroundings.clone()?;
            match discovery::ask(&surroundings, ip, class).await {
                Ok(key) => Self(inner.upgrade()?).meet(ip, key?),
                Err(error) => tracing::debug!(%ip, "not asked: {error:#}"),
            }
            Some(())
        };
        tokio::task::spawn_local(asking);
    }

    /// Somebody at `ip` speaks tabane, and says that this is its key.
    fn meet(&self, ip: IpAddr, key: PublicKey) {
        let address = SocketAddr::new(ip, DEFAULT_PORT);
        let entry = PeerEntry::met(address, key, unix_seconds());
        let name = RelayName::from_host(&Host::Ip(ip));
        let mut peers = self.0.peers.borrow_mut();
        if peers
            .iter()
            .any(|peer| *peer.name() == name || peer.entry().has_address(ip))
        {
            return;
        }
        let peer = Rc::new(Peer::unproved(name, entry));
        let mut followers = self.0.followers.borrow_mut();
        followers.push(follow(&peer, &self.0.moved));
        peers.push(peer.clone());
        let Some(surroundings) = self.0.surroundings.clone() else {
            return;
        };
        // The next connection finds the session.
        let meeting = async move {
            peer.resolved(Instant::now() + NAMES_WAIT).await;
            peer.session(&surroundings).await;
        };
        followers.push(tokio::task::spawn_local(meeting).abort_handle());
    }

    /// By which families the relay reaches others, as far as it has said so.
    pub fn families(&self) -> Families {
        self.0.families.borrow().unwrap_or(Families::BOTH)
    }

    /// Waits until the relay has said by which families it reaches others, for a moment at most.
    pub(crate) async fn families_known(&self) {
        let mut families = self.0.families.subscribe();
        let known = families.wait_for(Option::is_some);
        if self.relay().is_some() && timeout(FAMILIES_WAIT, known).await.is_err() {
            tracing::debug!("the relay has not said by which families it reaches others");
        }
    }

    /// Waits until [`captured`](Self::captured) or [`families`](Self::families) are others.
    pub async fn moved(&self) {
        self.0.moved.notified().await;
    }

    /// Has a session recorded by its number: the relay's, where none is named. `None`: there is no
    /// such session, or it is recorded already.
    pub fn trace(&self, session: Option<u64>) -> Option<SessionTrace> {
        let ends = self.clients();
        let mut numbered = ends
            .iter()
            .map(|end| (end.client.snapshot().number, &end.client));
        let found = match session {
            None => numbered.next(),
            Some(wanted) => numbered.find(|(number, _)| *number == wanted),
        };
        found.and_then(|(_, client)| client.trace())
    }

    /// All clients there are, the relay's first.
    pub(crate) fn clients(&self) -> Vec<FarEnd> {
        let relay = self.0.relay.iter().map(|client| FarEnd {
            peer: None,
            client: client.clone(),
        });
        let peers = self.peers();
        let peers = peers.iter().filter_map(|peer| {
            Some(FarEnd {
                peer: Some((peer.name().to_string(), peer.key().to_string())),
                client: peer.client()?,
            })
        });
        relay.chain(peers).collect()
    }

    /// What there is to know of each, the relay's first.
    pub fn snapshots(&self) -> Vec<ClientSnapshot> {
        self.seen().into_iter().map(|seen| seen.snapshot).collect()
    }

    /// The same with whom it is of.
    pub fn seen(&self) -> Vec<Seen> {
        let seen = |end: FarEnd| {
            let peer = end.peer;
            let all = end.client.snapshots().into_iter().enumerate();
            all.map(move |(place, snapshot)| Seen {
                peer: peer.clone(),
                is_present: place == 0,
                snapshot,
            })
        };
        self.clients().into_iter().flat_map(seen).collect()
    }

    /// What happened lately.
    pub fn journal(&self) -> Journal {
        self.0.journal.clone()
    }

    /// Follows a wish of the user's for a link, in all sessions and those to come.
    ///
    /// # Errors
    /// There is no link of this name, or the weight is no share.
    pub fn wish_link(&self, name: &str, wish: LinkWish) -> Result<(), LinkError> {
        for end in self.clients() {
            end.client.wish_link(name, wish)?;
        }
        if let Some(surroundings) = &self.0.surroundings {
            surroundings.wish(name, wish);
        }
        if let Some(plain) = &self.0.plain {
            plain.on_wish(&self.snapshots());
        }
        Ok(())
    }

    /// Waits until the relay does not want us any more, and says why; for ever where there is none.
    pub fn closed(&self) -> impl Future<Output = CloseReason> + use<> {
        let closed = self.relay().map(Client::closed);
        async move {
            match closed {
                Some(closed) => closed.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Says good-bye to all of them.
    pub async fn close(&self) {
        self.0.stop_following();
        self.0.exposures.stop();
        self.0.sites.stop();
        let peers = self.peers();
        let peers = peers.iter().filter_map(|peer| peer.stop());
        for client in peers.chain(self.relay().cloned()).collect::<Vec<_>>() {
            client.close().await;
        }
    }
}

impl From<Client> for FarEnds {
    /// A relay without peers beside it.
    fn from(relay: Client) -> Self {
        Self(Rc::new(Inner {
            journal: relay.journal(),
            relay: Some(relay),
            peers: RefCell::default(),
            surroundings: None,
            discovery: None,
            bypass: Bypass::default(),
            exposures: Exposures::default(),
            sites: Sites::default(),
            lan_hosts: LanHosts::default(),
            plain: None,
            families: watch::Sender::new(None),
            moved: Rc::default(),
            followers: RefCell::default(),
        }))
    }
}

/// Follows by which families the relay reaches others, and tells `moved`.
fn follow_families(
    relay: &Client,
    families: &watch::Sender<Option<Families>>,
    moved: &Rc<Notify>,
) -> AbortHandle {
    let (relay, families, moved) = (relay.clone(), families.clone(), moved.clone());
    let following = async move {
        let tell = |said| {
            if families.send_replace(Some(said)) != Some(said) {
                moved.notify_one();
            }
        };
        relay.follow_families(tell).await;
    };
    tokio::task::spawn_local(following).abort_handle()
}

/// Follows where a peer's names lead, and tells `moved`.
fn follow(peer: &Rc<Peer>, moved: &Rc<Notify>) -> AbortHandle {
    let (peer, moved) = (peer.clone(), moved.clone());
    let following = async move { peer.follow_names(|| moved.notify_one()).await };
    tokio::task::spawn_local(following).abort_handle()
}

impl Inner {
    fn stop_following(&self) {
        self.followers.borrow().iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_following();
        self.peers
            .borrow()
            .iter()
            .for_each(|peer| drop(peer.stop()));
    }
}

#[cfg(test)]
mod tests;
