//! A session for a command: the relay chosen, its names resolved, links found, and the session kept
//! on the links that come and go.
//!
//! Owns what may be asked of a session, what was asked before settings before defaults. How a
//! command waits for its first session is `first_answer`'s, what is carried through the session the
//! entrances' affair.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use tabane_base::{Destination, Duration, Host};
use tabane_core::{ClassId, ControllerKind, Identity, SchedulerKind, SessionConfig};
use tabane_linux::interfaces::{Interface, Watch};
use tabane_tunnel::{
    Client, ClientConfig, HostMonitor, LinkBind, RelayPeer, SessionNumbers, TlsPeer, UDP_PORTS,
    carrier::TLS_PORT,
};
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::environment;
use crate::lent_paths::LentPaths;
use crate::link_follower::LinkFollower;
use crate::portals::Probe;
use crate::rule_book::RuleBook;
use crate::udp_order::UdpOrder;
use tabane_store::{
    DirectPrefix, FleetMember, PeerEntry, RelayEntry, RelayName, Settings, Store, secret,
};
use tabane_uplinks::{
    LinkPolicy, LinkRoll, Table, Uplinks, gateways,
    lent_links::{self, Lender},
    links::{self, Links, is_named},
};

mod first_answer;
mod fleet;
mod names;

pub(crate) use names::resolve;

/// How long a command waits for a silent relay before it begins with the peers alone.
const RELAY_WAIT: Duration = Duration::from_secs(3);

/// What becomes of links that are named and missing.
const IN_TIME: &str = "what is missing is used when it comes";

/// What is asked of a session; what is left out, the settings say.
#[derive(Debug, Clone, Default)]
pub struct SessionOrder {
    /// The interfaces to use; none: every usable one.
    pub links: Vec<String>,
    /// The neighbours whose links are borrowed as well; none: all that are known, unless links are
    /// chosen.
    pub neighbours: Vec<RelayName>,
    /// The relays to use, the preferred first; none: every one that is known.
    pub relays: Vec<String>,
    /// How this end sends.
    pub sending: Sending,
    /// How UDP flows come out at the other end.
    pub udp_order: Option<UdpOrder>,
    /// Destinations are asked whether they speak tabane, and believed who they are.
    pub trust_first_use: bool,
}

/// How this end sends; the other end has its own say on what it sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sending {
    /// How packets are spread over links.
    pub scheduler: Option<SchedulerKind>,
    /// How fast each link is used.
    pub congestion: Option<ControllerKind>,
}

impl Sending {
    /// What was given, else what `other` has.
    fn or(self, other: Self) -> Self {
        Self {
            scheduler: self.scheduler.or(other.scheduler),
            congestion: self.congestion.or(other.congestion),
        }
    }

    /// Puts what was given into `session`.
    pub fn apply(self, session: &mut SessionConfig) {
        if let Some(scheduler) = self.scheduler {
            session.scheduler = scheduler;
        }
        if let Some(controller) = self.congestion {
            session.controller = controller;
        }
    }
}

impl SessionOrder {
    /// As if `--relay NAME` were all that was given.
    pub fn to_relay(name: &RelayName) -> Self {
        Self {
            relays: vec![name.to_string()],
            ..Self::default()
        }
    }

    /// The interfaces to use, by flag or by the settings; none named: every usable one.
    pub fn wanted_links(&self, store: &Store) -> Result<Vec<String>> {
        match self.links.is_empty() {
            true => Ok(store.settings()?.links),
            false => Ok(self.links.clone()),
        }
    }

    /// Whether this neighbour's link is left out because links were chosen.
    pub fn leaves_out(&self, neighbour: &RelayName, wanted: &[String]) -> bool {
        match self.neighbours.is_empty() {
            true => !wanted.is_empty(),
            false => !self.neighbours.contains(neighbour),
        }
    }
}

