//! Which link a connection takes that goes without a session: the routing table's choice where the
//! user allows it, else the best link that he does.
//!
//! Owns that choice, and that what goes so is booked to the link's budget. "Never on X" holds for
//! what is not carried as well: better no connection than one by a link that was forbidden. A
//! connection that is there goes on when the budget is used up: it has no other link.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::{Prefix, Translator};
use tabane_core::{ClassId, PathPolicy};
use tabane_linux::{
    Egress,
    interfaces::{Interface, Kind},
};
use tabane_tunnel::{ClientSnapshot, LinkBind};
use tokio::task::AbortHandle;

use crate::client_session::SessionPlan;
use crate::plain::{self, Passage, PlainWay};
use crate::plain_meter::{Carried, Meter};
use tabane_store::Store;
use tabane_uplinks::{COUNT_INTERVAL, Uplinks};

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
    has_v4: bool,
    has_v6: bool,
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
        Self {
            plan,
            store,
            carried: Rc::default(),
            keeper: OnceCell::new(),
        }
    }

    /// The way to `dest` of what belongs to `class`. `snapshots` tell what is paused and how links
    /// are used at this moment.
    ///
    /// # Errors
    /// [`NoPlainWay`], where every way is by a link that may not carry it.
    pub(crate) async fn choose(
        &self,
        dest: SocketAddr,
        class: ClassId,
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
        let links = snapshots.iter().flat_map(|snapshot| &snapshot.links);
        let current: BTreeMap<_, _> = links.map(|link| (link.name.as_str(), link)).collect();
        let is_paused = |name: &str| current.get(name).is_some_and(|link| link.paused);
        let candidate = |bind: LinkBind| Candidate {
            egress: bind.egress.unwrap_or_else(|| Egress::interface(&bind.name)),
            has_v4: bind.v4.is_some(),
            has_v6: bind.v6.is_some(),
            policy: current
                .get(bind.name.as_str())
                .map_or(bind.policy, |link| link.policy),
            translators: bind.translators,
            name: bind.name,
        };
        let mut allowed = self.plan.allowed(&table, class);
        allowed.retain(|bind| !is_paused(&bind.name));
        let choice = Choice {
            dest: dest.ip().to_canonical(),
            source: source.map(|it| it.to_canonical()),
            interfaces: &table.interfaces,
            candidates: allowed.into_iter().map(candidate).collect(),
        };
        let way = choice.make(|interface| {
            !is_paused(&interface.name) && self.plan.tolerates(interface, &table, class)
        })?;
        let meter = match choice.billed(&way) {
            Some(link) => self.meter(link.to_owned(), uplinks.clone()),
            None => Meter::default(),
        };
        Ok(Passage { way, meter })
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
        if let Some(keeper) = self.keeper.get() {
            keeper.abort();
        }
    }
}

impl Passage {
    /// By the routing table, at nobody's cost.
    pub(crate) fn unmetered() -> Self {
        Self {
            way: PlainWay::Routed,
            meter: Meter::default(),
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
        let mut translators = self.translators.iter().filter(|_| !self.has_v4);
        translators.find(|it| it.lead_to(v4).is_some()).copied()
    }
}

impl Choice<'_> {
    /// `tolerates` says of an interface that is no candidate whether it may carry it all the same:
    /// a VPN, or a network that leads to no internet.
    fn make(&self, tolerates: impl Fn(&Interface) -> bool) -> Result<PlainWay, NoPlainWay> {
        let fits = |candidate: &&Candidate| match self.dest {
            IpAddr::V4(_) => candidate.has_v4 || candidate.translator(self.dest).is_some(),
            IpAddr::V6(_) => candidate.has_v6,
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
            behind: None,
            advertised: tabane_linux::advertised::Advertised::default(),
        }
    }

    fn candidate(name: &str, policy: PathPolicy) -> Candidate {
        Candidate {
            name: name.to_owned(),
            egress: Egress::interface(name),
            has_v4: true,
            has_v6: false,
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
    fn a_link_without_the_family_is_no_way() {
        let wifi = vec![candidate("wlan0", PathPolicy::default())];
        assert_eq!(choose("2001:db8::1", wifi, false), None);
    }
}
