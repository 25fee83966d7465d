//! Networks behind other clients of the same group, and those behind this one.
//!
//! Owns which destinations are led to another site, though their addresses are private ones: what
//! the relay tells, but for what this machine has near itself, which is nobody else's.

mod domain_offer;
mod heard;
mod lookup;
mod names;
mod offers;
mod shown;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::{Duration, Prefix};
use tabane_linux::interfaces::{self, Watch};
use tabane_linux::tun::Tun;
use tabane_tunnel::{Client, Domain, SiteDomain, SiteList, SiteRoute, Target};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

pub(crate) use lookup::lookup;
pub(crate) use names::{SiteQuestion, failure};
pub use offers::{check_domains, check_routes};
pub(crate) use shown::tell_of_other_relays;

use crate::rule_book::RuleBook;
use crate::sources::{NEVER, Sources};
use heard::Heard;
use offers::Offers;

/// How much later than a connection from there the word of a site may come, which takes another
/// stream of the relay's.
const WORD_WAIT: Duration = Duration::from_secs(1);

/// What is behind this machine.
#[derive(Clone, Debug, Default)]
pub struct Behind {
    /// Networks that others of the group are led to.
    pub routes: Vec<Prefix>,
    /// Domains whose names others ask for here, and whom; without a resolver, this machine's
    /// address in such a network.
    pub domains: Vec<(Domain, Option<SocketAddr>)>,
    /// The interfaces with hosts whose router this machine is.
    pub lan: Vec<String>,
    /// Hosts there see this machine's address in the place of others'.
    pub snat: bool,
}

/// What is known of sites. Copies are the same.
#[derive(Clone, Default)]
pub(crate) struct Sites(Rc<Inner>);

#[derive(Default)]
struct Inner {
    routes: watch::Sender<Routes>,
    offers: Offers,
    /// In whose name others are led to hosts here.
    sources: Sources,
    /// The interfaces with hosts that see whom others' packets are from.
    shown: RefCell<Vec<String>>,
    /// By which others' packets come to hosts here, while there is one that takes them.
    device: RefCell<Option<Rc<Tun>>>,
}

/// Networks that this machine offers to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offered {
    /// Which they are.
    pub(crate) ranges: Vec<Prefix>,
    /// This machine's own addresses in them.
    pub(crate) addresses: Vec<IpAddr>,
    /// The interfaces with hosts that see whom packets are from.
    pub(crate) shown: Vec<String>,
}

/// What leads to other sites, and what does not.
#[derive(Default, PartialEq)]
struct Routes {
    others: Vec<SiteRoute>,
    domains: Vec<SiteDomain>,
    near: Vec<Prefix>,
}

/// Whose a destination is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Another site's: the relay leads there, and nobody else does.
    Site,
    /// This machine's own network, though another site has a route to such an address.
    Near,
    /// No site's.
    Nobody,
}

impl Routes {
    fn whose(&self, ip: IpAddr) -> Whose {
        let ip = ip.to_canonical();
        if !self.others.iter().any(|route| route.prefix.contains(ip)) {
            return Whose::Nobody;
        }
        match self.near.iter().any(|near| near.contains(ip)) {
            true => Whose::Near,
            false => Whose::Site,
        }
    }

    /// What is to be captured, though it may be of ranges that are left alone.
    fn captured(&self) -> Vec<Prefix> {
        let is_beyond = |route: &Prefix| !self.near.iter().any(|near| is_within(route, near));
        let routes = self.others.iter().map(|route| route.prefix);
        routes.filter(is_beyond).collect()
    }

    /// What of that is to be left alone all the same: networks near here, within such routes.
    fn spared(&self) -> Vec<Prefix> {
        let meets = |near: &Prefix| {
            let mut others = self.others.iter();
            others.any(|route| is_within(near, &route.prefix))
        };
        self.near.iter().copied().filter(meets).collect()
    }
}

/// Whether all addresses of one range are of the other.
fn is_within(inner: &Prefix, outer: &Prefix) -> bool {
    outer.bits <= inner.bits && outer.contains(inner.address)
}

/// Whether there can be hosts of a site at these addresses.
fn is_route(prefix: &Prefix) -> bool {
    let mut never = NEVER.iter().filter_map(|text| Prefix::parse(text));
    prefix.bits > 0 && !never.any(|never| never.overlaps(prefix))
}