/// Everything that is known before the network is touched; by default there is nobody to have a
/// session with.
#[derive(Debug, Clone, Default)]
pub struct SessionPlan {
    /// The preferred first; none only where there are peers. Of a fleet, all its relays.
    relays: Vec<(RelayName, RelayEntry)>,
    /// The same, with what fleets say of them.
    members: Vec<FleetMember>,
    /// Relays and fleets as they were joined.
    joined: Vec<(RelayName, RelayEntry)>,
    /// The machines that are reached straight.
    pub peers: Vec<(RelayName, PeerEntry)>,
    /// The ranges that `config.toml` leaves to the commands' own network.
    pub direct: Vec<DirectPrefix>,
    links: Vec<String>,
    /// The neighbours whose links are paths of the session with a relay.
    lenders: Vec<Lender>,
    /// Those among them that were named.
    insisted: Vec<RelayName>,
    session: SessionConfig,
    /// One per host: plans of one process share it.
    pub monitor: HostMonitor,
    /// One per plan: what follows the policy file, and what is carried, share it.
    pub rules: RuleBook,
    /// One per plan: the links that are known, used or not.
    pub roll: LinkRoll,
    /// One per plan, once it is asked for.
    uplinks: Rc<OnceCell<Uplinks>>,
    /// Read for the first session: the others begin while packets flow.
    identity: Rc<OnceCell<Identity>>,
    /// One per plan: its sessions are shown together.
    numbers: SessionNumbers,
    udp_order: UdpOrder,
    /// What links that fail are asked for, to find login pages.
    pub(crate) portal_probe: Option<Probe>,
    /// Who is asked for names in the place of this host's resolvers, where everything goes by one
    /// link.
    pub(crate) resolvers: Vec<SocketAddr>,
    /// Destinations are asked whether they speak tabane, those in private ranges only if `true`.
    pub discovers: Option<bool>,
    /// What goes plainly may have several links.
    pub plain_by_several: bool,
}

impl SessionPlan {
    /// Flags before settings before defaults.
    pub fn new(order: SessionOrder, store: &Store) -> Result<Self> {
        let settings: Settings = store.settings()?;
        let peers = store.peers()?;
        let discovers = order.trust_first_use || settings.trust_first_use;
        let has_relays = !order.relays.is_empty() || !store.relays()?.is_empty();
        let joined = match has_relays || peers.is_empty() && !discovers {
            true => store.choose_relays(&order.relays)?,
            false => Vec::new(),
        };
        let members = store.members_of(&joined);
        let relays = members.iter();
        let relays = relays
            .map(|it| (it.name.clone(), it.entry.clone()))
            .collect();
        let mut session = SessionConfig::default();
        let set = Sending {
            scheduler: settings.scheduler,
            congestion: settings.congestion,
        };
        order.sending.or(set).apply(&mut session);
        let links = order.wanted_links(store)?;
        let lenders = match links.is_empty() || !order.neighbours.is_empty() {
            true => lent_links::find(&order.neighbours, store)?,
            false => Vec::new(),
        };
        Ok(Self {
            relays,
            members,
            joined,
            peers,
            direct: settings.direct.clone(),
            links,
            lenders,
            insisted: order.neighbours,
            session,
            udp_order: order.udp_order.unwrap_or_default(),
            portal_probe: Probe::wished(settings.portal_probe.as_deref())?,
            discovers: discovers.then_some(true),
            plain_by_several: true,
            ..Self::default()
        })
    }

    /// Without relay and peers: everything goes plainly by this link, and names are asked of these
    /// resolvers; none: of this host's.
    pub fn over_link(link: &str, resolvers: Vec<SocketAddr>) -> Self {
        Self {
            links: vec![link.to_owned()],
            resolvers,
            ..Self::default()
        }
    }

    /// Which of the links that were named, and of the interfaces `beside` them, are not there, in
    /// words; `None` where all are.
    ///
    /// # Errors
    /// The policy is faulty, or the kernel does not list its interfaces.
    pub async fn missing(&self, beside: &[String], store: &Store) -> Result<Option<String>> {
        let policy = LinkPolicy::load_here(store).await?;
        let interfaces = gateways::list(policy.policy()).await;
        let interfaces = interfaces.context("cannot list the interfaces")?;
        let missing = links::missing(&interfaces, &[&self.links, beside].concat());
        Ok(missing.map(|missing| format!("{missing}; {IN_TIME}")))
    }

    /// Nobody is asked whether a link that fails is behind a login page.
    pub fn ask_no_portals(&mut self) {
        self.portal_probe = None;
    }

    /// The relays' names and keys, for display.
    pub fn relays(&self) -> Vec<(String, String)> {
        let pairs = self.relays.iter();
        let pairs = pairs.map(|(name, relay)| (name.to_string(), relay.key.to_string()));
        pairs.collect()
    }

    /// The host by which others find a relay, by its place.
    pub(crate) fn relay_host(&self, place: usize) -> Option<Host> {
        let (_, relay) = self.relays.get(place)?;
        Some(relay.addresses.first()?.host.clone())
    }

    /// What an error is about.
    fn subject(&self) -> String {
        let names: Vec<_> = self.relays.iter().map(|(name, _)| name.as_str()).collect();
        match names[..] {
            [only] => format!("relay {only}"),
            _ => format!("relays {}", names.join(", ")),
        }
    }

