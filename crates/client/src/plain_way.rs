//! Which link a connection takes that goes without a session: the routing table's choice where the
//! user allows it, else the best link that he does.
//!
//! Asks for that choice (`choice`), and owns that what goes so is booked to the link's budget.
//! "Never on X" holds for what is not carried as well: better no connection than one by a link that
//! was forbidden. A connection that is there goes on when the budget is used up: it has no other
//! link. Where several links may carry it and none is dearer than the best, its server is offered
//! all of them (`multipath`).

mod choice;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use tabane_core::{ClassId, PathPolicy};
use tabane_linux::Egress;
use tabane_tunnel::{ClientSnapshot, Label, LinkBind};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::client_session::SessionPlan;
use crate::multipath::{Leg, Multipath, Offer};
use crate::plain::{self, MeteredWay, PlainWay};
use crate::plain_meter::{Carried, Meter};
use tabane_store::{Store, is_private};
use tabane_uplinks::{Table, Uplinks};

pub(crate) use choice::NoPlainWay;
use choice::{Candidate, Choice, together};

/// Any address that is on the internet.
const ANYWHERE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ANYWHERE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

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
    ) -> Result<MeteredWay, NoPlainWay> {
        let source = source_for(dest).await.ok();
        if source.is_none() && dest.is_ipv6() {
            // Whoever connects is told the same.
            return Ok(MeteredWay::unmetered());
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
            return Ok(MeteredWay {
                way,
                meter: Meter::default(),
                offer: None,
            });
        };
        let meter = self.meter(link.to_owned(), uplinks.clone());
        let offer = self.offer(dest, label, link, &uplinks, &meter);
        Ok(MeteredWay { way, meter, offer })
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
                    keeper.carried.due().await;
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
                routes: interface.default_routes.clone(),
            };
            // Of two modems that give the same address, nobody could say which carries what.
            if !legs.iter().any(|leg| leg.addresses.contains(&address)) {
                legs.push(leg);
            }
        }
        legs
    }
}

fn class_of(label: Option<&Label>) -> ClassId {
    let class = label.map(|label| label.treatment().class);
    class.unwrap_or_default()
}

impl MeteredWay {
    /// By the routing table, at nobody's cost.
    pub(crate) fn unmetered() -> Self {
        Self {
            way: PlainWay::Routed,
            meter: Meter::default(),
            offer: None,
        }
    }
}

/// Our address towards `dest`, as the routing table has it; nothing is sent.
async fn source_for(dest: SocketAddr) -> io::Result<IpAddr> {
    let socket = plain::connect_udp(dest, &PlainWay::Routed).await?;
    Ok(socket.local_addr()?.ip())
}