impl Sites {
    /// Whose a destination is.
    pub(crate) fn whose(&self, target: &Target) -> Whose {
        match target {
            Target::Address(address) => self.0.routes.borrow().whose(address.ip()),
            Target::Name { .. } | Target::Resolver | Target::Anywhere => Whose::Nobody,
        }
    }

    /// The ranges that lead to other sites.
    pub(crate) fn captured(&self) -> Vec<Prefix> {
        self.0.routes.borrow().captured()
    }

    /// The networks near here within those.
    pub(crate) fn spared(&self) -> Vec<Prefix> {
        self.0.routes.borrow().spared()
    }

    /// What this machine offers.
    pub(crate) async fn offered(&self) -> Offered {
        let ranges = self.0.offers.ranges();
        let shown = self.0.shown.borrow().clone();
        // Not cut off in the middle of the kernel's answer. What is not known now is known after
        // the next change.
        let listed = match ranges.is_empty() {
            true => None,
            false => tokio::task::spawn_local(interfaces::list()).await.ok(),
        };
        let interfaces = listed.and_then(Result::ok).unwrap_or_default();
        let own = interfaces.iter().flat_map(|it| &it.addresses);
        let own = own.map(|own| own.address);
        let addresses = own.filter(|ip| ranges.iter().any(|range| range.contains(*ip)));
        Offered {
            addresses: addresses.collect(),
            ranges,
            shown,
        }
    }

    /// Others' packets come to hosts here by this device from now on; by none, they are refused.
    pub(crate) fn set_device(&self, device: Option<Rc<Tun>>) {
        self.0.device.replace(device);
    }

    fn device(&self) -> Option<Rc<Tun>> {
        self.0.device.borrow().clone()
    }

    /// Whether a host is another site's.
    fn is_others(&self, ip: IpAddr) -> bool {
        self.0.routes.borrow().whose(ip) == Whose::Site
    }

    /// Offers nothing any more.
    pub(crate) fn stop(&self) {
        self.0.offers.stop();
    }

    /// Offers these networks behind this machine from now on. Must be called within a `LocalSet`.
    pub(crate) fn offer(&self, relay: &Client, rules: &RuleBook, behind: &Behind) {
        let ranges = &behind.routes;
        self.0
            .routes
            .send_modify(|routes| routes.near.extend(ranges));
        self.0.sources.set_lan(&behind.lan);
        let shows = !behind.snat;
        if shows {
            self.0.shown.borrow_mut().clone_from(&behind.lan);
        }
        for prefix in ranges {
            let site = (self.clone(), shows);
            self.0.offers.begin(relay, rules, *prefix, site);
        }
        for (domain, resolver) in &behind.domains {
            self.0.offers.begin_domain(relay, domain, *resolver);
        }
    }

    /// The resolver of another site that a question of the DNS is for.
    pub(crate) fn question(&self, message: &[u8]) -> Option<SiteQuestion> {
        self.0.routes.borrow().site_question(message)
    }

    /// Whether any names are asked for at others.
    pub(crate) fn have_names(&self) -> bool {
        !self.0.routes.borrow().domains.is_empty()
    }

    /// Whom a connection is for that came by the relay, if that is a host of another site.
    async fn source(&self, from: SocketAddr) -> Option<SocketAddr> {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        // Nobody's name was told.
        if from.ip().is_unspecified() {
            return None;
        }
        let mut routes = self.0.routes.subscribe();
        let told = routes.wait_for(|routes| routes.whose(from.ip()) != Whose::Nobody);
        let whose = timeout(WORD_WAIT, told).await.ok()?.ok()?.whose(from.ip());
        (whose == Whose::Site).then_some(from)
    }

