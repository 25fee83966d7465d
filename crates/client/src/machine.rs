//! The whole machine's traffic, captured: hooks on the root group and what belongs to them.
//!
//! Owns the order of setting up and what follows the network: which destinations are left alone,
//! and whether anything is captured at all (only while the relay answers). What takes traffic up
//! lives in descriptors of this process, so that its end, by whatever signal, leaves the machine as
//! it was; the packet filter rules that may outlive it do nothing without it.

mod attending;
mod direct;
mod filter;
mod lan;
mod lock;
mod packets;

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use tabane_base::Prefix;
use tabane_linux::threads::aside;
use tabane_linux::{
    capture::Capture,
    cgroup::Cgroup,
    hooks::{HookConfig, Hooks},
    interfaces,
    routing::Routing,
};
use tokio::task::JoinHandle;

use crate::dead_families::{EVERYTHING, dead_families};
use crate::dispatcher::{Dispatcher, resolver_addresses};
use crate::doctor::has_net_admin;
use crate::far_ends::FarEnds;
use crate::interception::{hold_requests, show_plain_names};
use crate::multipath;
use crate::rule_book::RuleBook;
use crate::sources;
use tabane_tunnel::{Client, OWN_MARK};
use tabane_uplinks::links;

pub use attending::{CARRYING, PEERS_ALONE};
pub use direct::DirectRanges;
pub use lock::{Lock, Running};

use filter::{Filter, LanFilter, Sites};
use lan::Lan;
use packets::Packets;

/// What root must not have been deprived of.
const WANTED: &str = "that needs CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON (a container's \
                      `--cap-add`, once each); `tabane run` and `tabane proxy` need none";

/// Takes away what one that was killed has left.
///
/// # Errors
/// As the kernel says.
pub async fn clear_leftovers() -> Result<()> {
    sources::clear_leftovers().await?;
    clear_own_leftovers().await
}

/// The same without what other commands may be using.
async fn clear_own_leftovers() -> Result<()> {
    multipath::clear_leftovers();
    filter::clear_leftovers().await
}

/// What to carry beside the TCP and UDP of this machine's own programs.
#[derive(Debug, Clone)]
pub struct Extent {
    /// What is neither, where that is possible: pings at least.
    pub ping: bool,
    /// The interfaces with hosts behind them.
    pub lan: Vec<String>,
    /// Also while the relay does not answer: what no rule sends elsewhere waits for it.
    pub strict: bool,
}

/// A machine with hooks.
pub struct Machine {
    hooks: Hooks,
    direct: DirectRanges,
    filter: Rc<RefCell<Filter>>,
    packets: Option<Packets>,
    lan: Option<Lan>,
    capture: Option<Capture>,
    dispatcher: Option<Dispatcher>,
    far_ends: Option<FarEnds>,
    rules: Option<RuleBook>,
    strict: bool,
    /// There is no relay to carry anything else.
    only_peers: bool,
    tasks: Vec<JoinHandle<()>>,
}

impl Machine {
    /// Attaches hooks that leave everything alone until [`set_open`](Self::set_open).
    pub async fn set_up(direct: DirectRanges, extent: Extent) -> Result<Self> {
        const WHAT: &str = "cannot capture this machine's traffic";
        // Root of a container has less than root's rights.
        ensure!(has_net_admin(), "{WHAT}: {WANTED}");
        clear_own_leftovers().await?;
        let cgroup = Cgroup::root().context(WHAT)?;
        let mut capture = Capture::open(Some(OWN_MARK)).context(WHAT)?;
        hold_requests(&mut capture);
        let config = HookConfig {
            port: capture.port,
            capture_tcp: true,
            capture_udp: true,
            capture_udp6: capture.udp.has_v6(),
            exclude: Vec::new(),
            bypass_mark: Some(OWN_MARK),
            // Without the relay nothing of theirs goes there.
            leave_few_hops: !extent.strict,
            open: false,
        };
        let mut machine = Self {
            hooks: Hooks::attach(&cgroup, &config).context(WHAT)?,
            direct,
            filter: Rc::default(),
            packets: None,
            lan: None,
            capture: Some(capture),
            dispatcher: None,
            far_ends: None,
            rules: None,
            strict: extent.strict,
            only_peers: true,
            tasks: Vec::new(),
        };
        show_plain_names(&mut machine.hooks).await;
        machine.extend(extent).await?;
        machine.follow_network().await?;
        Ok(machine)
    }

    async fn extend(&mut self, extent: Extent) -> Result<()> {
        let routing = Rc::new(Routing::open()?);
        let direct = self.direct.prefixes().await?;
        let none = Sites::default();
        self.filter.borrow_mut().set_left_alone(direct, none)?;
        if !extent.lan.is_empty() {
            // Rules go by names, whoever bears them by then.
            let interfaces = interfaces::list().await.unwrap_or_default();
            if let Some(missing) = links::missing(&interfaces, &extent.lan) {
                tracing::warn!("--lan: {missing}; hosts behind it are carried when it comes");
            }
            let lan = Lan::set_up(&routing, &extent.lan).await?;
            self.filter.borrow_mut().set_lan(LanFilter {
                interfaces: extent.lan,
                port: lan.port(),
                ends_open: self.strict,
            })?;
            self.lan = Some(lan);
        }
        if extent.ping {
            // Less than all is better than nothing.
            if let Err(error) = self.carry_packets(routing).await {
                tracing::warn!("pings and other protocols are not carried: {error:#}");
                self.filter.borrow_mut().set_tun(None)?;
            }
        }
        Ok(())
    }