    /// The session with the relay, if one is known. A silent relay is waited for only where there
    /// are no peers beside it. Must be called within a `LocalSet`.
    pub(crate) async fn connect_relay(&self, store: &Store) -> Result<Option<Client>> {
        Ok(match (self.has_relays(), self.peers.is_empty()) {
            (true, true) => Some(self.connect(store).await?),
            (true, false) => Some(self.connect_or_go_on(store).await?),
            (false, _) => None,
        })
    }

    /// A session with the relay, or one that is still being set up when [`RELAY_WAIT`] is over.
    async fn connect_or_go_on(&self, store: &Store) -> Result<Client> {
        let client = self.start(store, None).await?;
        tokio::select! {
            () = client.until_reachable(true) => {}
            reason = client.closed() => bail!("{}: {reason}", self.subject()),
            () = sleep(RELAY_WAIT) => tracing::warn!(
                "{} does not answer yet: peers are reached, the rest waits",
                self.subject()
            ),
        }
        Ok(client)
    }

    /// Whether any relay is known.
    pub fn has_relays(&self) -> bool {
        !self.relays.is_empty()
    }

    /// Begins to set up a session with `peer`, as [`start`](Self::start) does; the second is what
    /// follows links and policy for it.
    pub async fn start_peer(
        &self,
        store: &Store,
        peer: RelayPeer,
        mark: Option<u32>,
    ) -> Result<(Client, AbortHandle)> {
        let uplinks = self.uplinks(store).await?;
        let table = uplinks.table();
        let mut links = table.links();
        links.values_mut().for_each(|bind| bind.memory = None);
        let config = ClientConfig {
            mark,
            ..self.config(store, vec![peer], &links)?
        };
        let client = Client::start(config)?;
        // Neighbours' links are the relay's session's alone.
        let follower = self.follower(&client, uplinks, table, links, LentPaths::default());
        let following = tokio::task::spawn_local(follower.of_peer().run());
        Ok((client, following.abort_handle()))
    }

    /// The links of this host. Must be called within a `LocalSet`.
    pub async fn uplinks(&self, store: &Store) -> Result<Uplinks> {
        let start = || Uplinks::start(store, self.links.clone(), self.roll.clone());
        Ok(self.uplinks.get_or_try_init(start).await?.clone())
    }

    /// The same, once anybody has asked for them.
    pub(crate) fn known_uplinks(&self) -> Option<&Uplinks> {
        self.uplinks.get()
    }

    /// Those of `table` that may carry what belongs to `class`.
    pub fn allowed(&self, table: &Table, class: ClassId) -> Vec<LinkBind> {
        let facts: Vec<_> = table.facts().collect();
        let mut links: Vec<LinkBind> = table.links().into_values().collect();
        if let Some(allowed) = self.rules.links_of(class, &facts) {
            links.retain(|link| allowed.contains(&link.name));
        }
        links
    }

    /// Whether nothing forbids what belongs to `class` to leave by an interface that is no link.
    pub(crate) fn tolerates(&self, interface: &Interface, table: &Table, class: ClassId) -> bool {
        let is_wanted = table.wanted.is_empty() || is_named(interface, &table.wanted);
        let facts = [table.policy.facts(interface)];
        let by_rules = self.rules.links_of(class, &facts);
        is_wanted
            && by_rules.is_none_or(|allowed| !allowed.is_empty())
            && table.policy.terms(interface).path.is_some()
    }

    /// How long a session that has fallen silent is waited for.
    pub fn patience(&self) -> Duration {
        self.session.idle_timeout
    }

    /// Begins to set up the session, over the links there are and those that will be, however long
    /// that takes; its sockets carry `mark`. Relays whose names cannot be resolved are looked up
    /// again and again: at boot there may be no network yet. Must be called within a `LocalSet`.
    pub async fn start(&self, store: &Store, mark: Option<u32>) -> Result<Client> {
        let uplinks = self.uplinks(store).await?;
        let table = uplinks.table();
        if let Some(missing) = links::missing(&table.interfaces, &table.wanted) {
            tracing::warn!("{missing}; {IN_TIME}");
        }
        let links = table.links();
        let (peers, fault) = self.resolve().await;
        if let Some(fault) = fault {
            tracing::warn!("{fault:#}");
        }
        let known = peers.iter().map(|peer| peer.addrs.clone()).collect();
        let every: Vec<LinkBind> = links.values().cloned().collect();
        let config = ClientConfig {
            mark,
            merits: self.first_merits(&every).await,
            ..self.config(store, peers, &links)?
        };
        let client = Client::start(config);
        let client = client.with_context(|| self.subject())?;
        self.follow_names(&client, known)?;
        self.follow_fleets(&client, store);
        // What changed while the name was resolved shows with the next change, or at once.
        let lent = self.lent_paths(&client, store, mark)?;
        let follower = self.follower(&client, uplinks, table, links, lent);
        tokio::task::spawn_local(follower.run());
        Ok(client)
    }

