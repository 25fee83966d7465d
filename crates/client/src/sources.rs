//! Connections and datagrams to hosts behind this machine in the name of whom they are for: servers
//! see and log the caller's own address.
//!
//! Owns whether that can be. Answers go to the caller's address, so they come here only from hosts
//! whose router this machine is; of any other the connection is opened from this machine's address
//! instead, and remembered to be so. The packet filter rule and the routing that bring answers to
//! the sockets do nothing without these: they may outlive the process. Visitors from the internet
//! are led in their own name or not at all.

mod visitors;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;

use anyhow::{Context, Result};
use tabane_base::{Duration, Prefix};
use tabane_linux::threads::aside;
use tabane_linux::{
    foreign, interfaces, nft,
    routing::{MarkRule, Routing},
};
use tabane_store::is_private;
use tabane_tunnel::OWN_MARK;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::OnceCell;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use crate::plain::{self, PlainWay};
use visitors::Visitors;

/// Where no other site or visitor is, whatever is told: this host, the wire, groups.
pub(crate) const NEVER: [&str; 5] = [
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::1/128",
    "fe00::/7",
];

const TABLE: &str = "tabane_sources";
/// What is said to the sockets: delivered here, whatever its address.
pub(crate) const ANSWERS: MarkRule = MarkRule {
    priority: 10_623,
    mark: 0x1069,
    table: 10_623,
};
/// Of sockets for datagrams.
const SOCKET_MARK: u32 = 0x106a;

/// A host of a LAN answers sooner, even one that wakes up; after this it is asked by this
/// machine's address as well.
const ROUTER_WAIT: Duration = Duration::from_secs(1);
/// How long a host is remembered that has another router.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Hosts that are remembered.
const MAX_HOSTS: usize = 1_024;
/// How long what is near is believed to be so.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// The rule and the routing, once in a process: what follows was said to its first caller.
static SET_UP: OnceCell<Result<(), String>> = OnceCell::const_new();

/// Whose name connections are opened in.
#[derive(Default)]
pub(crate) struct Sources {
    /// The interfaces with the hosts whose router this machine is.
    lan: RefCell<Vec<String>>,
    near: RefCell<Near>,
    looked_at: Cell<Option<Instant>>,
    /// Hosts that have another router, and since when that is known.
    elsewhere: RefCell<BTreeMap<IpAddr, Instant>>,
    /// The last host that was not shown its caller, and why.
    unshown: RefCell<Option<(IpAddr, String)>>,
    visitors: RefCell<Visitors>,
}

#[derive(Default)]
struct Near {
    /// All networks that this machine is in.
    all: Vec<Prefix>,
    /// Those of them whose router it is.
    routed: Vec<Prefix>,
}

impl Sources {
    /// This machine is the router of the hosts behind these interfaces.
    pub(crate) fn set_lan(&self, lan: &[String]) {
        *self.lan.borrow_mut() = lan.to_vec();
    }