    async fn carry_packets(&mut self, routing: Rc<Routing>) -> Result<()> {
        let packets = Packets::set_up(routing, self.filter.clone(), self.strict).await?;
        self.filter.borrow_mut().set_tun(Some(packets.name()))?;
        self.packets = Some(packets);
        Ok(())
    }

    /// Carries what is captured from here on. Must be called within the `LocalSet` of the clients.
    pub fn serve(&mut self, far_ends: &FarEnds, rules: &RuleBook) {
        self.far_ends = Some(far_ends.clone());
        let Some(capture) = self.capture.take() else {
            return;
        };
        self.rules = Some(rules.clone());
        let dispatcher = Dispatcher::for_machine(far_ends.clone(), rules.clone(), self.strict);
        let flows = self.hooks.flows();
        let tcp = dispatcher
            .clone()
            .serve_tcp(capture.listener, flows.clone());
        let udp = dispatcher.clone().serve_udp(capture.udp, flows);
        self.tasks.push(tokio::task::spawn_local(tcp));
        self.tasks.push(tokio::task::spawn_local(udp));
        if let Some(lan) = self.lan.take() {
            let (tcp, udp) = (
                lan.serve_tcp(dispatcher.clone()),
                lan.serve_udp(dispatcher.clone()),
            );
            self.tasks.push(tokio::task::spawn_local(tcp));
            self.tasks.push(tokio::task::spawn_local(udp));
        }
        if let (Some(packets), Some(relay)) = (self.packets.take(), far_ends.relay()) {
            let packets = packets.serve(relay.clone(), far_ends.sites().clone());
            self.tasks.push(tokio::task::spawn_local(packets));
        }
        self.dispatcher = Some(dispatcher);
    }

    /// Whether nothing goes without the relay that no rule allows.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Captures what is new, or leaves it alone as if we were not there, but for what goes to
    /// peers, which need no relay, and to sites, which is refused. Where anything must not go
    /// without the relay it is all captured, and what may is led there.
    pub(crate) async fn set_open(&mut self, open: bool) -> Result<()> {
        let is_closed = self.strict || self.rules.as_ref().is_some_and(RuleBook::is_closed);
        let open = open || is_closed;
        self.only_peers = !open;
        let far_ends = self.far_ends.as_ref();
        if !self.strict {
            let relays = far_ends.and_then(FarEnds::relay).map(Client::relay_addrs);
            let relays = relays.into_iter().flatten().flatten();
            let relays = relays
                .map(|it| Prefix::host(it.ip().to_canonical()))
                .collect();
            // Pings to relays are all that suffers.
            if let Err(error) = self.filter.borrow_mut().set_relays(relays) {
                tracing::warn!("{error:#}");
            }
        }
        let has_others = far_ends.is_some_and(|it| it.has_peers() || !it.captured().is_empty());
        if has_others {
            // Before the gate opens for less than everything.
            self.follow_network().await?;
        }
        self.hooks
            .set_open(open || has_others)
            .context("cannot switch the hooks over")
    }

    /// Addresses, routes or resolvers may have changed.
    pub(crate) async fn follow_network(&mut self) -> Result<()> {
        let prefixes = self.direct.prefixes().await?;
        let far_ends = self.far_ends.as_ref();
        let captured = far_ends.map(FarEnds::captured).unwrap_or_default();
        let spared = far_ends.map(|it| it.sites().spared()).unwrap_or_default();
        // No packet waits for the disk.
        let resolvers = aside(resolver_addresses).await?;
        let captured = self.direct.not_given(captured);
        if self.only_peers && !captured.is_empty() {
            let left = [&EVERYTHING[..], &spared].concat();
            // What is asked of another site is asked of nobody else in its place.
            let asks = far_ends.is_some_and(|it| it.sites().have_names());
            let asked = if asks { &resolvers[..] } else { &[] };
            self.hooks.exclude(&left, asked, &captured)?;
        } else {
            // Questions to a resolver in them are carried all the same: the relay has one, too.
            let mut left = [&prefixes[..], &spared].concat();
            if let Some(far_ends) = &self.far_ends {
                left.extend(dead_families(far_ends).await);
            }
            self.hooks.exclude(&left, &resolvers, &captured)?;
        }
        let (sites, offered) = match far_ends.map(FarEnds::sites) {
            Some(sites) => (sites.captured(), sites.offered().await),
            None => Default::default(),
        };
        let sites = Sites {
            carried: self.direct.not_given(sites),
            spared,
            offered,
        };
        self.filter.borrow_mut().set_left_alone(prefixes, sites)?;
        if let Some(dispatcher) = &self.dispatcher {
            dispatcher.renew_resolvers(resolvers);
        }
        Ok(())
    }

    /// Takes everything away.
    pub async fn tear_down(self) -> Result<()> {
        filter::hold_flows();
        drop(self.hooks);
        self.tasks.iter().for_each(JoinHandle::abort);
        clear_leftovers().await
    }
}