    /// Tells `client` of the relays' addresses as they come to be known, or change.
    fn follow_names(&self, client: &Client, known: Vec<Vec<SocketAddr>>) -> Result<()> {
        let is_name = |address: &Destination| matches!(address.host, Host::Name(_));
        let mut relays = self.relays.iter();
        if relays.any(|(_, relay)| relay.addresses.iter().any(is_name)) {
            let watch = Watch::start().context("cannot watch the interfaces")?;
            let following = names::follow(client.clone(), self.relays.clone(), known, watch);
            tokio::task::spawn_local(following);
        }
        Ok(())
    }

    fn follower(
        &self,
        client: &Client,
        uplinks: Uplinks,
        table: Rc<Table>,
        links: Links,
        lent: LentPaths,
    ) -> LinkFollower {
        let (client, rules) = (client.clone(), self.rules.clone());
        LinkFollower::new(client, uplinks, table, links, rules, lent)
    }

    /// The neighbours' links for a session with a relay; a peer is near or reached by own links.
    fn lent_paths(&self, client: &Client, store: &Store, mark: Option<u32>) -> Result<LentPaths> {
        if self.lenders.is_empty() {
            return Ok(LentPaths::default());
        }
        let identity = store.neighbour_identity()?;
        let (lenders, insisted) = (self.lenders.clone(), self.insisted.clone());
        Ok(LentPaths::start(lenders, insisted, identity, client, mark))
    }

    /// Connections wait so long for a relay that does not answer.
    pub fn wait_at_most(&mut self, wait: Duration) {
        self.session.idle_timeout = wait;
    }

    fn identity(&self, store: &Store) -> Result<Identity> {
        if let Some(known) = self.identity.get() {
            return Ok(known.clone());
        }
        let read = store.identity()?;
        self.identity.set(read.clone()).context("it is read once")?;
        Ok(read)
    }

    fn config(&self, store: &Store, relays: Vec<RelayPeer>, links: &Links) -> Result<ClientConfig> {
        Ok(ClientConfig {
            merits: Vec::new(),
            identity: self.identity(store)?,
            relays,
            links: links.values().cloned().collect(),
            session: self.session.clone(),
            monitor: self.monitor.clone(),
            udp_order: self.udp_order.0,
            seed: secret::random(),
            numbers: self.numbers.clone(),
            proxy: environment::tls_proxy(|name| std::env::var(name).ok()),
            mark: None,
        })
    }

    /// The relays with their addresses, and why one has none. Such a one is kept, so that its place
    /// in the list says who it is; it cannot be reached until its name is known.
    async fn resolve(&self) -> (Vec<RelayPeer>, Option<anyhow::Error>) {
        let mut peers = Vec::new();
        let mut fault = None;
        for (name, relay) in &self.relays {
            let addrs = resolve(&relay.addresses).await.unwrap_or_else(|error| {
                fault = Some(error);
                Vec::new()
            });
            peers.push(peer_of(name, relay, addrs));
        }
        (peers, fault)
    }
}

/// A relay as sessions know it.
fn peer_of(name: &RelayName, relay: &RelayEntry, addrs: Vec<SocketAddr>) -> RelayPeer {
    RelayPeer {
        name: name.to_string(),
        key: relay.key,
        addrs,
        token: Some(relay.token.as_str().as_bytes().to_vec()),
        udp_ports: UDP_PORTS.to_vec(),
        tls: Some(TlsPeer {
            port: TLS_PORT,
            name: relay.addresses.iter().find_map(|it| match &it.host {
                Host::Name(name) => Some(name.clone()),
                Host::Ip(_) => None,
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tabane_store::Scratch;

    use super::*;

    #[test]
    fn later_sessions_ask_no_disk_who_we_are() {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().to_owned())).unwrap();
        let plan = SessionPlan::default();
        let first = plan.identity(&store).unwrap();
        std::fs::remove_dir_all(scratch.path()).unwrap();
        std::fs::write(scratch.path(), "no directory").unwrap();
        let later = plan.identity(&store).unwrap();
        assert_eq!(later.public_key(), first.public_key());
    }
}
