//! The addresses of the relay's own host, and the networks that it is in.
//!
//! What listens there may trust connections from its own machine, or network, which no firewall
//! sees; so they are no destination for clients. Owns the lists, the translators of the network,
//! which lead to such addresses by others, and the families by which the host reaches others, and
//! keeps all up to date with the interfaces.

use std::net::IpAddr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use tabane_base::{Prefix, Translator};
use tabane_linux::follow_translators;
use tabane_linux::interfaces::{self, Families, Watch};
use tokio::sync::Notify;

/// Addresses that lead to this host. Written where the interfaces are followed, read by all
/// workers.
#[derive(Default)]
pub(super) struct OwnAddresses {
    /// Those that others forward to us, by word of the owner.
    announced: Vec<IpAddr>,
    seen: RwLock<Seen>,
}

/// What the last look has shown.
#[derive(Default)]
struct Seen {
    /// Those of links first.
    of_interfaces: Vec<IpAddr>,
    /// The networks of all interfaces.
    near: Vec<Prefix>,
    /// What this host takes in itself, whether it is an address of an interface or not.
    local: Vec<Prefix>,
    /// Of the network's, those that may lead to private addresses among them.
    translators: Vec<Translator>,
    /// `None` before the first look.
    families: Option<Families>,
}

impl OwnAddresses {
    pub(super) fn new(announced: Vec<IpAddr>) -> Self {
        Self {
            announced,
            seen: RwLock::default(),
        }
    }

    fn seen(&self) -> RwLockReadGuard<'_, Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.announced.contains(&ip) || self.seen().of_interfaces.contains(&ip)
    }

    /// Whether this host has an address in the range.
    pub(super) fn is_within(&self, range: Prefix) -> bool {
        let seen = self.seen();
        let mut own = self.announced.iter().chain(&seen.of_interfaces);
        own.any(|ip| range.contains(ip.to_canonical()))
    }

    /// Whether this host, or one of a network that it is in, has this address, or what goes there
    /// comes to this host.
    pub(super) fn is_near(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_of_network = || self.seen().near.iter().any(|range| range.contains(ip));
        self.contains(ip) || is_of_network() || self.is_local(ip)
    }

    /// Whether what goes to this address comes to this host.
    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        self.seen().local.iter().any(|range| range.contains(ip))
    }

    /// The IPv4 addresses that may be reached by this one through a translator: a forged answer may
    /// show one beside the true one, so that each says what it makes of it.
    pub(super) fn beyond(&self, ip: IpAddr) -> Vec<IpAddr> {
        let IpAddr::V6(ip) = ip else {
            return Vec::new();
        };
        let seen = self.seen();
        let beyond = seen.translators.iter().filter_map(|it| it.within(ip));
        beyond.map(IpAddr::V4).collect()
    }

    /// By which families this host reaches others.
    pub(super) fn families(&self) -> Families {
        self.seen().families.unwrap_or(Families::BOTH)
    }

    /// Where to connect to for `ip`, an address that leads here: an announced one may lead out into
    /// the world first and be let in nowhere on its way back.
    pub(super) fn nearest(&self, ip: IpAddr) -> IpAddr {
        let ip = ip.to_canonical();
        let seen = self.seen();
        let own = &seen.of_interfaces;
        if own.contains(&ip) || !self.announced.contains(&ip) {
            return ip;
        }
        let same = |own: &&IpAddr| own.is_ipv4() == ip.is_ipv4() && !own.is_loopback();
        own.iter().find(same).copied().unwrap_or(ip)
    }

    /// The network has these translators.
    pub(super) fn show(&self, translators: Vec<Translator>) {
        self.note(|seen| seen.translators = translators);
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
                let families = Some(Families::of(&interfaces));
                let (links, others): (Vec<_>, Vec<_>) = interfaces
                    .iter()
                    .partition(|interface| interface.usable().is_ok());
                let all = links.into_iter().chain(others);
                let addresses = all.flat_map(|interface| &interface.addresses);
                let addresses = addresses.map(|address| address.address.to_canonical());
                let addresses = addresses.collect();
                self.note(|seen| (seen.families, seen.of_interfaces) = (families, addresses));
            }
            Err(error) => tracing::warn!(%error, "cannot list this host's own addresses"),
        }
        match interfaces::near().await {
            Ok(near) => self.note(|seen| seen.near = near),
            Err(error) => tracing::warn!(%error, "cannot list this host's own networks"),
        }
        match interfaces::local().await {
            Ok(local) => self.note(|seen| seen.local = local),
            Err(error) => tracing::warn!(%error, "cannot list what is led to this host"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a range is for exit addresses: whoever connects to any of it is connected to this host.
    #[test]
    fn what_is_routed_to_this_host_itself_is_near() {
        let own = OwnAddresses::new(Vec::new());
        own.note(|seen| seen.local = vec![Prefix::parse("2001:db8:5::/64").unwrap()]);
        for (address, is_near) in [("2001:db8:5::7", true), ("2001:db8:6::7", false)] {
            assert_eq!(own.is_near(address.parse().unwrap()), is_near, "{address}");
        }
    }
}
