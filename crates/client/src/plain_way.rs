//! Which link a connection takes that goes without a session: the routing table's choice where the
//! user allows it, else the best link that he does.
//!
//! Owns that choice, and that what goes so is booked to the link's budget. "Never on X" holds for
//! what is not carried as well: better no connection than one by a link that was forbidden. A
//! connection that is there goes on when the budget is used up: it has no other link. Where several
//! links may carry it and none is dearer than the best, its server is offered all of them
//! (`multipath`).

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use tabane_base::{Prefix, Translator};
use tabane_core::{ClassId, PathPolicy};
use tabane_linux::{
    Egress,
    interfaces::{Interface, Kind},
};
use tabane_tunnel::{ClientSnapshot, Label, LinkBind};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::client_session::SessionPlan;
use crate::multipath::{Leg, Multipath, Offer};
use crate::plain::{self, Passage, PlainWay};
use crate::plain_meter::{Carried, Meter};
use tabane_store::{Store, is_private};
use tabane_uplinks::{COUNT_INTERVAL, Table, Uplinks};

/// Any address that is on the internet.
const ANYWHERE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ANYWHERE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// No link that could carry it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("neither the relay nor a link that the policy allows leads there")]
pub(crate) struct NoPlainWay;

/// The ways of one instance.
pub(crate) struct PlainWays {
    plan: SessionPlan,
    store: Store,
    carried: Rc<Carried>,
    keeper: OnceCell<AbortHandle>,
    outlook: Rc<Outlook>,
    multipath: OnceCell<Result<Rc<Multipath>, String>>,
    follower: OnceCell<AbortHandle>,
}

/// Which links may carry what, at this moment.
struct Outlook {
    plan: SessionPlan,
    /// What the user wishes of the running instance's links: whether one is paused, and its weight.
    wishes: RefCell<BTreeMap<String, (bool, f64)>>,
    changes: watch::Sender<()>,
}

/// What goes plainly by several links, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainBond {
    /// The links that what no rule concerns may have; none where they are fewer than two.
    pub links: Vec<String>,
    /// Connections whose servers speak multipath TCP, now.
    pub connections: u64,
    /// The same so far.
    pub connections_so_far: u64,
    /// Why there is none.
    pub problem: Option<String>,
}

/// Books what was carried, also as it ends.
struct Keeper {
    carried: Rc<Carried>,
    uplinks: Uplinks,
}

/// A link that may carry a connection.
#[derive(Debug, Clone)]
struct Candidate {
    name: String,
    egress: Egress,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    /// What leads to IPv4, where it has none.
    translators: Vec<Translator>,
    policy: PathPolicy,
}

/// What the choice is made of.
struct Choice<'a> {
    dest: IpAddr,
    /// Where the routing table would send it from; `None` where it leads nowhere.
    source: Option<IpAddr>,
    interfaces: &'a [Interface],
    candidates: Vec<Candidate>,
}

impl PlainWays {
    pub(crate) fn new(plan: SessionPlan, store: Store) -> Self {
        let outlook = Outlook {
            plan: plan.clone(),
            wishes: RefCell::default(),
            changes: watch::Sender::new(()),
        };
        Self {
            plan,
            store,
            carried: Rc::default(),
            keeper: OnceCell::new(),
            outlook: Rc::new(outlook),
            multipath: OnceCell::new(),
            follower: OnceCell::new(),
        }
    }

    /// The way to `dest` of what bears `label`. `snapshots` tell what is paused and how links are
    /// used at this moment.
    ///
    /// # Errors
    /// [`NoPlainWay`], where every way is by a link that may not carry it.
    pub(crate) async fn choose(
        &self,
        dest: SocketAddr,
        label: Option<&Label>,
        snapshots: &[ClientSnapshot],
    ) -> Result<Passage, NoPlainWay> {
        let source = source_for(dest).await.ok();
        if source.is_none() && dest.is_ipv6() {
            // Whoever connects is told the same.
            return Ok(Passage::unmetered());
        }
        let uplinks = self.plan.uplinks(&self.store).await.map_err(|error| {
            tracing::warn!("cannot tell which link may be used: {error:#}");
            NoPlainWay
        })?;
        let table = uplinks.table();
        self.outlook.learn(snapshots);
        let class = class_of(label);
        let choice = Choice {
            dest: dest.ip().to_canonical(),
            source: source.map(|it| it.to_canonical()),
            interfaces: &table.interfaces,
            candidates: self.outlook.candidates(&table, label),
        };
        let way = choice.make(|interface| {
            !self.outlook.is_paused(&interface.name)
                && self.plan.tolerates(interface, &table, class)
        })?;
        let Some(link) = choice.billed(&way) else {
            return Ok(Passage {
                way,
                meter: Meter::default(),
                offer: None,
            });
        };
        let meter = self.meter(link.to_owned(), uplinks.clone());
        let offer = self.offer(dest, label, link, &uplinks, &meter);
        Ok(Passage { way, meter, offer })
    }