    /// Connects to a host of this machine's site on behalf of `from`, of another site.
    pub(crate) async fn connect_for_site(
        &self,
        at: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<TcpStream> {
        match self.may_show_site(at, from).await {
            true => self.connect_tcp(at, from).await,
            false => own_tcp(at).await,
        }
    }

    /// The same for datagrams.
    pub(crate) async fn bind_for_site(
        &self,
        at: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<UdpSocket> {
        match self.may_show_site(at, from).await {
            true => self.connect_udp(at, from).await,
            false => own_udp(at).await,
        }
    }

    /// Connects on behalf of a visitor from the internet, in its name or not at all: whom a target
    /// keeps out by its address must not come in by this machine's. That a host does not answer
    /// is never taken for another router's doing, since whoever is kept out could bring it about.
    pub(crate) async fn connect_for_visitor(
        &self,
        at: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<TcpStream> {
        self.check_visitor(at, from).await?;
        let mut shown = pin!(foreign::connect_tcp(from, at, OWN_MARK));
        let connected = match timeout(ROUTER_WAIT, &mut shown).await {
            Ok(connected) => connected,
            Err(_) => {
                self.visitors.borrow_mut().note_silent(at.ip());
                shown.await
            }
        };
        if connected.as_ref().err().is_none_or(has_answered) {
            self.visitors.borrow_mut().note_answer(at.ip());
        }
        connected
    }

    /// The same for datagrams.
    pub(crate) async fn bind_for_visitor(
        &self,
        at: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<UdpSocket> {
        self.check_visitor(at, from).await?;
        foreign::connect_udp(from, at, OWN_MARK, SOCKET_MARK)
    }

    /// Why visitors are not led to a host, and what to do, where that shows of late.
    pub(crate) fn visitors_problem(&self) -> Option<String> {
        self.visitors.borrow().problem()
    }

    /// Why a host of those that `is_meant` does not see its callers' addresses.
    pub(crate) fn problem(&self, is_meant: impl Fn(IpAddr) -> bool) -> Option<String> {
        let unshown = self.unshown.borrow();
        let (host, why) = unshown.as_ref().filter(|(host, _)| is_meant(*host))?;
        Some(format!(
            "{host} sees this machine's address in the place of its callers': {why}"
        ))
    }

    async fn may_show_site(&self, at: SocketAddr, from: SocketAddr) -> bool {
        self.look().await;
        let is_routed = self.near.borrow().is_routed(at.ip());
        if !is_routed {
            let why = "this machine is its router by no interface that --lan names";
            self.note_unshown(at.ip(), why.to_owned());
        }
        is_routed && self.near.borrow().is_foreign(from.ip()) && self.can_show(at, from).await
    }

    /// That a host can be shown this visitor.
    async fn check_visitor(&self, at: SocketAddr, from: SocketAddr) -> io::Result<()> {
        self.look().await;
        let checked = match self.check_name(at, from) {
            Ok(()) => is_set_up().await,
            wrong => wrong,
        };
        checked.map_err(|why| {
            self.visitors.borrow_mut().note_fault(at.ip(), &why);
            io::Error::new(io::ErrorKind::PermissionDenied, why)
        })
    }

    /// The relay says where visitors are from; datagrams may be from anywhere. None may be taken
    /// for a host of private networks, which are trusted further.
    fn check_name(&self, at: SocketAddr, from: SocketAddr) -> Result<(), String> {
        let (host, ip) = (at.ip().to_canonical(), from.ip().to_canonical());
        let is_public = is_elsewhere(ip) && !is_private(ip) && self.near.borrow().is_foreign(ip);
        if host.is_ipv4() != ip.is_ipv4() {
            let (theirs, ours) = match ip.is_ipv4() {
                true => ("IPv4", "IPv6"),
                false => ("IPv6", "IPv4"),
            };
            return Err(format!(
                "{theirs} cannot be shown by {ours}: give the target an address of {theirs} and \
                 expose it by its name"
            ));
        }
        match is_public && !host.is_loopback() {
            true => Ok(()),
            false => Err(
                "only addresses of the internet are shown, and not to this machine \
                          itself: leave out --transparent for others"
                    .to_owned(),
            ),
        }
    }

    async fn can_show(&self, at: SocketAddr, from: SocketAddr) -> bool {
        if at.is_ipv4() != from.is_ipv4() {
            return false;
        }
        let since = self.elsewhere.borrow().get(&at.ip()).copied();
        if since.is_some_and(|since| since.elapsed() < REMEMBERED) {
            return false;
        }
        match is_set_up().await {
            Ok(()) => true,
            Err(why) => {
                self.note_unshown(at.ip(), why);
                false
            }
        }
    }

    /// Looks again at what is near, if that was long ago.
    async fn look(&self) {
        let looked_at = self.looked_at.get();
        if looked_at.is_some_and(|at| at.elapsed() < LOOK_AGAIN) {
            return;
        }
        let lan = self.lan.borrow().clone();
        // Not cut off in the middle of the kernel's answer.
        let looked = spawn_local(async move { Near::look(&lan).await }).await;
        match looked {
            Ok(Ok(near)) => *self.near.borrow_mut() = near,
            Ok(Err(error)) => tracing::warn!(%error, "what is near here is not known"),
            Err(_) => return,
        }
        // Not before: who comes meanwhile looks as well.
        self.looked_at.set(Some(Instant::now()));
    }

    async fn connect_tcp(&self, at: SocketAddr, from: SocketAddr) -> io::Result<TcpStream> {
        let mut shown = pin!(foreign::connect_tcp(from, at, OWN_MARK));
        match timeout(ROUTER_WAIT, &mut shown).await {
            Ok(Err(error)) if is_ours(&error) => return own_tcp(at).await,
            Ok(connected) => return connected,
            Err(_) => {}
        }
        tokio::select! {
            connected = shown => connected,
            own = own_tcp(at) => {
                let answers = own.as_ref().err().is_none_or(has_answered);
                if answers {
                    self.note_elsewhere(at.ip());
                }
                own
            }
        }
    }

    async fn connect_udp(&self, at: SocketAddr, from: SocketAddr) -> io::Result<UdpSocket> {
        match foreign::connect_udp(from, at, OWN_MARK, SOCKET_MARK) {
            Err(error) if is_ours(&error) => own_udp(at).await,
            bound => bound,
        }
    }

    fn note_elsewhere(&self, host: IpAddr) {
        let mut elsewhere = self.elsewhere.borrow_mut();
        if elsewhere.len() >= MAX_HOSTS {
            elsewhere.clear();
        }
        elsewhere.insert(host, Instant::now());
        self.note_unshown(host, "another machine is its router".to_owned());
    }

    fn note_unshown(&self, host: IpAddr, why: String) {
        let unshown = Some((host, why));
        if *self.unshown.borrow() != unshown {
            self.unshown.replace(unshown);
            if let Some(problem) = self.problem(|_| true) {
                tracing::info!("{problem}");
            }
        }
    }
}

impl Near {
    async fn look(lan: &[String]) -> Result<Self, interfaces::InterfaceError> {
        let (all, interfaces) = (interfaces::near().await?, interfaces::list().await?);
        let routed = interfaces.iter().filter(|it| lan.contains(&it.name));
        let networks = routed.flat_map(|it| &it.addresses).map(|own| Prefix {
            address: own.address,
            bits: own.prefix_bits,
        });
        let routed = networks.collect();
        Ok(Self { all, routed })
    }

    fn is_routed(&self, host: IpAddr) -> bool {
        self.routed.iter().any(|network| network.contains(host))
    }

    /// Nobody may be taken for a host of this machine's own networks.
    fn is_foreign(&self, ip: IpAddr) -> bool {
        !self.all.iter().any(|network| network.contains(ip))
    }
}

/// Whether an address can be another host's, and not of this wire alone.
fn is_elsewhere(ip: IpAddr) -> bool {
    let mut never = NEVER.iter().filter_map(|text| Prefix::parse(text));
    !ip.is_unspecified() && !never.any(|never| never.contains(ip))
}

async fn own_tcp(at: SocketAddr) -> io::Result<TcpStream> {
    plain::connect_tcp(at, &PlainWay::Routed).await
}

async fn own_udp(at: SocketAddr) -> io::Result<UdpSocket> {
    plain::connect_udp(at, &PlainWay::Routed).await
}

/// The socket could not be had; nobody was asked.
fn is_ours(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, InvalidInput, PermissionDenied};
    matches!(
        error.kind(),
        AddrInUse | AddrNotAvailable | InvalidInput | PermissionDenied
    )
}

fn has_answered(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionRefused | ConnectionReset)
}

fn rules() -> String {
    let answer = format!("meta mark set {}", ANSWERS.mark);
    format!(
        "chain answers {{\ntype filter hook prerouting priority mangle - 1\n\
         meta l4proto tcp socket transparent 1 {answer}\n\
         meta l4proto udp socket transparent 1 socket mark {SOCKET_MARK} {answer}\n\
         meta l4proto {{ icmp, icmpv6 }} socket transparent 1 {answer}\n}}\n"
    )
}

/// Sets it up, unless that was done; why it cannot be.
async fn is_set_up() -> Result<(), String> {
    // Not cut off with the caller, between rule and route.
    let set_up = || async {
        let setting_up = spawn_local(async { set_up().await });
        let done = setting_up.await.context("it was given up").flatten();
        done.map_err(|error| format!("{error:#}"))
    };
    SET_UP.get_or_init(set_up).await.clone()
}

async fn set_up() -> Result<()> {
    let routing = Routing::open()?;
    routing.add_local(ANSWERS.table).await?;
    // One that was killed may have left it.
    routing.remove_rule(ANSWERS).await?;
    routing.add_rule(ANSWERS).await?;
    let added = aside(|| nft::replace_table(TABLE, &rules())).await?;
    added.context("cannot set up packet filter rules")
}

/// Removes what a process of this network namespace has left.
pub(crate) async fn clear_leftovers() -> Result<()> {
    let routing = Routing::open()?;
    routing.remove_rule(ANSWERS).await?;
    routing.remove_local(ANSWERS.table).await?;
    match nft::remove_table(TABLE) {
        // Without the program there are no rules of ours.
        Ok(()) | Err(nft::NftError::Missing) => Ok(()),
        Err(error) => Err(error).context("cannot remove our packet filter rules"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|it| Prefix::parse(it).unwrap()).collect()
    }

    #[test]
    fn nobody_is_taken_for_a_host_of_this_machine_s_networks() {
        let near = Near {
            all: prefixes(&["192.168.20.0/24", "10.71.1.0/24", "2001:db8:20::/64"]),
            routed: prefixes(&["192.168.20.0/24", "2001:db8:20::/64"]),
        };
        for (address, is_routed, is_foreign) in [
            ("192.168.20.5", true, false),
            ("10.71.1.2", false, false),
            ("192.168.10.2", false, true),
            ("2001:db8:20::7", true, false),
            ("203.0.113.9", false, true),
        ] {
            let ip = address.parse().unwrap();
            assert_eq!(near.is_routed(ip), is_routed, "{address}");
            assert_eq!(near.is_foreign(ip), is_foreign, "{address}");
        }
    }

    #[test]
    fn visitors_are_shown_as_no_private_host_and_never_as_this_one() {
        let sources = Sources::default();
        sources.near.borrow_mut().all = prefixes(&["198.51.100.0/24"]);
        let at: SocketAddr = "192.168.20.5:80".parse().unwrap();
        for from in [
            "192.168.7.7:1",
            "10.0.0.1:1",
            "127.0.0.1:1",
            "169.254.1.1:1",
            "224.0.0.1:1",
            "0.0.0.0:1",
            "[fd00::1]:1",
            "[::1]:1",
            "[::ffff:10.0.0.1]:1",
            "198.51.100.7:1",
            // Of another family than the host.
            "[2001:db8::1]:1",
        ] {
            let wrong = sources.check_name(at, from.parse().unwrap());
            assert!(wrong.is_err(), "{from}");
        }
        let from = "203.0.113.9:1".parse().unwrap();
        assert_eq!(sources.check_name(at, from), Ok(()));
        let here = "127.0.0.1:80".parse().unwrap();
        assert!(sources.check_name(here, from).is_err());
    }

    #[tokio::test]
    async fn a_host_with_another_router_is_told_and_remembered() {
        let sources = Sources::default();
        let host: IpAddr = "192.168.20.5".parse().unwrap();
        sources.note_elsewhere(host);
        let at = SocketAddr::new(host, 80);
        assert!(
            !sources
                .can_show(at, "192.168.10.2:9".parse().unwrap())
                .await
        );
        let said = sources.problem(|ip| ip == host).unwrap();
        assert!(said.contains("another machine is its router"), "{said}");
        assert_eq!(sources.problem(|ip| ip != host), None);
    }
}
