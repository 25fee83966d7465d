//! The addresses of the relay's own host, and the networks that it is in.
//!
//! What listens there may trust connections from its own machine, or network, which no firewall
//! sees; so they are no destination for clients. Owns the lists, the translators of the network,
//! which lead to such addresses by others, and the families by which the host reaches others, and
//! keeps all up to date with the interfaces.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;

use tabane_base::{Prefix, Translator};
use tabane_linux::follow_translators;
use tabane_linux::interfaces::{self, Families, Watch};
use tokio::sync::Notify;

/// Addresses that lead to this host.
#[derive(Default)]
pub(super) struct OwnAddresses {
    /// Those that others forward to us, by word of the owner.
    announced: Vec<IpAddr>,
    /// Those of links first.
    of_interfaces: RefCell<Vec<IpAddr>>,
    /// The networks of all interfaces.
    near: RefCell<Vec<Prefix>>,
    /// Of the network's, those that may lead to private addresses among them.
    translators: RefCell<Vec<Translator>>,
    /// `None` before the first look.
    families: Cell<Option<Families>>,
}

impl OwnAddresses {
    pub(super) fn new(announced: Vec<IpAddr>) -> Self {
        Self {
            announced,
            of_interfaces: RefCell::default(),
            near: RefCell::default(),
            translators: RefCell::default(),
            families: Cell::new(None),
        }
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.announced.contains(&ip) || self.of_interfaces.borrow().contains(&ip)
    }

    /// Whether this host, or one of a network that it is in, has this address.
    pub(super) fn is_near(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.contains(ip) || self.near.borrow().iter().any(|range| range.contains(ip))
    }

    /// The IPv4 addresses that may be reached by this one through a translator: a forged answer may
    /// show one beside the true one, so that each says what it makes of it.
    pub(super) fn beyond(&self, ip: IpAddr) -> Vec<IpAddr> {
        let IpAddr::V6(ip) = ip else {
            return Vec::new();
        };
        let translators = self.translators.borrow();
        let beyond = translators.iter().filter_map(|it| it.within(ip));
        beyond.map(IpAddr::V4).collect()
    }

    /// By which families this host reaches others.
    pub(super) fn families(&self) -> Families {
        self.families.get().unwrap_or(Families::BOTH)
    }

    /// Where to connect to for `ip`, an address that leads here: an announced one may lead out into
    /// the world first and be let in nowhere on its way back.
    pub(super) fn nearest(&self, ip: IpAddr) -> IpAddr {
        let ip = ip.to_canonical();
        let own = self.of_interfaces.borrow();
        if own.contains(&ip) || !self.announced.contains(&ip) {
            return ip;
        }
        let same = |own: &&IpAddr| own.is_ipv4() == ip.is_ipv4() && !own.is_loopback();
        own.iter().find(same).copied().unwrap_or(ip)
    }

    /// The network has these translators.
    pub(super) fn show(&self, translators: Vec<Translator>) {
        *self.translators.borrow_mut() = translators;
    }

    /// Looks at the interfaces, once now and then whenever they change.
    pub(super) async fn follow(&self) {
        let changed = Notify::new();
        let shown = follow_translators(&changed, |translators| self.show(translators));
        tokio::join!(self.follow_interfaces(&changed), shown);
    }

    async fn follow_interfaces(&self, told: &Notify) {
        let mut watch = Watch::start()
            .inspect_err(|error| tracing::warn!(%error, "new addresses will go unnoticed"))
            .ok();
        loop {
            self.look().await;
            let changed = match &mut watch {
                Some(watch) => watch.changed().await,
                None => None,
            };
            if changed.is_none() {
                return;
            }
            told.notify_one();
        }
    }

    pub(super) async fn look(&self) {
        match interfaces::list().await {
            Ok(interfaces) => {
                self.families.set(Some(Families::of(&interfaces)));
                let (links, others): (Vec<_>, Vec<_>) = interfaces
                    .iter()
                    .partition(|interface| interface.usable().is_ok());
                let all = links.into_iter().chain(others);
                let addresses = all.flat_map(|interface| &interface.addresses);
                let addresses = addresses.map(|address| address.address.to_canonical());
                *self.of_interfaces.borrow_mut() = addresses.collect();
            }
            Err(error) => tracing::warn!(%error, "cannot list this host's own addresses"),
        }
        match interfaces::near().await {
            Ok(near) => *self.near.borrow_mut() = near,
            Err(error) => tracing::warn!(%error, "cannot list this host's own networks"),
        }
    }
}