    /// The user wishes something else of links.
    pub(crate) fn on_wish(&self, snapshots: &[ClientSnapshot]) {
        self.outlook.learn(snapshots);
        self.outlook.changes.send_replace(());
    }

    /// What a connection that begins by `link` may have beside it.
    fn offer(
        &self,
        dest: SocketAddr,
        label: Option<&Label>,
        link: &str,
        uplinks: &Uplinks,
        meter: &Meter,
    ) -> Option<Offer> {
        if is_private(dest.ip()) || dest.ip() != dest.ip().to_canonical() {
            return None;
        }
        let (outlook, label) = (self.outlook.clone(), label.cloned());
        let table = uplinks.clone();
        let legs = move || outlook.legs(&table.table(), dest.ip(), label.as_ref());
        let now = legs();
        if now.len() < 2 || !now.iter().any(|leg| leg.link == link) {
            return None;
        }
        let multipath = self.multipath().as_ref().ok()?.clone();
        self.follow(uplinks);
        Some(Offer {
            multipath,
            legs: Box::new(legs),
            changes: self.outlook.changes.subscribe(),
            meter: meter.clone(),
        })
    }

    /// Opened with the first connection that may need it, or when it is looked at.
    fn multipath(&self) -> &Result<Rc<Multipath>, String> {
        self.multipath.get_or_init(|| {
            if !self.plan.plain_by_several {
                return Err("--strict keeps them to one link".to_owned());
            }
            Multipath::open().map_err(|error| {
                let problem = format!("{error:#}");
                tracing::debug!("plain connections take one link each: {problem}");
                problem
            })
        })
    }

    /// Tells connections under way when other links may carry them.
    fn follow(&self, uplinks: &Uplinks) {
        self.follower.get_or_init(|| {
            let mut table = uplinks.subscribe();
            let mut rules = self.plan.rules.revisions();
            let outlook = self.outlook.clone();
            let following = tokio::task::spawn_local(async move {
                loop {
                    let changed = tokio::select! {
                        changed = table.changed() => changed,
                        changed = rules.changed() => changed,
                    };
                    if changed.is_err() {
                        return;
                    }
                    outlook.changes.send_replace(());
                }
            });
            following.abort_handle()
        });
    }

    /// What goes by several links, and what may.
    pub(crate) fn bond(&self) -> PlainBond {
        let problem = self.multipath().as_ref().err().cloned();
        let table = self.plan.known_uplinks().map(Uplinks::table);
        let legs = |dest| {
            let table = table.as_ref()?;
            let legs = self.outlook.legs(table, dest, None);
            (legs.len() > 1).then_some(legs)
        };
        let legs = [ANYWHERE_V4, ANYWHERE_V6].into_iter().find_map(legs);
        let links = legs.filter(|_| problem.is_none()).unwrap_or_default();
        let multipath = self.multipath().as_ref();
        let (connections, connections_so_far) =
            multipath.map_or((0, 0), |multipath| multipath.connections());
        PlainBond {
            links: links.into_iter().map(|leg| leg.link).collect(),
            connections,
            connections_so_far,
            problem,
        }
    }

    fn meter(&self, link: String, uplinks: Uplinks) -> Meter {
        self.keeper.get_or_init(|| {
            let carried = self.carried.clone();
            let keeper = Keeper { carried, uplinks };
            let task = tokio::task::spawn_local(async move {
                loop {
                    keeper.carried.news.notified().await;
                    tokio::time::sleep(COUNT_INTERVAL).await;
                    keeper.book();
                }
            });
            task.abort_handle()
        });
        Meter::new(link, self.carried.clone())
    }
}