    /// Follows what the relay tells and what is near, for ever; `moved` is told of changes.
    pub(crate) async fn follow(&self, relay: &Client, moved: impl Fn()) {
        let heard = RefCell::new(Heard::default());
        let news = Notify::new();
        let told = relay.follow_routes(|list, is_first| {
            heard.borrow_mut().hear(list, is_first, Instant::now());
            news.notify_one();
        });
        let outlived = async || {
            let until = heard.borrow().kept_until();
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let heeded = async {
            // What is near matters to nobody who has no routes.
            let mut watch: Option<Watch> = None;
            loop {
                tokio::select! {
                    () = news.notified() => {}
                    () = outlived() => heard.borrow_mut().forget(),
                    changed = changed(&mut watch) => if changed.is_none() {
                        watch = None;
                    },
                }
                let others = heard.borrow().known();
                if !others.routes.is_empty() && watch.is_none() {
                    watch = Watch::start().ok();
                }
                if self.heed(others).await {
                    moved();
                }
            }
        };
        tokio::join!(told, heeded);
    }

    /// Follows these routes, but for what is near now. Whether anything is otherwise than before.
    async fn heed(&self, told: SiteList) -> bool {
        let mut near = match told.routes.is_empty() {
            true => Vec::new(),
            // Not cut off in the middle of the kernel's answer.
            false => match tokio::task::spawn_local(interfaces::near()).await {
                Ok(Ok(near)) => near,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "what is near here is not told from sites");
                    return false;
                }
                Err(_) => return false,
            },
        };
        near.extend(self.0.offers.ranges());
        let new = Routes {
            others: told.routes,
            domains: told.domains,
            near,
        };
        self.0.routes.send_if_modified(|routes| {
            let is_new = *routes != new;
            *routes = new;
            is_new
        })
    }
}

/// Waits until the network changes; for ever where nobody looks.
async fn changed(watch: &mut Option<Watch>) -> Option<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|it| Prefix::parse(it).unwrap()).collect()
    }

    pub(super) fn routes(others: &[&str], near: &[&str]) -> Routes {
        let route = |prefix| SiteRoute {
            prefix,
            user: "ann".to_owned(),
            is_here: true,
        };
        Routes {
            others: prefixes(others).into_iter().map(route).collect(),
            domains: Vec::new(),
            near: prefixes(near),
        }
    }

    #[test]
    fn what_is_near_is_nobody_else_s() {
        let routes = routes(
            &[
                "192.168.20.0/24",
                "10.0.0.0/8",
                "172.16.5.0/24",
                "2001:db8:20::/48",
            ],
            &[
                "10.71.1.0/24",
                "192.168.1.0/24",
                "172.16.0.0/16",
                "2001:db8:20:7::/64",
            ],
        );
        for (address, whose) in [
            ("192.168.20.1", Whose::Site),
            ("::ffff:192.168.20.1", Whose::Site),
            ("192.168.21.1", Whose::Nobody),
            ("192.168.1.1", Whose::Nobody),
            ("10.9.9.9", Whose::Site),
            ("10.71.1.9", Whose::Near),
            ("172.16.5.9", Whose::Near),
            ("2001:db8:20:8::1", Whose::Site),
            ("2001:db8:20:7::1", Whose::Near),
            ("203.0.113.1", Whose::Nobody),
        ] {
            assert_eq!(routes.whose(address.parse().unwrap()), whose, "{address}");
        }
        let captured = prefixes(&["192.168.20.0/24", "10.0.0.0/8", "2001:db8:20::/48"]);
        assert_eq!(routes.captured(), captured);
        let spared = prefixes(&["10.71.1.0/24", "2001:db8:20:7::/64"]);
        assert_eq!(routes.spared(), spared);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_is_shown_where_it_is_of_another_site() {
        let sites = Sites::default();
        let told = routes(&["10.0.0.0/8"], &["10.71.1.0/24"]);
        sites.0.routes.send_replace(told);
        for (from, is_shown) in [
            ("10.9.9.9:5", true),
            ("[::ffff:10.9.9.9]:5", true),
            ("10.71.1.9:5", false),
            ("203.0.113.9:5", false),
            ("127.0.0.1:5", false),
            ("0.0.0.0:5", false),
        ] {
            let source = sites.source(from.parse().unwrap()).await;
            assert_eq!(source.is_some(), is_shown, "{from}");
        }
    }

    #[test]
    fn everything_this_host_and_the_wire_are_no_site() {
        for (route, is_one) in [
            ("192.168.20.0/24", true),
            ("203.0.113.0/24", true),
            ("fd00:20::/64", true),
            ("0.0.0.0/0", false),
            ("::/0", false),
            ("127.0.0.0/8", false),
            ("64.0.0.0/2", false),
            ("169.254.7.0/24", false),
            ("224.0.0.0/4", false),
            ("fe80::/64", false),
        ] {
            assert_eq!(is_route(&Prefix::parse(route).unwrap()), is_one, "{route}");
        }
    }
}