impl Keeper {
    /// Counts what was carried by links that have a budget.
    fn book(&self) {
        let table = self.uplinks.table();
        for (link, bytes) in self.carried.take() {
            if table.has_budget(&link) {
                self.uplinks.count(&link, bytes);
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.book();
    }
}

impl Drop for PlainWays {
    fn drop(&mut self) {
        let tasks = [self.keeper.get(), self.follower.get()];
        tasks.into_iter().flatten().for_each(AbortHandle::abort);
    }
}

impl Outlook {
    fn learn(&self, snapshots: &[ClientSnapshot]) {
        let links = snapshots.iter().flat_map(|snapshot| &snapshot.links);
        let wishes = links.map(|link| (link.name.clone(), (link.paused, link.policy.weight)));
        self.wishes.replace(wishes.collect());
    }

    fn is_paused(&self, link: &str) -> bool {
        let wishes = self.wishes.borrow();
        wishes.get(link).is_some_and(|(paused, _)| *paused)
    }

    /// The links that may carry what bears `label`.
    fn candidates(&self, table: &Table, label: Option<&Label>) -> Vec<Candidate> {
        let wishes = self.wishes.borrow();
        let candidate = |bind: LinkBind| {
            let wished = wishes.get(&bind.name).map_or(1.0, |(_, weight)| *weight);
            let weight = bind.policy.weight.min(wished);
            Candidate {
                egress: bind.egress.unwrap_or_else(|| Egress::interface(&bind.name)),
                v4: bind.v4,
                v6: bind.v6,
                translators: bind.translators,
                policy: PathPolicy {
                    weight,
                    ..bind.policy
                },
                name: bind.name,
            }
        };
        let mut allowed = self.plan.allowed(table, class_of(label));
        allowed.retain(|bind| !self.is_paused(&bind.name));
        allowed.into_iter().map(candidate).collect()
    }

    /// Those that may carry a connection to `dest` side by side.
    fn legs(&self, table: &Table, dest: IpAddr, label: Option<&Label>) -> Vec<Leg> {
        let mut legs: Vec<Leg> = Vec::new();
        for candidate in together(&self.candidates(table, label), dest) {
            let Some(interface) = table.interface(&candidate.name) else {
                continue;
            };
            let Some(address) = candidate.address_for(dest) else {
                continue;
            };
            let others = interface.addresses.iter().map(|it| it.address);
            let others = others.filter(|other| *other != address);
            let leg = Leg {
                link: candidate.name.clone(),
                interface: interface.index,
                addresses: std::iter::once(address).chain(others).collect(),
            };
            // Of two modems that give the same address, nobody could say which carries what.
            if !legs.iter().any(|leg| leg.addresses.contains(&address)) {
                legs.push(leg);
            }
        }
        legs
    }
}

impl Candidate {
    /// Ours towards `dest`.
    fn address_for(&self, dest: IpAddr) -> Option<IpAddr> {
        match dest {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// Nothing limits it that only a session keeps, and nothing leads to its gateway that the kernel
    /// gives a whole connection alone: a mark.
    fn is_free(&self) -> bool {
        let PathPolicy {
            weight,
            send_cap,
            receive_cap,
            ..
        } = self.policy;
        self.egress.mark.is_none() && weight >= 1.0 && send_cap.is_none() && receive_cap.is_none()
    }
}

/// Those that carry a connection to `dest` side by side: the best, and what is as good. The kernel
/// fills each as far as it goes, so none that has a share or a cap is among them.
fn together(candidates: &[Candidate], dest: IpAddr) -> Vec<&Candidate> {
    let fits = |it: &&Candidate| it.address_for(dest).is_some();
    let best = candidates.iter().filter(fits).map(|it| cost(&it)).min();
    let all = candidates.iter().filter(fits);
    all.filter(|it| it.is_free() && Some(cost(it)) == best)
        .collect()
}

fn class_of(label: Option<&Label>) -> ClassId {
    let class = label.map(|label| label.treatment().class);
    class.unwrap_or_default()
}

impl Passage {
    /// By the routing table, at nobody's cost.
    pub(crate) fn unmetered() -> Self {
        Self {
            way: PlainWay::Routed,
            meter: Meter::default(),
            offer: None,
        }
    }
}

impl Candidate {
    fn way(&self, dest: IpAddr) -> PlainWay {
        match self.translator(dest) {
            Some(translator) => PlainWay::Translated(self.egress.clone(), translator),
            None => PlainWay::Over(self.egress.clone()),
        }
    }

    /// What leads to `dest`, where nothing else does.
    fn translator(&self, dest: IpAddr) -> Option<Translator> {
        let IpAddr::V4(v4) = dest else { return None };
        let mut translators = self.translators.iter().filter(|_| self.v4.is_none());
        translators.find(|it| it.lead_to(v4).is_some()).copied()
    }
}

impl Choice<'_> {
    /// `tolerates` says of an interface that is no candidate whether it may carry it all the same:
    /// a VPN, or a network that leads to no internet.
    fn make(&self, tolerates: impl Fn(&Interface) -> bool) -> Result<PlainWay, NoPlainWay> {
        let fits = |candidate: &&Candidate| {
            let has_address = candidate.address_for(self.dest).is_some();
            has_address || candidate.translator(self.dest).is_some()
        };
        let best = self.candidates.iter().filter(fits).min_by_key(cost);
        let Some(routed) = self.routed() else {
            let best = best.filter(|_| self.source.is_none());
            return Ok(best.map_or(PlainWay::Routed, |best| best.way(self.dest)));
        };
        let is_ours = self.interfaces.iter().any(|it| has_address(it, self.dest));
        if is_ours || routed.kind == Kind::Loopback {
            return Ok(PlainWay::Routed);
        }
        let mut candidates = self.candidates.iter();
        match (candidates.find(|it| it.name == routed.name), best) {
            // Some systems leave the route of a pulled cable where it is.
            (_, Some(best)) if !routed.carrier && !self.is_near(routed) => Ok(best.way(self.dest)),
            // Neighbours are found on their own wire only.
            (Some(own), Some(best)) if cost(&best) < cost(&own) && !self.is_near(routed) => {
                Ok(best.way(self.dest))
            }
            (Some(_), _) => Ok(PlainWay::Routed),
            (None, _) if tolerates(routed) => Ok(PlainWay::Routed),
            (None, Some(best)) => Ok(best.way(self.dest)),
            (None, None) => Err(NoPlainWay),
        }
    }

    /// The link that has to pay for what takes this way; `None` for what stays on a near wire.
    fn billed<'a>(&'a self, way: &'a PlainWay) -> Option<&'a str> {
        let link = match way {
            PlainWay::Over(egress) | PlainWay::Translated(egress, _) => {
                let mut candidates = self.candidates.iter();
                return candidates
                    .find(|it| it.egress == *egress)
                    .map(|it| &*it.name);
            }
            PlainWay::Routed => self.routed()?,
        };
        let is_ours = self.interfaces.iter().any(|it| has_address(it, self.dest));
        (link.kind != Kind::Loopback && !is_ours && !self.is_near(link)).then_some(&link.name)
    }

    /// The link that the routing table has for it.
    fn routed(&self) -> Option<&Interface> {
        let source = self.source?;
        self.interfaces.iter().find(|it| has_address(it, source))
    }

    fn is_near(&self, interface: &Interface) -> bool {
        let mut addresses = interface.addresses.iter();
        addresses.any(|own| {
            let wire = Prefix {
                address: own.address,
                bits: own.prefix_bits,
            };
            wire.contains(self.dest)
        })
    }
}

/// What one would rather not use, in the order in which sessions use links.
fn cost(candidate: &&Candidate) -> (bool, u8, bool) {
    let policy = &candidate.policy;
    (policy.backup, policy.priority, policy.metered)
}

fn has_address(interface: &Interface, address: IpAddr) -> bool {
    interface.addresses.iter().any(|it| it.address == address)
}

/// Our address towards `dest`, as the routing table has it; nothing is sent.
async fn source_for(dest: SocketAddr) -> io::Result<IpAddr> {
    let socket = plain::connect_udp(dest, &PlainWay::Routed).await?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_linux::interfaces::{InterfaceAddress, Scope, State};

    fn interface(name: &str, address: &str, kind: Kind) -> Interface {
        Interface {
            index: 1,
            name: name.to_owned(),
            kind,
            up: true,
            state: State::Up,
            carrier: true,
            mtu: 1500,
            controller: None,
            addresses: vec![InterfaceAddress {
                address: address.parse().unwrap(),
                prefix_bits: 24,
                scope: Scope::Global,
                ready: true,
            }],
            default_routes: Vec::new(),
            gateways: Vec::new(),
            behind: None,
            advertised: tabane_linux::advertised::Advertised::default(),
        }
    }

    fn candidate(name: &str, policy: PathPolicy) -> Candidate {
        Candidate {
            name: name.to_owned(),
            egress: Egress::interface(name),
            v4: Some(Ipv4Addr::UNSPECIFIED),
            v6: None,
            translators: Vec::new(),
            policy,
        }
    }

    /// Wi-Fi and phone, the table preferring the phone.
    fn choose(dest: &str, candidates: Vec<Candidate>, tolerates: bool) -> Option<PlainWay> {
        choose_with(true, dest, candidates, tolerates)
    }

    fn choose_with(
        phone_carrier: bool,
        dest: &str,
        candidates: Vec<Candidate>,
        tolerates: bool,
    ) -> Option<PlainWay> {
        let mut interfaces = [
            interface("lo", "127.0.0.1", Kind::Loopback),
            interface("wlan0", "192.168.1.2", Kind::Wifi),
            interface("usb0", "192.168.42.2", Kind::Ethernet),
        ];
        interfaces[2].carrier = phone_carrier;
        let choice = Choice {
            dest: dest.parse().unwrap(),
            source: "192.168.42.2".parse().ok(),
            interfaces: &interfaces,
            candidates,
        };
        choice.make(|_| tolerates).ok()
    }

    fn over(name: &str) -> Option<PlainWay> {
        Some(PlainWay::Over(Egress::interface(name)))
    }

    #[test]
    fn the_routing_table_s_link_is_taken_where_it_may_be() {
        let any = || ["usb0", "wlan0"].map(|name| candidate(name, PathPolicy::default()));
        assert_eq!(
            choose("203.0.113.2", any().to_vec(), false),
            Some(PlainWay::Routed)
        );
        let wifi = vec![candidate("wlan0", PathPolicy::default())];
        assert_eq!(choose("203.0.113.2", wifi.clone(), false), over("wlan0"));
        // No link, but nothing forbids it: a VPN, say.
        assert_eq!(choose("203.0.113.2", wifi, true), Some(PlainWay::Routed));
        assert_eq!(choose("203.0.113.2", Vec::new(), false), None);
        // Nothing leaves the machine.
        assert_eq!(
            choose("192.168.1.2", Vec::new(), false),
            Some(PlainWay::Routed)
        );
    }

    #[test]
    fn what_costs_by_volume_is_spared_but_for_its_own_wire() {
        let metered = PathPolicy {
            metered: true,
            priority: 1,
            ..PathPolicy::default()
        };
        let both = vec![
            candidate("usb0", metered),
            candidate("wlan0", PathPolicy::default()),
        ];
        assert_eq!(choose("203.0.113.2", both.clone(), false), over("wlan0"));
        assert_eq!(choose("192.168.42.1", both, false), Some(PlainWay::Routed));
        let lonely = vec![candidate("usb0", metered)];
        assert_eq!(choose("203.0.113.2", lonely, false), Some(PlainWay::Routed));
    }

    #[test]
    fn a_pulled_cable_is_left_although_its_route_stands() {
        let wifi = vec![candidate("wlan0", PathPolicy::default())];
        let pulled = |dest, candidates| choose_with(false, dest, candidates, true);
        assert_eq!(pulled("203.0.113.2", wifi.clone()), over("wlan0"));
        // What is told then is told by the system.
        assert_eq!(pulled("203.0.113.2", Vec::new()), Some(PlainWay::Routed));
        assert_eq!(pulled("192.168.42.1", wifi), Some(PlainWay::Routed));
    }

    #[test]
    fn links_carry_side_by_side_what_none_of_them_is_dearer_for() {
        let with = |name, policy| candidate(name, policy);
        let any = PathPolicy::default;
        let metered = PathPolicy {
            metered: true,
            ..any()
        };
        let half = PathPolicy {
            weight: 0.5,
            ..any()
        };
        let capped = PathPolicy {
            receive_cap: Some(tabane_base::Rate::from_mbps(1)),
            ..any()
        };
        let names = |candidates: &[Candidate], dest: &str| -> Vec<String> {
            let all = together(candidates, dest.parse().unwrap()).into_iter();
            all.map(|it| it.name.clone()).collect()
        };
        let all = [
            with("wlan0", any()),
            with("eth0", any()),
            with("usb0", metered),
            with("wwan0", half),
            with("wwan1", capped),
        ];
        assert_eq!(names(&all, "203.0.113.2"), ["wlan0", "eth0"]);
        assert_eq!(names(&all[2..3], "203.0.113.2"), ["usb0"]);
        assert!(names(&all, "2001:db8::1").is_empty());
    }

    #[test]
    fn a_link_without_the_family_is_no_way() {
        let wifi = vec![candidate("wlan0", PathPolicy::default())];
        assert_eq!(choose("2001:db8::1", wifi, false), None);
    }
}
